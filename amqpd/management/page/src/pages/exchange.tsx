// An exchange: its rates and bindings; publishing, binding, deleting.
import { useState } from "preact/hooks";
import { countItems, get, remove } from "../api/client";
import { BindForm, BindingList } from "../components/bindings";
import { Chart, Charts } from "../components/chart";
import { DangerButton } from "../components/dialog";
import { ErrorMessage, exchangeName, Facts, KeyValues, Loading, Name, PageTitle, Section, Tabs } from "../components/elements";
import { formatCount, plural } from "../components/format";
import { PublishForm } from "../components/publish";
import { type Counters, OBJECT_RANGES, type Range, useHistory } from "../components/samples";
import type { PageProps } from "../shell/pages";
import { navigate } from "../shell/router";
import { useRights } from "../shell/session";

const CURVES = [
  { name: "publish_in", label: "Published" },
  { name: "publish_out", label: "Routed to queues" },
];

export default function ExchangePage({ names }: PageProps) {
  const path = { vhost: names[0]!, exchange: names[1]! };
  const name = path.exchange === "amq.default" ? "" : path.exchange;
  const rights = useRights("exchange", path.vhost, name);
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points } = useHistory(
    range,
    (query, signal) => get("/api/exchanges/{vhost}/{exchange}", path, query, signal),
    (exchange) => Object.fromEntries(CURVES.map((each) => [each.name, (exchange.message_stats as Counters | undefined)?.[`${each.name}_details`]])),
    names,
  );
  const overview = () => (
    <>
      {data && (
        <Section title="Details">
          <Facts
            facts={[
              ["Type", data.type],
              ["Virtual host", <Name>{data.vhost}</Name>],
              ["Durability", data.durable ? "durable" : "transient"],
              ["Auto-delete", data.auto_delete ? "yes, with its last binding" : "no"],
              ["Internal", data.internal ? "yes: only other exchanges can publish to it" : "no"],
              ["Delayed messages", data.messages_delayed ? formatCount(data.messages_delayed) : undefined],
              ["Policy", data.policy || "none"],
              ["Operator policy", data.operator_policy || undefined],
              ["Effective policy definition", data.policy || data.operator_policy ? <KeyValues values={data.effective_policy_definition ?? {}} /> : undefined],
              ["Arguments", <KeyValues values={data.arguments} />],
            ]}
          />
        </Section>
      )}
      {data && (
        <Charts title="Messages" range={range} ranges={OBJECT_RANGES} onRange={setRange}>
          <Chart title="Rates" points={points} curves={CURVES} />
        </Charts>
      )}
    </>
  );
  return (
    <>
      <PageTitle kind="Exchange" aside={data && rights.configure && name !== "" && !name.startsWith("amq.") && <DeleteButton path={path} />}>
        {exchangeName(name)}
      </PageTitle>
      <ErrorMessage error={error} />
      {data && (
        <Tabs
          label="Parts of this exchange"
          tabs={[
            { id: "", title: "Overview", body: overview },
            { id: "bindings", title: "Bindings", body: () => <BindingsTab path={path} name={name} canChange={rights.read} /> },
            ...(rights.write && !data.internal ? [{ id: "publish", title: "Publish", body: () => <Section title="Publish a message"><PublishForm vhost={path.vhost} exchange={name} /></Section> }] : []),
          ]}
        />
      )}
      {!data && !error && <Loading />}
    </>
  );
}

type ExchangeNames = { vhost: string; exchange: string };
const SOURCE_BINDINGS = "/api/exchanges/{vhost}/{exchange}/bindings/source";
const DESTINATION_BINDINGS = "/api/exchanges/{vhost}/{exchange}/bindings/destination";

function BindingsTab({ path, name, canChange }: { path: ExchangeNames; name: string; canChange: boolean }) {
  const [version, setVersion] = useState(0);
  const common = { pathNames: path, version, canChange, onChange: () => setVersion((before) => before + 1) };
  if (name === "") {
    return (
      <Section title="Bindings from this exchange">
        <p>The default exchange is bound to every queue with the queue's name as routing key. These bindings cannot be changed.</p>
      </Section>
    );
  }
  return (
    <>
      <Section title="Bindings from this exchange">
        <BindingList path={SOURCE_BINDINGS} end="destination" {...common} />
        {canChange && <BindForm vhost={path.vhost} exchange={name} onChange={common.onChange} />}
      </Section>
      <Section title="Bindings to this exchange">
        <BindingList path={DESTINATION_BINDINGS} end="source" {...common} />
      </Section>
    </>
  );
}

function DeleteButton({ path }: { path: ExchangeNames }) {
  return (
    <DangerButton
      label="Delete"
      title={`Delete the exchange ${path.exchange}?`}
      preview={async () => {
        const bindings = (await countItems(SOURCE_BINDINGS, path)) + (await countItems(DESTINATION_BINDINGS, path));
        return {
          text: (
            <p>
              The exchange is deleted with {plural(bindings, "binding")}. Messages in queues stay. Later publishes to this exchange close the publisher's channel with error 404.
            </p>
          ),
          action: "Delete the exchange",
        };
      }}
      run={async () => {
        await remove("/api/exchanges/{vhost}/{exchange}", path);
        return `Exchange ${path.exchange} was deleted.`;
      }}
      onDone={() => navigate(["exchanges"])}
    />
  );
}
