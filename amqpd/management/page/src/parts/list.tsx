// A list of things that may be ten thousand: paged, sorted and searched by the broker; where one is in it stands in the
// address. What only fits in a page anyhow (the jobs of a queue) is a `Rows`.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, getUrl, Refusal, type Names, type Query } from "../api/client";
import { usePainted, usePoll } from "../shell/poll";
import { place, setQuery } from "../shell/router";
import { Icon } from "./icon";
import { count, plural } from "./numbers";
import { Failure, Missing } from "./text";

export interface Column<T> {
  title: string;
  cell: (item: T) => ComponentChildren;
  /** The field that the broker sorts by, dots go deeper; without one it is not sorted by this. */
  sort?: string;
  /** To the right, with figures of equal width. */
  number?: boolean;
}

interface Listed<T> {
  items: T[];
  filtered_count: number;
  total_count: number;
  page: number;
  page_count: number;
  missing_nodes?: string[];
}

interface ListProps<T> {
  /** What is listed, in the plural: "queues". */
  what: string;
  /** Of the API, with names in braces. */
  path: string;
  names?: Names;
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
}

const PAGE_SIZE = 50;
const SIZES = [25, 50, 100, 500];
const TYPED_MS = 250;
/** Lines that are painted at once, the others behind them. */
const FIRST = 20;

/** What a list asks, as the address of the page has it. */
export function listUrl({ path, names = {}, query = {}, pageSize = PAGE_SIZE, as = "" }: Pick<ListProps<unknown>, "path" | "names" | "query" | "pageSize" | "as">): string {
  const { page, size, sort, down, name, regex } = said(pageSize, as);
  return address(path, names, {
    ...query,
    page,
    page_size: size,
    ...(sort ? { sort, sort_reverse: down } : {}),
    ...(name ? { name, use_regex: regex } : {}),
  });
}

function said(pageSize: number, as: string) {
  const word = (name: string): string | null => place.value.query.get(as + name);
  return {
    page: Number(word("page") ?? 1),
    size: Number(word("size") ?? pageSize),
    sort: word("sort") ?? "",
    down: word("desc") === "1",
    name: word("q") ?? "",
    regex: word("regex") === "1",
  };
}

type Words = Record<string, string | number | undefined>;
type Say = (changes: Words) => void;

export function List<T>({ what, path, names = {}, query = {}, columns, idOf, aside, pageSize = PAGE_SIZE, searched = true, by = "name", as = "", version = 0 }: ListProps<T>) {
  const { page, size, sort, down, name, regex } = said(pageSize, as);
  const say: Say = (changes) => setQuery(Object.fromEntries(Object.entries(changes).map(([word, value]) => [as + word, value])));
  const url = listUrl({ path, names, query, pageSize, as });
  const { data, error } = usePoll((signal) => getUrl<Listed<T>>(url, signal), [url, version]);
  // A page that is no longer there: things have gone, or the search has fewer.
  const outside = error instanceof Refusal && error.reason.startsWith("Page out of range");
  useEffect(() => {
    if (outside && page > 1) say({ page: undefined });
  }, [outside]);
  const last = useRef<Listed<T>>();
  if (data) last.current = data;
  const shown = data ?? last.current;
  // As many lines as a screen has come first.
  const whole = usePainted(data !== undefined);
  const wide = searched === "many" ? name !== "" || (shown?.total_count ?? 0) > size : searched;

  return (
    <div class="list">
      <div class="bar">
        {wide && <Search what={what} by={by} text={name} regex={regex} say={say} />}
        <span class="grow" aria-live="polite">
          {shown && tally(shown, what)}
        </span>
        {aside}
      </div>
      {!outside && <Failure error={error} />}
      <Missing nodes={shown?.missing_nodes} />
      {shown && (
        <Rows
          what={what}
          items={whole ? shown.items : shown.items.slice(0, FIRST)}
          columns={columns}
          idOf={idOf}
          sort={sort}
          down={down}
          onSort={(column) => say({ sort: column, desc: sort === column && !down ? 1 : undefined, page: undefined })}
        />
      )}
      {shown && (shown.page_count > 1 || size !== pageSize) && <Pages what={what} page={page} pages={shown.page_count} size={size} pageSize={pageSize} say={say} />}
    </div>
  );
}

function tally(shown: { filtered_count: number; total_count: number }, what: string): string {
  return shown.filtered_count === shown.total_count
    ? plural(shown.total_count, what.replace(/ies$/, "y").replace(/s$/, ""), what)
    : `${count(shown.filtered_count)} of ${count(shown.total_count)} ${what}`;
}

function Search({ what, by, text, regex, say }: { what: string; by: string; text: string; regex: boolean; say: Say }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => setTyped(text), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value: string): void => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => say({ q: value, page: undefined }), TYPED_MS);
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

function Pages({ what, page, pages, size, pageSize, say }: { what: string; page: number; pages: number; size: number; pageSize: number; say: Say }) {
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
        of {count(pages)}
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
          {[...new Set([...SIZES, pageSize, size])]
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

interface RowsProps<T> {
  what: string;
  items: T[];
  columns: Column<T>[];
  idOf: (item: T) => string;
  sort?: string;
  down?: boolean;
  onSort?: (column: string) => void;
}

export function Rows<T>({ what, items, columns, idOf, sort = "", down = false, onSort }: RowsProps<T>) {
  if (!items.length) return <p class="empty">No {what}.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={what}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} scope="col" class={column.number ? "number" : ""} aria-sort={order(column, sort, down)}>
                {column.sort && onSort ? (
                  <button class="sort" onClick={() => onSort(column.sort!)}>
                    {column.title}
                    {sort === column.sort && <Icon name={down ? "down" : "up"} />}
                  </button>
                ) : (
                  column.title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <tr key={idOf(item)}>
              {columns.map((column) => (
                <td key={column.title} class={column.number ? "number" : ""}>
                  {column.cell(item)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function order<T>(column: Column<T>, sort: string, down: boolean): "ascending" | "descending" | undefined {
  return column.sort !== undefined && column.sort === sort ? (down ? "descending" : "ascending") : undefined;
}
