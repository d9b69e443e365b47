// Export and import of definitions. An import first shows what it would change.
import { useRef, useState } from "preact/hooks";
import { apiUrl, errorText, request } from "../api/client";
import { ConfirmDialog, type Preview } from "../components/dialog";
import { Badge, KeyValues, Name, PageTitle, Section } from "../components/elements";
import { Field } from "../components/form";
import { formatCount, plural } from "../components/format";
import { DataTable } from "../components/table";
import { VhostSelect } from "../components/vhost-select";
import { loadVhosts } from "../shell/preferences";

interface Change {
  path: string;
  kind: string;
  vhost: string;
  name: string;
  what: "new" | "changed" | "kept";
  before: Record<string, unknown> | null;
  after: Record<string, unknown>;
}
interface ImportReport {
  unknown: string[];
  unknown_count: number;
  skipped: { path: string; reason: string }[];
  skipped_count: number;
}
interface Difference extends ImportReport {
  possible: boolean;
  counts: Record<string, Record<"new" | "changed" | "same" | "kept", number>>;
  changes: Change[];
  changes_left_out: number;
}
interface ImportRequest {
  document: Blob;
  vhost: string;
  skip: boolean;
}

export default function Definitions() {
  return (
    <>
      <PageTitle>Definitions</PageTitle>
      <ExportSection />
      <ImportSection />
    </>
  );
}

function ExportSection() {
  const [vhost, setVhost] = useState("");
  return (
    <Section title="Export">
      <div class="form">
        <p>Users, virtual hosts, permissions, policies, exchanges, queues and bindings as one JSON document in RabbitMQ's format, without messages. It has hashes of passwords.</p>
        <Field label="Virtual host">
          <VhostSelect value={vhost} onChange={setVhost} all="All virtual hosts" />
        </Field>
        <p>
          <a class="button" href={apiUrl(vhost ? "/api/definitions/{vhost}" : "/api/definitions", { vhost })} download="definitions.json">
            Download definitions.json
          </a>
        </p>
      </div>
    </Section>
  );
}

function ImportSection() {
  const [text, setText] = useState("");
  const [vhost, setVhost] = useState("");
  const [skip, setSkip] = useState(false);
  const [checked, setChecked] = useState<ImportRequest>();
  const [found, setFound] = useState<Difference>();
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [confirming, setConfirming] = useState(false);
  const file = useRef<HTMLInputElement>(null);
  const clearResult = (): void => {
    setFound(undefined);
    setFailure("");
  };
  const readFile = async (): Promise<void> => {
    const chosen = file.current?.files?.[0];
    if (chosen) setText(await chosen.text());
    clearResult();
  };
  const compare = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    clearResult();
    setBusy(true);
    try {
      const importRequest = { document: documentOf(text), vhost, skip };
      setChecked(importRequest);
      setFound(await request<Difference>("POST", urlOf("/difference", importRequest), importRequest.document));
    } catch (error) {
      setFailure(errorText(error));
    }
    setBusy(false);
  };
  return (
    <Section title="Import">
      <form class="form" onSubmit={(event) => void compare(event)}>
        <Field label="File">
          <input type="file" accept="application/json,.json" ref={file} onChange={() => void readFile()} />
        </Field>
        <Field label="Or paste the document">
          <textarea
            class="code"
            rows={8}
            spellcheck={false}
            value={text}
            onInput={(event) => {
              setText(event.currentTarget.value);
              clearResult();
            }}
          />
        </Field>
        <Field label="Into virtual host" hint="An import into one virtual host ignores users and other virtual hosts">
          <VhostSelect
            value={vhost}
            onChange={(name) => {
              setVhost(name);
              clearResult();
            }}
            all="As in the document"
          />
        </Field>
        <label class="checkbox">
          <input
            type="checkbox"
            checked={skip}
            onChange={(event) => {
              setSkip(event.currentTarget.checked);
              clearResult();
            }}
          />{" "}
          skip unsupported items and import the others
        </label>
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button class="primary" disabled={busy || !text.trim()}>
            Preview
          </button>
        </div>
      </form>
      {found && checked && (
        <>
          <DifferenceView difference={found} />
          <div class="buttons">
            <button class="danger" disabled={!found.possible} onClick={() => setConfirming(true)}>
              Import
            </button>
          </div>
        </>
      )}
      {confirming && checked && (
        <ConfirmDialog
          title="Import the definitions?"
          preview={() => previewImport(checked)}
          run={() => runImport(checked)}
          onClose={(done) => {
            setConfirming(false);
            if (done) {
              setFound(undefined);
              void loadVhosts();
            }
          }}
        />
      )}
    </Section>
  );
}

function urlOf(end: string, { vhost, skip }: ImportRequest): string {
  const path = end ? `/api/amqpd/definitions${vhost ? "/{vhost}" : ""}${end}` : `/api/definitions${vhost ? "/{vhost}" : ""}`;
  return apiUrl(path, { vhost }, skip ? { skip_unsupported: true } : {});
}

/** Return the text unchanged: JSON.parse would change numbers beyond 2^53. */
function documentOf(text: string): Blob {
  try {
    JSON.parse(text);
    return new Blob([text]);
  } catch (error) {
    throw new Error(`This is not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** Compare once more, because the broker may have changed since. */
async function previewImport(given: ImportRequest): Promise<Preview> {
  const found = await request<Difference>("POST", `${urlOf("/difference", given)}${given.skip ? "&" : "?"}count=0`, given.document);
  const total = (what: "new" | "changed"): number => Object.values(found.counts).reduce((sum, counts) => sum + counts[what], 0);
  const [fresh, changed] = [total("new"), total("changed")];
  return {
    text: (
      <p>
        The import creates {plural(fresh, "object")} and changes {plural(changed, "object")} in one step. It deletes nothing. An imported policy may drop messages; the preview on the page Policies shows how many.
      </p>
    ),
    action: `Import: ${formatCount(fresh)} new, ${formatCount(changed)} changed`,
    nothingToDo: !found.possible,
  };
}

async function runImport(given: ImportRequest): Promise<string> {
  const report = await request<ImportReport | undefined>("POST", urlOf("", given), given.document);
  return report && report.skipped_count ? `Imported; ${plural(report.skipped_count, "item was", "items were")} skipped.` : "Imported.";
}

const BADGES = { new: "good", changed: "warn", kept: "" } as const;
const WORDS = { new: "new", changed: "changed", kept: "not changed" } as const;

function DifferenceView({ difference }: { difference: Difference }) {
  const kinds = Object.entries(difference.counts);
  return (
    <div aria-live="polite">
      <h3>Preview</h3>
      {!difference.possible && <p class="failure">The import would be refused: {plural(difference.skipped_count, "item is", "items are")} not supported.</p>}
      <DataTable
        noun="kinds of objects"
        items={kinds}
        idOf={([kind]) => kind}
        columns={[
          { title: "Kind", cell: ([kind]) => kind.replace("_", " ") },
          { title: "New", number: true, cell: ([, counts]) => formatCount(counts.new) },
          { title: "Changed", number: true, cell: ([, counts]) => formatCount(counts.changed) },
          { title: "Different, not changed", number: true, cell: ([, counts]) => formatCount(counts.kept) },
          { title: "Identical", number: true, cell: ([, counts]) => formatCount(counts.same) },
        ]}
      />
      {difference.skipped.length > 0 && (
        <DataTable
          noun="unsupported items"
          items={difference.skipped}
          idOf={(item) => item.path}
          columns={[
            { title: "Unsupported", cell: (item) => <code>{item.path}</code> },
            { title: "Reason", cell: (item) => <Name>{item.reason}</Name> },
          ]}
        />
      )}
      {difference.unknown_count > 0 && (
        <p class="warning">
          {plural(difference.unknown_count, "key is", "keys are")} unknown and will be ignored: {difference.unknown.slice(0, 10).join(", ")}
          {difference.unknown_count > 10 ? ", …" : ""}
        </p>
      )}
      {difference.changes.length > 0 && (
        <DataTable<Change>
          noun="differences"
          items={difference.changes}
          idOf={(item) => item.path}
          columns={[
            { title: "Change", cell: (item) => <Badge kind={BADGES[item.what]}>{WORDS[item.what]}</Badge> },
            {
              title: "Object",
              cell: (item) => (
                <>
                  {item.kind.replace("_", " ")} <Name>{item.name}</Name>
                  {item.vhost && (
                    <small>
                      {" "}
                      in <Name>{item.vhost}</Name>
                    </small>
                  )}
                </>
              ),
            },
            { title: "In the broker", cell: (item) => (item.before ? <KeyValues values={item.before} /> : "–") },
            { title: "In the document", cell: (item) => <KeyValues values={item.after} /> },
          ]}
        />
      )}
      {difference.changes_left_out > 0 && <p class="muted">and {formatCount(difference.changes_left_out)} more differences</p>}
      {difference.changes.length === 0 && difference.possible && <p class="note">The broker already has everything in the document.</p>}
    </div>
  );
}
