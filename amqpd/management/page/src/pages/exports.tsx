// Exports to a data lake: what queues keep for them and how far they are behind.
import { useState } from "preact/hooks";
import { apiUrl, request } from "../api/client";
import { DangerButton, Dialog, type Preview } from "../components/dialog";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { Field, fieldText, Form } from "../components/form";
import { formatBytes, formatCount, plural } from "../components/format";
import { notify } from "../components/notices";
import { PagedList } from "../components/paged-list";
import type { Column } from "../components/table";
import { VhostSelect } from "../components/vhost-select";
import { selectedVhost, vhostOptions } from "../shell/preferences";

interface ExportStatus {
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
  const chosen = selectedVhost.value;
  const changed = (): void => setVersion((before) => before + 1);
  const columns: Column<ExportStatus>[] = [
    { title: "Queue", sort: "queue", cell: (item) => <NameLink path={["queues", item.vhost, item.queue]}>{item.queue}</NameLink> },
    { title: "Virtual host", sort: "vhost", cell: (item) => <Name>{item.vhost}</Name> },
    { title: "Export", sort: "name", cell: (item) => <ExportName item={item} /> },
    { title: "Records behind", sort: "lag", number: true, cell: (item) => formatCount(item.lag) },
    { title: "Has all below", sort: "offset", number: true, cell: (item) => formatCount(item.offset) },
    { title: "End of the queue", sort: "end_offset", number: true, cell: (item) => formatCount(item.end_offset) },
    { title: "Kept for it", sort: "kept_bytes", number: true, cell: (item) => <RetainedBytes item={item} /> },
    { title: "Stop", cell: (item) => <StopButton item={item} onDone={changed} /> },
  ];
  return (
    <>
      <PageTitle>Exports</PageTitle>
      <p class="muted">What consumers have settled stays in the queue's log until each of its exports has it, or until that is more than the limit.</p>
      <PagedList<ExportStatus>
        noun="exports"
        path={chosen ? "/api/amqpd/exports/{vhost}" : "/api/amqpd/exports"}
        names={{ vhost: chosen }}
        columns={columns}
        idOf={(item) => `${item.vhost}\0${item.queue}\0${item.name}`}
        version={version}
        toolbar={<button onClick={() => setAdding(true)}>Keep for an export</button>}
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

function ExportName({ item }: { item: ExportStatus }) {
  return (
    <>
      <Name>{item.name}</Name> {item.declared && <Badge title="The queue is declared with x-export">declared</Badge>}
    </>
  );
}

function RetainedBytes({ item }: { item: ExportStatus }) {
  const share = item.max_bytes > 0 ? item.kept_bytes / item.max_bytes : 0;
  return (
    <>
      {formatBytes(item.kept_bytes)} of {formatBytes(item.max_bytes)} {share > 0.9 && <Badge kind="bad">the oldest go soon, unexported</Badge>}
    </>
  );
}

const urlOf = (item: ExportStatus): string => apiUrl("/api/amqpd/exports/{vhost}/{queue}/{name}", { vhost: item.vhost, queue: item.queue, name: item.name });

function StopButton({ item, onDone }: { item: ExportStatus; onDone: () => void }) {
  const preview = async (): Promise<Preview> => ({
    text: (
      <p>
        Nothing is kept for the export <Name>{item.name}</Name> any more. {plural(item.lag, "record")} it does not have yet {item.lag === 1 ? "stays" : "stay"} in the queue only until consumers have settled {item.lag === 1 ? "it" : "them"};{" "}
        {formatBytes(item.kept_bytes)} that are kept for exports alone may go at once.
      </p>
    ),
    action: "Stop keeping for it",
  });
  const run = async (): Promise<string> => {
    await request("DELETE", urlOf(item));
    return "Nothing is kept for it any more.";
  };
  return <DangerButton label="Stop" title="Stop keeping for this export?" preview={preview} run={run} onDone={onDone} {...(item.declared ? { disabled: true, disabledReason: "The queue is declared with x-export: it keeps as long as it is there" } : {})} />;
}

function NewExport({ onClose }: { onClose: (done: boolean) => void }) {
  const [exportVhost, setExportVhost] = useState(selectedVhost.value || (vhostOptions.value[0] ?? "/"));
  const submit = async (fields: FormData): Promise<void> => {
    const gib = fieldText(fields, "gib");
    const body = { name: fieldText(fields, "name"), ...(gib ? { max_bytes: Math.round(Number(gib) * 2 ** 30) } : {}) };
    await request("PUT", apiUrl("/api/amqpd/exports/{vhost}/{queue}", { vhost: exportVhost, queue: fieldText(fields, "queue") }), body);
    notify("What is settled stays from now on until that export has it.");
    onClose(true);
  };
  return (
    <Dialog title="Keep for an export" onClose={() => onClose(false)}>
      <Form action="Keep for it" submit={submit}>
        <Field label="Virtual host">
          <VhostSelect value={exportVhost} onChange={setExportVhost} />
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
