// A list that the broker pages, sorts and searches, for up to tens of thousands of items. Page, order and search are
// kept in the address. A short list is a `DataTable`.
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
  /** The listed objects in the plural: "queues". */
  noun: string;
  path: string;
  names?: PathNames;
  query?: Query;
  columns: Column<T>[];
  idOf: (item: T) => string;
  toolbar?: ComponentChildren;
  pageSize?: number;
  /** "many": show the search only if there is more than one page. */
  searchable?: boolean | "many";
  searchLabel?: string;
  /** Prefix of the query names in the address, if a page has several lists. */
  queryPrefix?: string;
  /** The list reloads when this changes, after an action. */
  version?: number;
  /** Actions on several selected rows. Without it rows cannot be selected. */
  bulkActions?: (chosen: T[], onDone: () => void) => ComponentChildren;
}

const PAGE_SIZE = 50;
const PAGE_SIZES = [25, 50, 100, 500];
/** The API allows no more. */
const PAGE_SIZE_MAX = 500;
/** Up to so many columns there is no choice of columns. */
const CHOICE_COLUMNS_MIN = 5;
const TYPING_PAUSE_MS = 250;
/** Rows of the first paint; the other rows follow. */
const FIRST_ROWS = 20;

/** Return the URL that a list requests, with the page, order and search of the address. */
export function listUrl({ path, names = {}, query = {}, pageSize = PAGE_SIZE, queryPrefix = "" }: Pick<PagedListProps<unknown>, "path" | "names" | "query" | "pageSize" | "queryPrefix">): string {
  const { page, size, sort, down, name, regex } = listQuery(pageSize, queryPrefix);
  return apiUrl(path, names, {
    ...query,
    page,
    page_size: size,
    ...(sort ? { sort, sort_reverse: down } : {}),
    ...(name ? { name, use_regex: regex } : {}),
  });
}

function listQuery(pageSize: number, prefix: string) {
  const word = (name: string): string | null => route.value.query.get(prefix + name);
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

export function PagedList<T>({ noun, path, names = {}, query = {}, columns, idOf, toolbar, pageSize = PAGE_SIZE, searchable = true, searchLabel = "name", queryPrefix = "", version = 0, bulkActions }: PagedListProps<T>) {
  const { page, size, sort, down, name, regex } = listQuery(pageSize, queryPrefix);
  const setListQuery: SetListQuery = (changes) => setQuery(Object.fromEntries(Object.entries(changes).map(([word, value]) => [queryPrefix + word, value])));
  const url = listUrl({ path, names, query, pageSize, queryPrefix });
  const { data, error } = usePoll((signal) => getUrl<ListPage<T>>(url, signal), [url, version]);
  // The page number is too high: items were deleted, or the search matches fewer.
  const outside = error instanceof ApiError && error.reason.startsWith("Page out of range");
  useEffect(() => {
    if (outside && page > 1) setListQuery({ page: undefined });
  }, [outside]);
  const last = useRef<ListPage<T>>();
  if (data) last.current = data;
  const shown = data ?? last.current;
  // First paint as many rows as fit on a screen.
  const showsAll = useAfterPaint(data !== undefined);
  const [chosen, setChosen] = useState<ReadonlyMap<string, T>>(new Map());
  useEffect(() => setChosen(new Map()), [path, JSON.stringify(names), name, regex]);
  const shownColumns = visibleColumns(noun, columns);
  const wide = searchable === "many" ? name !== "" || (shown?.total_count ?? 0) > size : searchable;

  return (
    <div class="list">
      <div class="bar">
        {wide && <Search noun={noun} by={searchLabel} text={name} regex={regex} setListQuery={setListQuery} />}
        <span class="grow" aria-live="polite">
          {shown && countText(shown, noun)}
        </span>
        {columns.length > CHOICE_COLUMNS_MIN && <ColumnChoice noun={noun} columns={columns} />}
        {toolbar}
      </div>
      {!outside && <ErrorMessage error={error} />}
      <MissingNodes nodes={shown?.missing_nodes} />
      {!shown && error === undefined && <Loading />}
      {bulkActions && chosen.size > 0 && shown && (
        <div class="bar selection">
          <b aria-live="polite">{formatCount(chosen.size)} selected</b>
          {chosen.size < shown.filtered_count && <SelectAll url={apiUrl(path, names, { ...query, ...(name ? { name, use_regex: regex } : {}), sort: "name" })} count={shown.filtered_count} onFound={(items: T[]) => setChosen(new Map(items.map((item) => [idOf(item), item])))} />}
          <button onClick={() => setChosen(new Map())}>Clear selection</button>
          <span class="grow" />
          {bulkActions([...chosen.values()], () => setChosen(new Map()))}
        </div>
      )}
      {shown && (
        <DataTable
          noun={noun}
          items={showsAll ? shown.items : shown.items.slice(0, FIRST_ROWS)}
          columns={shownColumns}
          idOf={idOf}
          {...(bulkActions ? { chosen, onChoose: setChosen } : {})}
          sort={sort}
          down={down}
          onSort={(column) => setListQuery({ sort: column, desc: sort === column && !down ? 1 : undefined, page: undefined })}
        />
      )}
      {shown && (shown.page_count > 1 || size !== pageSize) && <Pages noun={noun} page={page} pages={shown.page_count} size={size} pageSize={pageSize} setListQuery={setListQuery} />}
    </div>
  );
}

function countText(shown: { filtered_count: number; total_count: number }, noun: string): string {
  return shown.filtered_count === shown.total_count
    ? plural(shown.total_count, noun.replace(/ies$/, "y").replace(/s$/, ""), noun)
    : `${formatCount(shown.filtered_count)} of ${formatCount(shown.total_count)} ${noun}`;
}

function Search({ noun, by, text, regex, setListQuery }: { noun: string; by: string; text: string; regex: boolean; setListQuery: SetListQuery }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => setTyped(text), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value: string): void => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setListQuery({ q: value, page: undefined }), TYPING_PAUSE_MS);
  };
  return (
    <form role="search" class="search" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label={`Search ${noun} by ${by}`} placeholder={`${by} contains`} value={typed} onInput={(event) => type(event.currentTarget.value)} />
      <label title="RE2 syntax">
        <input type="checkbox" checked={regex} onChange={(event) => setListQuery({ regex: event.currentTarget.checked ? 1 : undefined, page: undefined })} />
        regular expression
      </label>
    </form>
  );
}

function Pages({ noun, page, pages, size, pageSize, setListQuery }: { noun: string; page: number; pages: number; size: number; pageSize: number; setListQuery: SetListQuery }) {
  const turn = (to: number): void => setListQuery({ page: to === 1 ? undefined : to });
  return (
    <nav class="pages" aria-label={`Pages of ${noun}`}>
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
        <span class="visually-hidden">Rows per page</span>
        <select value={size} onChange={(event) => setListQuery({ size: Number(event.currentTarget.value) === pageSize ? undefined : event.currentTarget.value, page: undefined })}>
          {[...new Set([...PAGE_SIZES, pageSize, size])]
            .sort((a, b) => a - b)
            .map((each) => (
              <option key={each} value={each}>
                {each} per page
              </option>
            ))}
        </select>
      </label>
    </nav>
  );
}

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
      Select all {formatCount(all)}
    </button>
  );
}

/** Fetch all pages of a list, one after the other. `url` must have a query. */
export async function fetchAll<T>(url: string): Promise<T[]> {
  const items: T[] = [];
  for (let page = 1, pages = 1; page <= pages; page += 1) {
    const found = await getUrl<ListPage<T>>(`${url}&page=${page}&page_size=${PAGE_SIZE_MAX}`);
    items.push(...found.items);
    pages = found.page_count;
  }
  return items;
}
