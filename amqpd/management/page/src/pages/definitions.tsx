// Definitions: everything but messages, taken out as a document, and brought in after a look at what that would do.
import { useRef, useState } from "preact/hooks";
import { address, request, sentence } from "../api/client";
import { Confirm, type Consequence } from "../components/dialog";
import { Field } from "../components/form";
import { Rows } from "../components/paged-list";
import { count, plural } from "../components/format";
import { Badge, Name, Section, Table, Title } from "../components/elements";
import { VhostChoice } from "../components/vhost-select";
import { lookForVhosts } from "../shell/preferences";

interface Change {
  path: string;
  kind: string;
  vhost: string;
  name: string;
  what: "new" | "changed" | "kept";
  before: Record<string, unknown> | null;
  after: Record<string, unknown>;
}
interface Told {
  unknown: string[];
  unknown_count: number;
  skipped: { path: string; reason: string }[];
  skipped_count: number;
}
interface Difference extends Told {
  possible: boolean;
  counts: Record<string, Record<"new" | "changed" | "same" | "kept", number>>;
  changes: Change[];
  changes_left_out: number;
}
/** What is looked at, or brought in. */
interface Given {
  document: Blob;
  vhost: string;
  skip: boolean;
}

export default function Definitions() {
  return (
    <>
      <Title>Definitions</Title>
      <Export />
      <Import />
    </>
  );
}

function Export() {
  const [vhost, setVhost] = useState("");
  return (
    <Section title="Export">
      <div class="form">
        <p>Users, virtual hosts, permissions, policies, exchanges, queues and bindings as one JSON document in RabbitMQ's form; no messages. Passwords are in it as hashes.</p>
        <Field label="Of">
          <VhostChoice value={vhost} onChange={setVhost} all="the whole broker" />
        </Field>
        <p>
          <a class="button" href={address(vhost ? "/api/definitions/{vhost}" : "/api/definitions", { vhost })} download="definitions.json">
            Download definitions.json
          </a>
        </p>
      </div>
    </Section>
  );
}

function Import() {
  const [text, setText] = useState("");
  const [vhost, setVhost] = useState("");
  const [skip, setSkip] = useState(false);
  const [given, setGiven] = useState<Given>();
  const [found, setFound] = useState<Difference>();
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [asking, setAsking] = useState(false);
  const file = useRef<HTMLInputElement>(null);
  const forget = (): void => {
    setFound(undefined);
    setFailure("");
  };
  const read = async (): Promise<void> => {
    const chosen = file.current?.files?.[0];
    if (chosen) setText(await chosen.text());
    forget();
  };
  const compare = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    forget();
    setBusy(true);
    try {
      const asked = { document: documentOf(text), vhost, skip };
      setGiven(asked);
      setFound(await request<Difference>("POST", urlOf("/difference", asked), asked.document));
    } catch (error) {
      setFailure(sentence(error));
    }
    setBusy(false);
  };
  return (
    <Section title="Import">
      <form class="form" onSubmit={(event) => void compare(event)}>
        <Field label="A file">
          <input type="file" accept="application/json,.json" ref={file} onChange={() => void read()} />
        </Field>
        <Field label="or the document itself">
          <textarea
            class="code"
            rows={8}
            spellcheck={false}
            value={text}
            onInput={(event) => {
              setText(event.currentTarget.value);
              forget();
            }}
          />
        </Field>
        <Field label="Into" hint="Into one virtual host: users and other virtual hosts are passed over">
          <VhostChoice
            value={vhost}
            onChange={(name) => {
              setVhost(name);
              forget();
            }}
            all="where the document says"
          />
        </Field>
        <label class="check">
          <input
            type="checkbox"
            checked={skip}
            onChange={(event) => {
              setSkip(event.currentTarget.checked);
              forget();
            }}
          />{" "}
          leave out what cannot be, and bring in the rest
        </label>
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button class="main" disabled={busy || !text.trim()}>
            See what it would do
          </button>
        </div>
      </form>
      {found && given && (
        <>
          <Differences of={found} />
          <div class="buttons">
            <button class="danger" disabled={!found.possible} onClick={() => setAsking(true)}>
              Import it
            </button>
          </div>
        </>
      )}
      {asking && given && (
        <Confirm
          title="Import the definitions?"
          look={() => consequence(given)}
          run={() => bringIn(given)}
          onClose={(done) => {
            setAsking(false);
            if (done) {
              setFound(undefined);
              void lookForVhosts();
            }
          }}
        />
      )}
    </Section>
  );
}

function urlOf(end: string, { vhost, skip }: Given): string {
  const path = end ? `/api/amqpd/definitions${vhost ? "/{vhost}" : ""}${end}` : `/api/definitions${vhost ? "/{vhost}" : ""}`;
  return address(path, { vhost }, skip ? { skip_unsupported: true } : {});
}

/** The text as it is: a number beyond 2^53 would come out of JSON.parse as another one. */
function documentOf(text: string): Blob {
  try {
    JSON.parse(text);
    return new Blob([text]);
  } catch (error) {
    throw new Error(`This is not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** Looked at once more: something may have changed since. */
async function consequence(given: Given): Promise<Consequence> {
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
    action: `Import: ${count(fresh)} new, ${count(changed)} changed`,
    nothing: !found.possible,
  };
}

async function bringIn(given: Given): Promise<string> {
  const told = await request<Told | undefined>("POST", urlOf("", given), given.document);
  return told && told.skipped_count ? `Imported; ${plural(told.skipped_count, "item was", "items were")} left out.` : "Imported.";
}

const BADGES = { new: "good", changed: "warn", kept: "" } as const;
const WORDS = { new: "new", changed: "changes", kept: "stays as it is" } as const;

function Differences({ of }: { of: Difference }) {
  const kinds = Object.entries(of.counts);
  return (
    <div aria-live="polite">
      <h3>What it would do</h3>
      {!of.possible && <p class="failure">It would be refused as it is: {plural(of.skipped_count, "item")} cannot be.</p>}
      <Rows
        what="kinds of things in it"
        items={kinds}
        idOf={([kind]) => kind}
        columns={[
          { title: "Kind", cell: ([kind]) => kind.replace("_", " ") },
          { title: "New", number: true, cell: ([, counts]) => count(counts.new) },
          { title: "Changed", number: true, cell: ([, counts]) => count(counts.changed) },
          { title: "Other here, and stays", number: true, cell: ([, counts]) => count(counts.kept) },
          { title: "As it is", number: true, cell: ([, counts]) => count(counts.same) },
        ]}
      />
      {of.skipped.length > 0 && (
        <Rows
          what="items that cannot be"
          items={of.skipped}
          idOf={(item) => item.path}
          columns={[
            { title: "Cannot be", cell: (item) => <code>{item.path}</code> },
            { title: "Why", cell: (item) => <Name>{item.reason}</Name> },
          ]}
        />
      )}
      {of.unknown_count > 0 && (
        <p class="warning">
          {plural(of.unknown_count, "key is", "keys are")} not known and passed over: {of.unknown.slice(0, 10).join(", ")}
          {of.unknown_count > 10 ? ", …" : ""}
        </p>
      )}
      {of.changes.length > 0 && (
        <Rows<Change>
          what="differences"
          items={of.changes}
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
            { title: "Here", cell: (item) => (item.before ? <Table of={item.before} /> : "–") },
            { title: "In the document", cell: (item) => <Table of={item.after} /> },
          ]}
        />
      )}
      {of.changes_left_out > 0 && <p class="soft">and {count(of.changes_left_out)} more differences</p>}
      {of.changes.length === 0 && of.possible && <p class="note">The broker is already as the document says.</p>}
    </div>
  );
}
