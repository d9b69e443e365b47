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
    { title: "Lag (records)", sort: "lag", number: true, cell: (item) => formatCount(item.lag) },
    { title: "Exported up to", sort: "offset", number: true, cell: (item) => formatCount(item.offset) },
    { title: "End offset", sort: "end_offset", number: true, cell: (item) => formatCount(item.end_offset) },
    { title: "Retained", sort: "kept_bytes", number: true, cell: (item) => <RetainedBytes item={item} /> },
    { title: "Stop", cell: (item) => <StopButton item={item} onDone={changed} /> },
  ];
  return (
    <>
      <PageTitle>Exports</PageTitle>
      <p class="muted">Acknowledged messages stay in the queue's log until every export has read them or their size exceeds the limit.</p>
      <PagedList<ExportStatus>
        noun="exports"
        path={chosen ? "/api/amqpd/exports/{vhost}" : "/api/amqpd/exports"}
        names={{ vhost: chosen }}
        columns={columns}
        idOf={(item) => `${item.vhost}\0${item.queue}\0${item.name}`}
        version={version}
        toolbar={<button onClick={() => setAdding(true)}>New export</button>}
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
      {formatBytes(item.kept_bytes)} of {formatBytes(item.max_bytes)} {share > 0.9 && <Badge kind="bad">oldest records will be deleted before export</Badge>}
    </>
  );
}

const urlOf = (item: ExportStatus): string => apiUrl("/api/amqpd/exports/{vhost}/{queue}/{name}", { vhost: item.vhost, queue: item.queue, name: item.name });

function StopButton({ item, onDone }: { item: ExportStatus; onDone: () => void }) {
  const preview = async (): Promise<Preview> => ({
    text: (
      <p>
        The queue retains nothing for the export <Name>{item.name}</Name> any more. {plural(item.lag, "record that it has not read stays", "records that it has not read stay")} only until consumers have acknowledged {item.lag === 1 ? "it" : "them"}.{" "}
        {formatBytes(item.kept_bytes)} retained for exports alone may be deleted at once.
      </p>
    ),
    action: "Stop the export",
  });
  const run = async (): Promise<string> => {
    await request("DELETE", urlOf(item));
    return "The export was stopped.";
  };
  return <DangerButton label="Stop" title="Stop this export?" preview={preview} run={run} onDone={onDone} {...(item.declared ? { disabled: true, disabledReason: "The queue was declared with x-export and retains records for this export until it is deleted" } : {})} />;
}

function NewExport({ onClose }: { onClose: (done: boolean) => void }) {
  const [exportVhost, setExportVhost] = useState(selectedVhost.value || (vhostOptions.value[0] ?? "/"));
  const submit = async (fields: FormData): Promise<void> => {
    const gib = fieldText(fields, "gib");
    const body = { name: fieldText(fields, "name"), ...(gib ? { max_bytes: Math.round(Number(gib) * 2 ** 30) } : {}) };
    await request("PUT", apiUrl("/api/amqpd/exports/{vhost}/{queue}", { vhost: exportVhost, queue: fieldText(fields, "queue") }), body);
    notify("The queue now retains acknowledged messages for this export.");
    onClose(true);
  };
  return (
    <Dialog title="New export" onClose={() => onClose(false)}>
      <Form action="Create the export" submit={submit}>
        <Field label="Virtual host">
          <VhostSelect value={exportVhost} onChange={setExportVhost} />
        </Field>
        <Field label="Queue" hint="Must be durable">
          <input name="queue" required autocomplete="off" />
        </Field>
        <Field label="Name of the export" hint="Letters, digits, dots, dashes and underscores">
          <input name="name" required autocomplete="off" pattern="[A-Za-z0-9_][A-Za-z0-9_.\-]*" maxLength={64} />
        </Field>
        <Field label="Maximum size in GiB" hint="Default 16. Beyond it the oldest records are deleted before export, and the broker logs this">
          <input name="gib" type="number" min={0} step="any" />
        </Field>
      </Form>
    </Dialog>
  );
}
