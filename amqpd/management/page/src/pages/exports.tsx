// What queues keep for exports to a lake, and how far each exporter is behind.
import { useState } from "preact/hooks";
import { address, request } from "../api/client";
import { Danger, Dialog, type Consequence } from "../components/dialog";
import { Field, Form, text } from "../components/form";
import { List, type Column } from "../components/paged-list";
import { notify } from "../components/notices";
import { bytes, count, plural } from "../components/format";
import { Badge, Name, Title, To } from "../components/elements";
import { VhostChoice } from "../components/vhost-select";
import { vhost, vhosts } from "../shell/preferences";

interface Export {
  vhost: string;
  queue: string;
  name: string;
  declared: boolean;
  offset: number;
  end_offset: number;
  lag: number;
  kept_bytes: number;
  max_bytes: number;
}

export default function Exports() {
  const [adding, setAdding] = useState(false);
  const [version, setVersion] = useState(0);
  const chosen = vhost.value;
  const changed = (): void => setVersion((before) => before + 1);
  const columns: Column<Export>[] = [
    { title: "Queue", sort: "queue", cell: (item) => <To path={["queues", item.vhost, item.queue]}>{item.queue}</To> },
    { title: "Virtual host", sort: "vhost", cell: (item) => <Name>{item.vhost}</Name> },
    { title: "Export", sort: "name", cell: (item) => <Exporter item={item} /> },
    { title: "Records behind", sort: "lag", number: true, cell: (item) => count(item.lag) },
    { title: "Has all below", sort: "offset", number: true, cell: (item) => count(item.offset) },
    { title: "End of the queue", sort: "end_offset", number: true, cell: (item) => count(item.end_offset) },
    { title: "Kept for it", sort: "kept_bytes", number: true, cell: (item) => <Kept item={item} /> },
    { title: "Stop", cell: (item) => <Stop item={item} onDone={changed} /> },
  ];
  return (
    <>
      <Title>Exports</Title>
      <p class="soft">What consumers have settled stays in the queue's log until each of its exports has it, or until that is more than the limit.</p>
      <List<Export>
        what="exports"
        path={chosen ? "/api/amqpd/exports/{vhost}" : "/api/amqpd/exports"}
        names={{ vhost: chosen }}
        columns={columns}
        idOf={(item) => `${item.vhost}\0${item.queue}\0${item.name}`}
        version={version}
        aside={<button onClick={() => setAdding(true)}>Keep for an export</button>}
      />
      {adding && (
        <NewExport
          onClose={(done) => {
            setAdding(false);
            if (done) changed();
          }}
        />
      )}
    </>
  );
}

function Exporter({ item }: { item: Export }) {
  return (
    <>
      <Name>{item.name}</Name> {item.declared && <Badge title="The queue is declared with x-export">declared</Badge>}
    </>
  );
}

function Kept({ item }: { item: Export }) {
  const share = item.max_bytes > 0 ? item.kept_bytes / item.max_bytes : 0;
  return (
    <>
      {bytes(item.kept_bytes)} of {bytes(item.max_bytes)} {share > 0.9 && <Badge kind="bad">the oldest go soon, unexported</Badge>}
    </>
  );
}

const urlOf = (item: Export): string => address("/api/amqpd/exports/{vhost}/{queue}/{name}", { vhost: item.vhost, queue: item.queue, name: item.name });

function Stop({ item, onDone }: { item: Export; onDone: () => void }) {
  const look = async (): Promise<Consequence> => ({
    text: (
      <p>
        Nothing is kept for the export <Name>{item.name}</Name> any more. {plural(item.lag, "record")} it does not have yet {item.lag === 1 ? "stays" : "stay"} in the queue only until consumers have settled {item.lag === 1 ? "it" : "them"};{" "}
        {bytes(item.kept_bytes)} that are kept for exports alone may go at once.
      </p>
    ),
    action: "Stop keeping for it",
  });
  const run = async (): Promise<string> => {
    await request("DELETE", urlOf(item));
    return "Nothing is kept for it any more.";
  };
  return <Danger label="Stop" title="Stop keeping for this export?" look={look} run={run} onDone={onDone} {...(item.declared ? { disabled: true, why: "The queue is declared with x-export: it keeps as long as it is there" } : {})} />;
}

function NewExport({ onClose }: { onClose: (done: boolean) => void }) {
  const [of, setOf] = useState(vhost.value || (vhosts.value[0] ?? "/"));
  const send = async (fields: FormData): Promise<void> => {
    const gib = text(fields, "gib");
    const body = { name: text(fields, "name"), ...(gib ? { max_bytes: Math.round(Number(gib) * 2 ** 30) } : {}) };
    await request("PUT", address("/api/amqpd/exports/{vhost}/{queue}", { vhost: of, queue: text(fields, "queue") }), body);
    notify("What is settled stays from now on until that export has it.");
    onClose(true);
  };
  return (
    <Dialog title="Keep for an export" onClose={() => onClose(false)}>
      <Form action="Keep for it" send={send}>
        <Field label="Virtual host">
          <VhostChoice value={of} onChange={setOf} />
        </Field>
        <Field label="Queue" hint="A durable one">
          <input name="queue" required autocomplete="off" />
        </Field>
        <Field label="Name of the export" hint="Letters, digits, dots, dashes and underscores">
          <input name="name" required autocomplete="off" pattern="[A-Za-z0-9_][A-Za-z0-9_.\-]*" maxLength={64} />
        </Field>
        <Field label="At most, in GiB" hint="Empty: 16; beyond it the oldest go unexported, and that is logged">
          <input name="gib" type="number" min={0} step="any" />
        </Field>
      </Form>
    </Dialog>
  );
}
