// A list of things that may be ten thousand: paged, sorted and searched by the broker; where one is in it stands in the
// address. What only fits in a page anyhow (the jobs of a queue) is a `Rows`.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, apiUrl, errorText, getUrl, type PathNames, type Query } from "../api/client";
import { useAfterPaint, usePoll } from "../shell/poll";
import { route, setQuery } from "../shell/router";
import { ErrorMessage, Loading, MissingNodes } from "./elements";
import { formatCount, plural } from "./format";
import { notify } from "./notices";
import { type Column, ColumnChoice, DataTable, visibleColumns } from "./table";

interface ListPage<T> {
  items: T[];
  filtered_count: number;
  total_count: number;
  page: number;
  page_count: number;
  missing_nodes?: string[];
}

interface PagedListProps<T> {
  /** What is listed, in the plural: "queues". */
  what: string;
  /** Of the API, with names in braces. */
  path: string;
  names?: PathNames;
  query?: Query;
  columns: Column<T>[];
  idOf: (item: T) => string;
  /** What stands beside the search: buttons. */
  aside?: ComponentChildren;
  pageSize?: number;
  /** Whether it can be searched; "many": once it has more than a page. */
  searched?: boolean | "many";
  /** What it is searched by. */
  by?: string;
  /** Where a page has several lists: what the words of this one begin with in the address. */
  as?: string;
  /** Another value asks anew at once: after a change. */
  version?: number;
  /** What may be done with several: lines can be chosen then, and these buttons come for those that are. */
  many?: (chosen: T[], onDone: () => void) => ComponentChildren;
}

const PAGE_SIZE = 50;
const PAGE_SIZES = [25, 50, 100, 500];
/** Of the API. */
const PAGE_SIZE_MAX = 500;
/** A list of so few columns has no choice of them. */
const CHOICE_COLUMNS_MIN = 5;
const TYPING_PAUSE_MS = 250;
/** Lines that are painted at once, the others behind them. */
const FIRST_ROWS = 20;

/** What a list asks, as the address of the page has it. */
export function listUrl({ path, names = {}, query = {}, pageSize = PAGE_SIZE, as = "" }: Pick<PagedListProps<unknown>, "path" | "names" | "query" | "pageSize" | "as">): string {
  const { page, size, sort, down, name, regex } = listQuery(pageSize, as);
  return apiUrl(path, names, {
    ...query,
    page,
    page_size: size,
    ...(sort ? { sort, sort_reverse: down } : {}),
    ...(name ? { name, use_regex: regex } : {}),
  });
}

function listQuery(pageSize: number, as: string) {
  const word = (name: string): string | null => route.value.query.get(as + name);
  return {
    page: Number(word("page") ?? 1),
    size: Number(word("size") ?? pageSize),
    sort: word("sort") ?? "",
    down: word("desc") === "1",
    name: word("q") ?? "",
    regex: word("regex") === "1",
  };
}

type QueryChanges = Record<string, string | number | undefined>;
type SetListQuery = (changes: QueryChanges) => void;

export function PagedList<T>({ what, path, names = {}, query = {}, columns, idOf, aside, pageSize = PAGE_SIZE, searched = true, by = "name", as = "", version = 0, many }: PagedListProps<T>) {
  const { page, size, sort, down, name, regex } = listQuery(pageSize, as);
  const say: SetListQuery = (changes) => setQuery(Object.fromEntries(Object.entries(changes).map(([word, value]) => [as + word, value])));
  const url = listUrl({ path, names, query, pageSize, as });
  const { data, error } = usePoll((signal) => getUrl<ListPage<T>>(url, signal), [url, version]);
  // A page that is no longer there: things have gone, or the search has fewer.
  const outside = error instanceof ApiError && error.reason.startsWith("Page out of range");
  useEffect(() => {
    if (outside && page > 1) say({ page: undefined });
  }, [outside]);
  const last = useRef<ListPage<T>>();
  if (data) last.current = data;
  const shown = data ?? last.current;
  // As many lines as a screen has come first.
  const whole = useAfterPaint(data !== undefined);
  const [chosen, setChosen] = useState<ReadonlyMap<string, T>>(new Map());
  useEffect(() => setChosen(new Map()), [path, JSON.stringify(names), name, regex]);
  const shownColumns = visibleColumns(what, columns);
  const wide = searched === "many" ? name !== "" || (shown?.total_count ?? 0) > size : searched;

  return (
    <div class="list">
      <div class="bar">
        {wide && <Search what={what} by={by} text={name} regex={regex} say={say} />}
        <span class="grow" aria-live="polite">
          {shown && countText(shown, what)}
        </span>
        {columns.length > CHOICE_COLUMNS_MIN && <ColumnChoice what={what} columns={columns} />}
        {aside}
      </div>
      {!outside && <ErrorMessage error={error} />}
      <MissingNodes nodes={shown?.missing_nodes} />
      {!shown && error === undefined && <Loading />}
      {many && chosen.size > 0 && shown && (
        <div class="bar chosen">
          <b aria-live="polite">{formatCount(chosen.size)} chosen</b>
          {chosen.size < shown.filtered_count && <SelectAll url={apiUrl(path, names, { ...query, ...(name ? { name, use_regex: regex } : {}), sort: "name" })} count={shown.filtered_count} onFound={(items: T[]) => setChosen(new Map(items.map((item) => [idOf(item), item])))} />}
          <button onClick={() => setChosen(new Map())}>Choose none</button>
          <span class="grow" />
          {many([...chosen.values()], () => setChosen(new Map()))}
        </div>
      )}
      {shown && (
        <DataTable
          what={what}
          items={whole ? shown.items : shown.items.slice(0, FIRST_ROWS)}
          columns={shownColumns}
          idOf={idOf}
          {...(many ? { chosen, onChoose: setChosen } : {})}
          sort={sort}
          down={down}
          onSort={(column) => say({ sort: column, desc: sort === column && !down ? 1 : undefined, page: undefined })}
        />
      )}
      {shown && (shown.page_count > 1 || size !== pageSize) && <Pages what={what} page={page} pages={shown.page_count} size={size} pageSize={pageSize} say={say} />}
    </div>
  );
}

function countText(shown: { filtered_count: number; total_count: number }, what: string): string {
  return shown.filtered_count === shown.total_count
    ? plural(shown.total_count, what.replace(/ies$/, "y").replace(/s$/, ""), what)
    : `${formatCount(shown.filtered_count)} of ${formatCount(shown.total_count)} ${what}`;
}

function Search({ what, by, text, regex, say }: { what: string; by: string; text: string; regex: boolean; say: SetListQuery }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => setTyped(text), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value: string): void => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => say({ q: value, page: undefined }), TYPING_PAUSE_MS);
  };
  return (
    <form role="search" class="search" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label={`Search ${what} by ${by}`} placeholder={`${by} contains`} value={typed} onInput={(event) => type(event.currentTarget.value)} />
      <label title="RE2 syntax">
        <input type="checkbox" checked={regex} onChange={(event) => say({ regex: event.currentTarget.checked ? 1 : undefined, page: undefined })} />
        regular expression
      </label>
    </form>
  );
}

function Pages({ what, page, pages, size, pageSize, say }: { what: string; page: number; pages: number; size: number; pageSize: number; say: SetListQuery }) {
  const turn = (to: number): void => say({ page: to === 1 ? undefined : to });
  return (
    <nav class="pages" aria-label={`Pages of ${what}`}>
      <button disabled={page <= 1} onClick={() => turn(1)}>
        First
      </button>
      <button disabled={page <= 1} onClick={() => turn(page - 1)}>
        Previous
      </button>
      <label>
        Page{" "}
        <input
          type="number"
          min={1}
          max={pages}
          value={page}
          onChange={(event) => turn(Math.min(pages, Math.max(1, Number(event.currentTarget.value) || 1)))}
        />{" "}
        of {formatCount(pages)}
      </label>
      <button disabled={page >= pages} onClick={() => turn(page + 1)}>
        Next
      </button>
      <button disabled={page >= pages} onClick={() => turn(pages)}>
        Last
      </button>
      <label>
        <span class="hidden">Lines on a page</span>
        <select value={size} onChange={(event) => say({ size: Number(event.currentTarget.value) === pageSize ? undefined : event.currentTarget.value, page: undefined })}>
          {[...new Set([...PAGE_SIZES, pageSize, size])]
            .sort((a, b) => a - b)
            .map((each) => (
              <option key={each} value={each}>
                {each} a page
              </option>
            ))}
        </select>
      </label>
    </nav>
  );
}

/** Of all pages, not only those of this one. */
function SelectAll<T>({ url, count: all, onFound }: { url: string; count: number; onFound: (items: T[]) => void }) {
  const [busy, setBusy] = useState(false);
  const find = async (): Promise<void> => {
    setBusy(true);
    try {
      onFound(await fetchAll<T>(url));
    } catch (error) {
      notify(errorText(error), "bad");
    }
    setBusy(false);
  };
  return (
    <button disabled={busy} onClick={() => void find()}>
      Choose all {formatCount(all)}
    </button>
  );
}

/** Each page of a list, one after the other. url: with a query. */
export async function fetchAll<T>(url: string): Promise<T[]> {
  const items: T[] = [];
  for (let page = 1, pages = 1; page <= pages; page += 1) {
    const found = await getUrl<ListPage<T>>(`${url}&page=${page}&page_size=${PAGE_SIZE_MAX}`);
    items.push(...found.items);
    pages = found.page_count;
  }
  return items;
}
