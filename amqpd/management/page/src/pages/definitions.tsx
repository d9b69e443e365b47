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
/** A document with the options of its import. */
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
        <p>Users, virtual hosts, permissions, policies, exchanges, queues and bindings as one JSON document in RabbitMQ's form; no messages. Passwords are in it as hashes.</p>
        <Field label="Of">
          <VhostSelect value={vhost} onChange={setVhost} all="the whole broker" />
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
      const asked = { document: documentOf(text), vhost, skip };
      setChecked(asked);
      setFound(await request<Difference>("POST", urlOf("/difference", asked), asked.document));
    } catch (error) {
      setFailure(errorText(error));
    }
    setBusy(false);
  };
  return (
    <Section title="Import">
      <form class="form" onSubmit={(event) => void compare(event)}>
        <Field label="A file">
          <input type="file" accept="application/json,.json" ref={file} onChange={() => void readFile()} />
        </Field>
        <Field label="or the document itself">
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
        <Field label="Into" hint="Into one virtual host: users and other virtual hosts are passed over">
          <VhostSelect
            value={vhost}
            onChange={(name) => {
              setVhost(name);
              clearResult();
            }}
            all="where the document says"
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
          leave out what cannot be, and bring in the rest
        </label>
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button class="primary" disabled={busy || !text.trim()}>
            See what it would do
          </button>
        </div>
      </form>
      {found && checked && (
        <>
          <DifferenceView difference={found} />
          <div class="buttons">
            <button class="danger" disabled={!found.possible} onClick={() => setConfirming(true)}>
              Import it
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
        {plural(fresh, "thing is", "things are")} made and {plural(changed, "thing is", "things are")} changed, all at once. Nothing is deleted, and no message is touched by that itself: policies that come may drop
        messages, which a policy's own preview tells.
      </p>
    ),
    action: `Import: ${formatCount(fresh)} new, ${formatCount(changed)} changed`,
    nothingToDo: !found.possible,
  };
}

async function runImport(given: ImportRequest): Promise<string> {
  const told = await request<ImportReport | undefined>("POST", urlOf("", given), given.document);
  return told && told.skipped_count ? `Imported; ${plural(told.skipped_count, "item was", "items were")} left out.` : "Imported.";
}

const BADGES = { new: "good", changed: "warn", kept: "" } as const;
const WORDS = { new: "new", changed: "changes", kept: "stays as it is" } as const;

function DifferenceView({ difference }: { difference: Difference }) {
  const kinds = Object.entries(difference.counts);
  return (
    <div aria-live="polite">
      <h3>What it would do</h3>
      {!difference.possible && <p class="failure">It would be refused as it is: {plural(difference.skipped_count, "item")} cannot be.</p>}
      <DataTable
        noun="kinds of things in it"
        items={kinds}
        idOf={([kind]) => kind}
        columns={[
          { title: "Kind", cell: ([kind]) => kind.replace("_", " ") },
          { title: "New", number: true, cell: ([, counts]) => formatCount(counts.new) },
          { title: "Changed", number: true, cell: ([, counts]) => formatCount(counts.changed) },
          { title: "Other here, and stays", number: true, cell: ([, counts]) => formatCount(counts.kept) },
          { title: "As it is", number: true, cell: ([, counts]) => formatCount(counts.same) },
        ]}
      />
      {difference.skipped.length > 0 && (
        <DataTable
          noun="items that cannot be"
          items={difference.skipped}
          idOf={(item) => item.path}
          columns={[
            { title: "Cannot be", cell: (item) => <code>{item.path}</code> },
            { title: "Why", cell: (item) => <Name>{item.reason}</Name> },
          ]}
        />
      )}
      {difference.unknown_count > 0 && (
        <p class="warning">
          {plural(difference.unknown_count, "key is", "keys are")} not known and passed over: {difference.unknown.slice(0, 10).join(", ")}
          {difference.unknown_count > 10 ? ", …" : ""}
        </p>
      )}
      {difference.changes.length > 0 && (
        <DataTable<Change>
          noun="differences"
          items={difference.changes}
          idOf={(item) => item.path}
          columns={[
            { title: "What", cell: (item) => <Badge kind={BADGES[item.what]}>{WORDS[item.what]}</Badge> },
            {
              title: "Of",
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
            { title: "Here", cell: (item) => (item.before ? <KeyValues values={item.before} /> : "–") },
            { title: "In the document", cell: (item) => <KeyValues values={item.after} /> },
          ]}
        />
      )}
      {difference.changes_left_out > 0 && <p class="muted">and {formatCount(difference.changes_left_out)} more differences</p>}
      {difference.changes.length === 0 && difference.possible && <p class="note">The broker is already as the document says.</p>}
    </div>
  );
}
