// A list of things that may be ten thousand: paged, sorted and searched by the broker; where one is in it stands in the
// address. What only fits in a page anyhow (the consumers of a queue) is a `Rows`.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, getUrl, Refusal, type Names, type Query } from "../api/client";
import { usePoll } from "../shell/poll";
import { place, setQuery } from "../shell/router";
import { Icon } from "./icon";
import { count } from "./numbers";
import { Failure } from "./text";

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
  /** Whether it can be searched by name. */
  searched?: boolean;
  /** Another value asks anew at once: after a change. */
  version?: number;
}

const PAGE_SIZE = 50;
const SIZES = [25, 50, 100, 500];
const TYPED_MS = 250;

/** What a list asks, as the address of the page has it. */
export function listUrl({ path, names = {}, query = {}, pageSize = PAGE_SIZE }: Pick<ListProps<unknown>, "path" | "names" | "query" | "pageSize">): string {
  const { page, size, sort, down, name, regex } = said(pageSize);
  return address(path, names, {
    ...query,
    page,
    page_size: size,
    ...(sort ? { sort, sort_reverse: down } : {}),
    ...(name ? { name, use_regex: regex } : {}),
  });
}

function said(pageSize: number) {
  const query = place.value.query;
  return {
    page: Number(query.get("page") ?? 1),
    size: Number(query.get("size") ?? pageSize),
    sort: query.get("sort") ?? "",
    down: query.get("desc") === "1",
    name: query.get("q") ?? "",
    regex: query.get("regex") === "1",
  };
}

export function List<T>({ what, path, names = {}, query = {}, columns, idOf, aside, pageSize = PAGE_SIZE, searched = true, version = 0 }: ListProps<T>) {
  const { page, size, sort, down, name, regex } = said(pageSize);
  const url = listUrl({ path, names, query, pageSize });
  const { data, error } = usePoll((signal) => getUrl<Listed<T>>(url, signal), [url, version]);
  // A page that is no longer there: things have gone, or the search has fewer.
  const outside = error instanceof Refusal && error.reason.startsWith("Page out of range");
  useEffect(() => {
    if (outside && page > 1) setQuery({ page: undefined });
  }, [outside]);
  const last = useRef<Listed<T>>();
  if (data) last.current = data;
  const shown = data ?? last.current;

  return (
    <div class="list">
      <div class="bar">
        {searched && <Search what={what} text={name} regex={regex} />}
        <span class="grow" aria-live="polite">
          {shown && tally(shown, what)}
        </span>
        {aside}
      </div>
      {!outside && <Failure error={error} />}
      {shown && (
        <Rows
          what={what}
          items={shown.items}
          columns={columns}
          idOf={idOf}
          sort={sort}
          down={down}
          onSort={(column) => setQuery({ sort: column, desc: sort === column && !down ? 1 : undefined, page: undefined })}
        />
      )}
      {shown && (shown.page_count > 1 || size !== pageSize) && <Pages what={what} page={page} pages={shown.page_count} size={size} pageSize={pageSize} />}
    </div>
  );
}

function tally(shown: { filtered_count: number; total_count: number }, what: string): string {
  return shown.filtered_count === shown.total_count
    ? `${count(shown.total_count)} ${what}`
    : `${count(shown.filtered_count)} of ${count(shown.total_count)} ${what}`;
}

function Search({ what, text, regex }: { what: string; text: string; regex: boolean }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => setTyped(text), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value: string): void => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ q: value, page: undefined }), TYPED_MS);
  };
  return (
    <form role="search" class="search" onSubmit={(event) => event.preventDefault()}>
      <input type="search" aria-label={`Search ${what} by name`} placeholder="name contains" value={typed} onInput={(event) => type(event.currentTarget.value)} />
      <label title="RE2 syntax">
        <input type="checkbox" checked={regex} onChange={(event) => setQuery({ regex: event.currentTarget.checked ? 1 : undefined, page: undefined })} />
        regular expression
      </label>
    </form>
  );
}

function Pages({ what, page, pages, size, pageSize }: { what: string; page: number; pages: number; size: number; pageSize: number }) {
  const turn = (to: number): void => setQuery({ page: to === 1 ? undefined : to });
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
        <select value={size} onChange={(event) => setQuery({ size: Number(event.currentTarget.value) === pageSize ? undefined : event.currentTarget.value, page: undefined })}>
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
