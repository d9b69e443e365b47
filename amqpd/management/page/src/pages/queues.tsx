import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { apiUrl, getIfExists, request } from "../api/client";
import { parseObject } from "../api/json";
import { Arguments } from "../components/arguments";
import { Dialog } from "../components/dialog";
import { Badge, KeyValues, Name, NameLink, PageTitle } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatBytes, formatCount, formatRate } from "../components/format";
import { notify } from "../components/notices";
import { listUrl, PagedList } from "../components/paged-list";
import { QueueState } from "../components/states";
import { type Column, fieldsOf, visibleColumns } from "../components/table";
import { VhostSelect } from "../components/vhost-select";
import { BulkActions } from "../queue/bulk";
import { selectedVhost, vhostOptions } from "../shell/preferences";
import { session } from "../shell/session";

type Queue = components["schemas"]["Queue"];

const COLUMNS: Column<Queue>[] = [
  { title: "Name", sort: "name", cell: (queue) => <NameLink path={["queues", queue.vhost, queue.name]}>{queue.name}</NameLink> },
  { title: "Type", sort: "type", cell: (queue) => <QueueType queue={queue} /> },
  { title: "State", sort: "state", cell: (queue) => <QueueState queue={queue} /> },
  { title: "Ready", sort: "messages_ready", number: true, cell: (queue) => formatCount(queue.messages_ready) },
  { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (queue) => formatCount(queue.messages_unacknowledged) },
  { title: "Total", sort: "messages", number: true, cell: (queue) => formatCount(queue.messages) },
  { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (queue) => formatRate(queue.message_stats?.publish_details?.rate) },
  { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (queue) => formatRate(queue.message_stats?.deliver_get_details?.rate) },
  { title: "Acked", sort: "message_stats.ack_details.rate", number: true, cell: (queue) => formatRate(queue.message_stats?.ack_details?.rate) },
  { title: "Consumers", sort: "consumers", number: true, cell: (queue) => formatCount(queue.consumers) },
];
const EXTRA_COLUMNS: Column<Queue>[] = [
  { title: "Message bytes", sort: "message_bytes", number: true, extra: true, cell: (queue) => formatBytes(queue.message_bytes) },
  { title: "Bytes in memory", sort: "message_bytes_ram", number: true, extra: true, cell: (queue) => formatBytes(queue.message_bytes_ram) },
  { title: "Redelivered", sort: "message_stats.redeliver_details.rate", number: true, extra: true, cell: (queue) => formatRate(queue.message_stats?.redeliver_details?.rate) },
  { title: "Consumer capacity", sort: "consumer_utilisation", number: true, extra: true, cell: (queue) => (queue.consumers ? `${Math.round((queue.consumer_utilisation ?? 0) * 100)} %` : "–") },
  { title: "Policy", sort: "policy", extra: true, cell: (queue) => queue.policy && <Name>{queue.policy}</Name> },
  { title: "Arguments", fields: "arguments", extra: true, cell: (queue) => <KeyValues values={queue.arguments} none="–" /> },
  { title: "Idle since", sort: "idle_since", extra: true, cell: (queue) => queue.idle_since?.slice(0, 19).replace("T", " ") ?? "–" },
];
const NODE: Column<Queue> = { title: "Node", sort: "node", cell: (queue) => <Name>{queue.node}</Name> };
const VHOST: Column<Queue> = { title: "Virtual host", sort: "vhost", cell: (queue) => <Name>{queue.vhost}</Name> };
const ALL_COLUMNS = [...COLUMNS, ...EXTRA_COLUMNS];
// The broker encodes and sends only these fields and those of the visible columns.
const BASE_FIELDS = "name,vhost,node,type,durable,auto_delete,exclusive,state,state_reason,policy,degraded,idle_since,consumers";

const listRequest = () => ({ path: selectedVhost.value ? "/api/queues/{vhost}" : "/api/queues", names: { vhost: selectedVhost.value }, query: { columns: fieldsOf(BASE_FIELDS, visibleColumns("queues", ALL_COLUMNS)) } });
export const firstUrl = (): string => listUrl(listRequest());

export default function Queues() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  const chosen = selectedVhost.value;
  const extraColumns = [...(chosen || vhostOptions.value.length < 2 ? [] : [VHOST]), ...(session.value?.clustered ? [NODE] : [])];
  const columns = [ALL_COLUMNS[0]!, ...extraColumns, ...ALL_COLUMNS.slice(1)];
  const changed = (): void => setVersion((before) => before + 1);
  return (
    <>
      <PageTitle>Queues</PageTitle>
      <PagedList<Queue>
        noun="queues"
        {...listRequest()}
        columns={columns}
        idOf={(queue) => `${queue.vhost}\0${queue.name}`}
        version={version}
        bulkActions={(chosen, onDone) => (
          <BulkActions
            selected={chosen}
            onDone={() => {
              changed();
              onDone();
            }}
          />
        )}
        toolbar={vhostOptions.value.length > 0 && <button onClick={() => setAdding(true)}>New queue</button>}
      />
      {adding && (
        <NewQueue
          onClose={(done) => {
            setAdding(false);
            if (done) changed();
          }}
        />
      )}
    </>
  );
}

function QueueType({ queue }: { queue: Queue }) {
  return (
    <>
      {queue.type}{" "}
      {!queue.durable && <Badge title="Deleted by a restart">transient</Badge>}
      {queue.auto_delete && <Badge title="Deleted with its last consumer">auto-delete</Badge>}
      {queue.exclusive && <Badge title="Only its connection can use it">exclusive</Badge>}
      {queue.policy && <Badge title="Policy">{queue.policy}</Badge>}
    </>
  );
}

function NewQueue({ onClose }: { onClose: (done: boolean) => void }) {
  const [queueVhost, setQueueVhost] = useState(selectedVhost.value || (vhostOptions.value[0] ?? "/"));
  const [type, setType] = useState("classic");
  const [written, setWritten] = useState("");
  const submit = async (fields: FormData): Promise<void> => {
    const name = fieldText(fields, "name");
    const url = apiUrl("/api/queues/{vhost}/{name}", { vhost: queueVhost, name });
    if (await getIfExists(`${url}?columns=name`)) throw new Error("A queue of this name already exists. Nothing was changed.");
    const body = {
      durable: fieldText(fields, "durable") === "yes",
      auto_delete: fields.has("auto_delete"),
      // Classic queues name their type too, because a virtual host can have another default.
      arguments: { "x-queue-type": type, ...parseObject(written, "Arguments") },
    };
    await request("PUT", url, body);
    notify(`Queue ${name} was created.`);
    onClose(true);
  };
  return (
    <Dialog title="New queue" onClose={() => onClose(false)}>
      <Form action="Declare the queue" submit={submit}>
        <Field label="Virtual host">
          <VhostSelect value={queueVhost} onChange={setQueueVhost} />
        </Field>
        <Field label="Name">
          <input name="name" required autocomplete="off" />
        </Field>
        <Field label="Type">
          <select value={type} onChange={(event) => setType(event.currentTarget.value)}>
            <option>classic</option>
            <option>quorum</option>
            <option>stream</option>
          </select>
        </Field>
        <Field label="Durability">
          <select name="durable">
            <option value="yes">durable: survives a restart</option>
            <option value="no">transient: deleted by a restart</option>
          </select>
        </Field>
        <label class="checkbox">
          <input type="checkbox" name="auto_delete" /> auto-delete: deleted with its last consumer
        </label>
        <Arguments kind="queue" type={type} label="Arguments" text={written} onChange={setWritten} />
      </Form>
    </Dialog>
  );
}
