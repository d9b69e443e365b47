import { useState } from "preact/hooks";
import { apiUrl, getIfExists, request } from "../api/client";
import { Dialog } from "../components/dialog";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatCount, formatRate } from "../components/format";
import { notify } from "../components/notices";
import { PagedList } from "../components/paged-list";
import type { Column } from "../components/table";
import { loadVhosts } from "../shell/preferences";
import { hasTag } from "../shell/session";

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
  { title: "Name", sort: "name", cell: (item) => <NameLink path={["vhosts", item.name]}>{item.name}</NameLink> },
  { title: "Description", sort: "description", cell: (item) => <Name>{item.description || "–"}</Name> },
  { title: "State", cell: (item) => <VhostState vhost={item} /> },
  { title: "Ready", sort: "messages_ready", number: true, cell: (item) => formatCount(item.messages_ready) },
  { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (item) => formatCount(item.messages_unacknowledged) },
  { title: "Total", sort: "messages", number: true, cell: (item) => formatCount(item.messages) },
  { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (item) => formatRate(item.message_stats?.publish_details?.rate) },
  { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (item) => formatRate(item.message_stats?.deliver_get_details?.rate) },
];

export default function Vhosts() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  return (
    <>
      <PageTitle>Virtual hosts</PageTitle>
      <PagedList<Vhost>
        noun="virtual hosts"
        path="/api/vhosts"
        columns={COLUMNS}
        idOf={(item) => item.name}
        version={version}
        toolbar={hasTag("administrator") && <button onClick={() => setAdding(true)}>New virtual host</button>}
      />
      {adding && (
        <NewVhost
          onClose={(done) => {
            setAdding(false);
            if (!done) return;
            setVersion(version + 1);
            void loadVhosts();
          }}
        />
      )}
    </>
  );
}

export function VhostState({ vhost }: { vhost: Vhost }) {
  return (
    <>
      {Object.entries(vhost.cluster_state).map(([node, state]) => (
        <Badge key={node} kind={state === "running" ? "good" : "bad"} title={`on ${node}`}>
          {state}
        </Badge>
      ))}
      {vhost.protected_from_deletion && <Badge title="It cannot be deleted until the protection is removed">protected</Badge>}
      {vhost.tracing && <Badge kind="warn" title="Every publish and delivery is copied to amq.rabbitmq.trace">traced</Badge>}
      {vhost.tags.map((tag) => (
        <Badge key={tag}>{tag}</Badge>
      ))}
    </>
  );
}

export function VhostFields({ vhost }: { vhost?: Vhost }) {
  return (
    <>
      <Field label="Description">
        <input name="description" autocomplete="off" defaultValue={vhost?.description ?? ""} />
      </Field>
      <Field label="Tags" hint="Separated by commas">
        <input name="tags" autocomplete="off" defaultValue={vhost?.tags.join(", ") ?? ""} />
      </Field>
      <Field label="Default queue type">
        <select name="type" defaultValue={vhost?.default_queue_type ?? "classic"}>
          {["classic", "quorum", "stream"].map((type) => (
            <option key={type} selected={type === (vhost?.default_queue_type ?? "classic")}>
              {type}
            </option>
          ))}
        </select>
      </Field>
    </>
  );
}

export function fieldsBody(fields: FormData): Record<string, unknown> {
  return { description: fieldText(fields, "description"), tags: fieldText(fields, "tags"), default_queue_type: fieldText(fields, "type") };
}

function NewVhost({ onClose }: { onClose: (done: boolean) => void }) {
  const submit = async (fields: FormData): Promise<void> => {
    const name = fieldText(fields, "name");
    // PUT would change an existing virtual host.
    if (await getIfExists(apiUrl("/api/vhosts/{vhost}", { vhost: name }, { columns: "name" }))) throw new Error("A virtual host of this name already exists. Its page has its settings.");
    await request("PUT", apiUrl("/api/vhosts/{vhost}", { vhost: name }), fieldsBody(fields));
    notify(`The virtual host ${name} was created. You have permissions in it.`);
    onClose(true);
  };
  return (
    <Dialog title="New virtual host" onClose={() => onClose(false)}>
      <Form action="Add the virtual host" submit={submit}>
        <Field label="Name">
          <input name="name" required autocomplete="off" />
        </Field>
        <VhostFields />
      </Form>
    </Dialog>
  );
}
