import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { apiUrl, get, getIfExists, put } from "../api/client";
import { parseObject } from "../api/json";
import { Arguments } from "../components/arguments";
import { Dialog } from "../components/dialog";
import { Badge, exchangeInPath, exchangeName, Name, NameLink, PageTitle } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatRate } from "../components/format";
import { notify } from "../components/notices";
import { PagedList } from "../components/paged-list";
import type { Column } from "../components/table";
import { VhostSelect } from "../components/vhost-select";
import { usePoll } from "../shell/poll";
import { selectedVhost, vhostOptions } from "../shell/preferences";

type Exchange = components["schemas"]["Exchange"];

const COLUMNS: Column<Exchange>[] = [
  { title: "Name", sort: "name", cell: (exchange) => <NameLink path={["exchanges", exchange.vhost, exchangeInPath(exchange.name)]}>{exchangeName(exchange.name)}</NameLink> },
  {
    title: "Type",
    sort: "type",
    cell: (exchange) => (
      <>
        {exchange.type} {!exchange.durable && <Badge title="Deleted by a restart">transient</Badge>}
        {exchange.internal && <Badge title="Only other exchanges can publish to it">internal</Badge>}
        {exchange.auto_delete && <Badge title="Deleted with its last binding">auto-delete</Badge>}
        {exchange.policy && <Badge title="Policy">{exchange.policy}</Badge>}
        {exchange.state === "unavailable" && <Badge kind="bad">unavailable</Badge>}
      </>
    ),
  },
  { title: "In", sort: "message_stats.publish_in_details.rate", number: true, cell: (exchange) => formatRate(exchange.message_stats?.publish_in_details?.rate) },
  { title: "Out", sort: "message_stats.publish_out_details.rate", number: true, cell: (exchange) => formatRate(exchange.message_stats?.publish_out_details?.rate) },
];
const VHOST: Column<Exchange> = { title: "Virtual host", sort: "vhost", cell: (exchange) => <Name>{exchange.vhost}</Name> };
const FIELDS =
  "name,vhost,type,durable,auto_delete,internal,arguments,policy,state,message_stats.publish_in_details.rate,message_stats.publish_out_details.rate";

export default function Exchanges() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  const chosen = selectedVhost.value;
  return (
    <>
      <PageTitle>Exchanges</PageTitle>
      <PagedList<Exchange>
        noun="exchanges"
        path={chosen ? "/api/exchanges/{vhost}" : "/api/exchanges"}
        names={{ vhost: chosen }}
        query={{ columns: FIELDS }}
        columns={chosen || vhostOptions.value.length < 2 ? COLUMNS : [COLUMNS[0]!, VHOST, ...COLUMNS.slice(1)]}
        idOf={(exchange) => `${exchange.vhost}\0${exchange.name}`}
        version={version}
        toolbar={vhostOptions.value.length > 0 && <button onClick={() => setAdding(true)}>New exchange</button>}
      />
      {adding && (
        <NewExchange
          onClose={(done) => {
            setAdding(false);
            if (done) setVersion(version + 1);
          }}
        />
      )}
    </>
  );
}

function NewExchange({ onClose }: { onClose: (done: boolean) => void }) {
  const [exchangeVhost, setExchangeVhost] = useState(selectedVhost.value || (vhostOptions.value[0] ?? "/"));
  const [type, setType] = useState("direct");
  const [written, setWritten] = useState("");
  const { data } = usePoll((signal) => get("/api/overview", {}, { fields: "exchange_types" }, signal), []);
  const types = data?.exchange_types.map((each) => each.name) ?? ["direct", "fanout", "headers", "topic"];
  const submit = async (fields: FormData): Promise<void> => {
    const exchange = fieldText(fields, "name");
    const names = { vhost: exchangeVhost, exchange };
    if (await getIfExists(apiUrl("/api/exchanges/{vhost}/{exchange}", names, { columns: "name" }))) throw new Error("An exchange of this name already exists. Nothing was changed.");
    await put(
      "/api/exchanges/{vhost}/{exchange}",
      names,
      {
        type,
        durable: fieldText(fields, "durable") === "yes",
        auto_delete: fields.has("auto_delete"),
        internal: fields.has("internal"),
        arguments: parseObject(written, "Arguments"),
      },
    );
    notify(`Exchange ${exchange} was created.`);
    onClose(true);
  };
  return (
    <Dialog title="New exchange" onClose={() => onClose(false)}>
      <Form action="Declare the exchange" submit={submit}>
        <Field label="Virtual host">
          <VhostSelect value={exchangeVhost} onChange={setExchangeVhost} />
        </Field>
        <Field label="Name">
          <input name="name" required autocomplete="off" />
        </Field>
        <Field label="Type">
          <select value={type} onChange={(event) => setType(event.currentTarget.value)}>
            {types.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </Field>
        <Field label="Durability">
          <select name="durable">
            <option value="yes">durable: survives a restart</option>
            <option value="no">transient: deleted by a restart</option>
          </select>
        </Field>
        <label class="checkbox">
          <input type="checkbox" name="auto_delete" /> auto-delete: deleted with its last binding
        </label>
        <label class="checkbox">
          <input type="checkbox" name="internal" /> internal: only other exchanges can publish to it
        </label>
        <Arguments kind="exchange" type={type} label="Arguments" text={written} onChange={setWritten} />
      </Form>
    </Dialog>
  );
}
