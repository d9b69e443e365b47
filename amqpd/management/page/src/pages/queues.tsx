// All queues: for ten thousand of them as for three.
import { useState } from "preact/hooks";
import type { components } from "../api/schema";
import { address, found, request } from "../api/client";
import { notify } from "../parts/notices";
import { Dialog } from "../parts/dialog";
import { Field, Form, object, text } from "../parts/form";
import { List, listUrl, type Column } from "../parts/list";
import { count, rate } from "../parts/numbers";
import { State } from "../parts/state";
import { Badge, Name, Title, To } from "../parts/text";
import { session } from "../shell/session";
import { vhost, vhosts } from "../shell/vhost";

type Queue = components["schemas"]["Queue"];

const COLUMNS: Column<Queue>[] = [
  { title: "Name", sort: "name", cell: (queue) => <To path={["queues", queue.vhost, queue.name]}>{queue.name}</To> },
  { title: "Type", sort: "type", cell: (queue) => <Kind queue={queue} /> },
  { title: "State", sort: "state", cell: (queue) => <State queue={queue} /> },
  { title: "Ready", sort: "messages_ready", number: true, cell: (queue) => count(queue.messages_ready) },
  { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (queue) => count(queue.messages_unacknowledged) },
  { title: "Total", sort: "messages", number: true, cell: (queue) => count(queue.messages) },
  { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (queue) => rate(queue.message_stats?.publish_details?.rate) },
  { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (queue) => rate(queue.message_stats?.deliver_get_details?.rate) },
  { title: "Acked", sort: "message_stats.ack_details.rate", number: true, cell: (queue) => rate(queue.message_stats?.ack_details?.rate) },
  { title: "Consumers", sort: "consumers", number: true, cell: (queue) => count(queue.consumers) },
];
const NODE: Column<Queue> = { title: "Node", sort: "node", cell: (queue) => <Name>{queue.node}</Name> };
const VHOST: Column<Queue> = { title: "Virtual host", sort: "vhost", cell: (queue) => queue.vhost };
// What the list shows, and no more, is encoded and sent.
const FIELDS = [
  "name,vhost,node,type,durable,auto_delete,exclusive,arguments,state,state_reason,policy,degraded,idle_since,messages,messages_ready,messages_unacknowledged,consumers",
  ...["publish", "deliver_get", "ack"].map((name) => `message_stats.${name}_details.rate`),
].join();

const asked = () => ({ path: vhost.value ? "/api/queues/{vhost}" : "/api/queues", names: { vhost: vhost.value }, query: { columns: FIELDS } });
export const first = (): string => listUrl(asked());

export default function Queues() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  const chosen = vhost.value;
  const more = [...(chosen || vhosts.value.length < 2 ? [] : [VHOST]), ...(session.value?.clustered ? [NODE] : [])];
  const columns = [COLUMNS[0]!, ...more, ...COLUMNS.slice(1)];
  return (
    <>
      <Title>Queues</Title>
      <List<Queue>
        what="queues"
        {...asked()}
        columns={columns}
        idOf={(queue) => `${queue.vhost}\0${queue.name}`}
        version={version}
        aside={vhosts.value.length > 0 && <button onClick={() => setAdding(true)}>New queue</button>}
      />
      {adding && (
        <NewQueue
          onClose={(done) => {
            setAdding(false);
            if (done) setVersion(version + 1);
          }}
        />
      )}
    </>
  );
}

function Kind({ queue }: { queue: Queue }) {
  return (
    <>
      {queue.type}{" "}
      {!queue.durable && <Badge title="Gone after a restart">transient</Badge>}
      {queue.auto_delete && <Badge title="Deleted when its last consumer goes">auto-delete</Badge>}
      {queue.exclusive && <Badge title="Of one connection">exclusive</Badge>}
      {queue.policy && <Badge title="Its policy">{queue.policy}</Badge>}
    </>
  );
}

function NewQueue({ onClose }: { onClose: (done: boolean) => void }) {
  const send = async (fields: FormData): Promise<void> => {
    const name = text(fields, "name");
    const type = text(fields, "type");
    const url = address("/api/queues/{vhost}/{name}", { vhost: text(fields, "vhost"), name });
    if (await found(`${url}?columns=name`)) throw new Error("There is a queue of this name already; nothing is changed.");
    const body = {
      durable: text(fields, "durable") === "yes",
      auto_delete: fields.has("auto_delete"),
      // Said of classic ones too: without it the virtual host says what they are.
      arguments: { "x-queue-type": type, ...object(fields, "arguments", "Arguments") },
    };
    await request("PUT", url, body);
    notify(`Queue ${name} is there.`);
    onClose(true);
  };
  return (
    <Dialog title="New queue" onClose={() => onClose(false)}>
      <Form action="Declare the queue" send={send}>
        <Field label="Virtual host">
          <select name="vhost">
            {vhosts.value.map((name) => (
              <option key={name} selected={name === vhost.value}>
                {name}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Name">
          <input name="name" required autocomplete="off" />
        </Field>
        <Field label="Type">
          <select name="type">
            <option>classic</option>
            <option>quorum</option>
            <option>stream</option>
          </select>
        </Field>
        <Field label="After a restart">
          <select name="durable">
            <option value="yes">it is there: durable</option>
            <option value="no">it is gone: transient</option>
          </select>
        </Field>
        <label class="check">
          <input type="checkbox" name="auto_delete" /> delete it when its last consumer goes
        </label>
        <Field label="Arguments" hint='A JSON object: {"x-max-length": 1000, "x-dead-letter-exchange": ""}'>
          <textarea name="arguments" class="code" spellcheck={false} />
        </Field>
      </Form>
    </Dialog>
  );
}
