// The audit log, newest first. A search goes backwards in steps, so that it shows results early in a long log.
import { useEffect, useRef, useState } from "preact/hooks";
import { apiUrl, errorText, request } from "../api/client";
import { Badge, KeyValues, Name, PageTitle } from "../components/elements";
import { Field } from "../components/form";
import { formatCount, plural } from "../components/format";
import { type Column, DataTable } from "../components/table";
import { route, setQuery } from "../shell/router";

interface Entry {
  offset: number;
  time: string;
  event: string;
  user?: string;
  front_end?: string;
  peer?: string;
  connection?: string;
  vhost?: string;
  name?: string;
  result?: string;
  reason?: string;
  count?: number;
  details?: Record<string, unknown>;
}
interface Answer {
  records: Entry[];
  first_offset: number;
  start_offset: number;
  lost: number;
}
interface SearchResult {
  entries: Entry[];
  /** The search has covered the log from this offset to its end. */
  from: number;
  ended: boolean;
  lost: number;
}

const PAGE_ENTRIES = 100;
const STEP_ENTRIES = 1000;
/** Steps of one search. The button "Older" continues it. */
const STEPS_MAX = 20;
const EVENTS = ["queue", "exchange", "binding", "vhost", "user", "permission", "policy", "parameter", "definitions", "connection", "alarm", "access", "admin"];

/** Return the entries before an offset, newest first. `before` undefined: from the end. */
async function searchBackwards(where: string, before: number | undefined, signal: AbortSignal): Promise<SearchResult> {
  const found: SearchResult = { entries: [], from: before ?? 0, ended: false, lost: 0 };
  for (let step = 0; step < STEPS_MAX && found.entries.length < PAGE_ENTRIES && !found.ended; step++) {
    const size = where ? STEP_ENTRIES : PAGE_ENTRIES;
    const url = apiUrl("/api/audit", {}, { last: size, count: size, where, before });
    const answer = await request<Answer>("GET", url, undefined, signal);
    found.entries.push(...answer.records.reverse());
    found.from = before = answer.first_offset;
    found.ended = answer.first_offset <= answer.start_offset;
    found.lost = answer.lost;
  }
  return found;
}

export default function Audit() {
  const where = route.value.query.get("where") ?? "";
  const [found, setFound] = useState<SearchResult>();
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const running = useRef<AbortController>();
  const search = async (before?: SearchResult): Promise<void> => {
    running.current?.abort();
    const controller = (running.current = new AbortController());
    setBusy(true);
    setFailure("");
    try {
      const older = await searchBackwards(where, before?.from, controller.signal);
      setFound({ ...older, entries: [...(before?.entries ?? []), ...older.entries] });
    } catch (error) {
      if (controller.signal.aborted) return;
      setFailure(errorText(error));
    }
    setBusy(false);
  };
  useEffect(() => {
    void search();
    return () => running.current?.abort();
  }, [where]);
  return (
    <>
      <PageTitle aside={<button onClick={() => void search()}>Refresh</button>}>Audit log</PageTitle>
      <Filter where={where} />
      {failure && (
        <p role="alert" class="failure">
          {failure}
        </p>
      )}
      <div class="list" aria-busy={busy && !found}>
        {found && (
          <>
            {found.lost > 0 && <p class="failure">{formatCount(found.lost)} records could not be written; see the broker's log.</p>}
            <DataTable<Entry> noun="records" items={found.entries} columns={COLUMNS} idOf={(entry) => String(entry.offset)} />
            <div class="buttons">
              <span class="grow" aria-live="polite">
                {plural(found.entries.length, "record")}{found.ended ? "; there are no older records" : where ? `; searched down to offset ${formatCount(found.from)}` : ""}
              </span>
              <button disabled={busy || found.ended} onClick={() => void search(found)}>
                {busy ? "Searching …" : "Older"}
              </button>
            </div>
          </>
        )}
      </div>
    </>
  );
}

const COLUMNS: Column<Entry>[] = [
  { title: "Time (UTC)", cell: (entry) => <time dateTime={entry.time}>{entry.time.replace("T", " ").replace("Z", "")}</time> },
  { title: "User", cell: (entry) => <Name>{entry.user ?? "–"}</Name> },
  { title: "Event", cell: (entry) => entry.event },
  { title: "Virtual host", cell: (entry) => <Name>{entry.vhost ?? "–"}</Name> },
  { title: "Object", cell: (entry) => <Name>{entry.name ?? "–"}</Name> },
  { title: "Result", cell: (entry) => <ResultCell entry={entry} /> },
  { title: "Client", cell: (entry) => <Name>{[entry.front_end, entry.peer].filter(Boolean).join(" ")}</Name> },
  { title: "Details", cell: (entry) => <DetailsCell entry={entry} /> },
];

function ResultCell({ entry }: { entry: Entry }) {
  return (
    <>
      <Badge kind={entry.result === "ok" ? "good" : "bad"}>{entry.result ?? "–"}</Badge>
      {entry.count !== undefined && entry.count > 1 && <small>{formatCount(entry.count)} times </small>}
      {entry.reason && <Name>{entry.reason}</Name>}
    </>
  );
}

function DetailsCell({ entry }: { entry: Entry }) {
  if (!entry.details || !Object.keys(entry.details).length) return <>–</>;
  return (
    <details>
      <summary>{Object.keys(entry.details).join(", ").slice(0, 60)}</summary>
      <KeyValues values={entry.details} />
    </details>
  );
}

function Filter({ where }: { where: string }) {
  const [typed, setTyped] = useState(where);
  useEffect(() => setTyped(where), [where]);
  const search = (event: SubmitEvent): void => {
    event.preventDefault();
    setQuery({ where: typed.trim() });
  };
  const choose = (clause: string): void => setQuery({ where: clause });
  return (
    <form class="card form" role="search" onSubmit={search}>
      <Field label="Selector" hint="Fields: event, user, vhost, name, result, front_end, peer, connection">
        <input class="code" spellcheck={false} autocomplete="off" placeholder="user = 'alice' AND result = 'refused'" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      </Field>
      <div class="bar">
        <span class="grow chips">
          <button type="button" class="quiet" onClick={() => choose("")}>
            all
          </button>
          <button type="button" class="quiet" onClick={() => choose("result = 'refused'")}>
            refused
          </button>
          {EVENTS.map((event) => (
            <button key={event} type="button" class="quiet" onClick={() => choose(`event LIKE '${event}.%'`)}>
              {event}
            </button>
          ))}
        </span>
        <button class="primary">Search</button>
      </div>
    </form>
  );
}
