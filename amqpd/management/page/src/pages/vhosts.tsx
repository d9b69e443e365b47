// All virtual hosts that the user may see, with what lies in them.
import { useState } from "preact/hooks";
import { address, found, request } from "../api/client";
import { Dialog } from "../components/dialog";
import { Field, Form, text } from "../components/form";
import { List, type Column } from "../components/paged-list";
import { notify } from "../components/notices";
import { count, rate } from "../components/format";
import { Badge, Name, Title, To } from "../components/elements";
import { has } from "../shell/session";
import { lookForVhosts } from "../shell/preferences";

interface Rate {
  rate?: number;
}
export interface Vhost {
  name: string;
  description: string;
  tags: string[];
  default_queue_type: string;
  protected_from_deletion: boolean;
  tracing: boolean;
  cluster_state: Record<string, string>;
  messages: number;
  messages_ready: number;
  messages_unacknowledged: number;
  message_stats?: { publish_details?: Rate; deliver_get_details?: Rate };
}

const COLUMNS: Column<Vhost>[] = [
  { title: "Name", sort: "name", cell: (item) => <To path={["vhosts", item.name]}>{item.name}</To> },
  { title: "Description", sort: "description", cell: (item) => <Name>{item.description || "–"}</Name> },
  { title: "State", cell: (item) => <State of={item} /> },
  { title: "Ready", sort: "messages_ready", number: true, cell: (item) => count(item.messages_ready) },
  { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (item) => count(item.messages_unacknowledged) },
  { title: "Total", sort: "messages", number: true, cell: (item) => count(item.messages) },
  { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (item) => rate(item.message_stats?.publish_details?.rate) },
  { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (item) => rate(item.message_stats?.deliver_get_details?.rate) },
];

export default function Vhosts() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  return (
    <>
      <Title>Virtual hosts</Title>
      <List<Vhost>
        what="virtual hosts"
        path="/api/vhosts"
        columns={COLUMNS}
        idOf={(item) => item.name}
        version={version}
        aside={has("administrator") && <button onClick={() => setAdding(true)}>New virtual host</button>}
      />
      {adding && (
        <NewVhost
          onClose={(done) => {
            setAdding(false);
            if (!done) return;
            setVersion(version + 1);
            void lookForVhosts();
          }}
        />
      )}
    </>
  );
}

export function State({ of }: { of: Vhost }) {
  return (
    <>
      {Object.entries(of.cluster_state).map(([node, state]) => (
        <Badge key={node} kind={state === "running" ? "good" : "bad"} title={`on ${node}`}>
          {state}
        </Badge>
      ))}
      {of.protected_from_deletion && <Badge title="It cannot be deleted until that is taken back">protected</Badge>}
      {of.tracing && <Badge kind="warn" title="Every publish and delivery is copied to amq.rabbitmq.trace">traced</Badge>}
      {of.tags.map((tag) => (
        <Badge key={tag}>{tag}</Badge>
      ))}
    </>
  );
}

export function VhostFields({ of }: { of?: Vhost }) {
  return (
    <>
      <Field label="Description">
        <input name="description" autocomplete="off" defaultValue={of?.description ?? ""} />
      </Field>
      <Field label="Tags" hint="Words with commas between them">
        <input name="tags" autocomplete="off" defaultValue={of?.tags.join(", ") ?? ""} />
      </Field>
      <Field label="Type of queues that are declared without one">
        <select name="type" defaultValue={of?.default_queue_type ?? "classic"}>
          {["classic", "quorum", "stream"].map((type) => (
            <option key={type} selected={type === (of?.default_queue_type ?? "classic")}>
              {type}
            </option>
          ))}
        </select>
      </Field>
    </>
  );
}

export function bodyOf(fields: FormData): Record<string, unknown> {
  return { description: text(fields, "description"), tags: text(fields, "tags"), default_queue_type: text(fields, "type") };
}

function NewVhost({ onClose }: { onClose: (done: boolean) => void }) {
  const send = async (fields: FormData): Promise<void> => {
    const name = text(fields, "name");
    // Nothing that is there is changed by mistake.
    if (await found(address("/api/vhosts/{vhost}", { vhost: name }, { columns: "name" }))) throw new Error("There is a virtual host of this name already; its own page has its settings.");
    await request("PUT", address("/api/vhosts/{vhost}", { vhost: name }), bodyOf(fields));
    notify(`The virtual host ${name} is there, and you may use it.`);
    onClose(true);
  };
  return (
    <Dialog title="New virtual host" onClose={() => onClose(false)}>
      <Form action="Add the virtual host" send={send}>
        <Field label="Name">
          <input name="name" required autocomplete="off" />
        </Field>
        <VhostFields />
      </Form>
    </Dialog>
  );
}
