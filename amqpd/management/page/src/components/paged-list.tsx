// A list of things that may be ten thousand: paged, sorted and searched by the broker; where one is in it stands in the
// address. What only fits in a page anyhow (the jobs of a queue) is a `Rows`.
import type { ComponentChildren } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, getUrl, Refusal, sentence, type Names, type Query } from "../api/client";
import { usePainted, usePoll } from "../shell/poll";
import { place, setQuery } from "../shell/router";
import { Icon } from "./icon";
import { count, plural } from "./format";
import { notify } from "./notices";
import { Failure, Missing, visible, Waiting } from "./elements";

export interface Column<T> {
  title: string;
  cell: (item: T) => ComponentChildren;
  /** The field that the broker sorts by, dots go deeper; without one it is not sorted by this. */
  sort?: string;
  /** To the right, with figures of equal width. */
  number?: boolean;
  /** Shown only when the user asks for it. */
  extra?: boolean;
  /** What the broker must send for it, where that is not `sort` alone: fields with commas between. */
  fields?: string;
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
  /** What may be done with several: lines can be chosen then, and these buttons come for those that are. */
  many?: (chosen: T[], onDone: () => void) => ComponentChildren;
}

const hiddenKey = (what: string): string => `amqpd.columns.${what}`;

/** The columns that the user wants of a list, by title; kept by the browser. */
const wishes = signal<Record<string, Record<string, boolean>>>({});

function wished(what: string): Record<string, boolean> {
  const here = wishes.value[what];
  if (here) return here;
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(hiddenKey(what)) ?? "{}");
    return typeof kept === "object" && kept !== null ? (kept as Record<string, boolean>) : {};
  } catch {
    return {};
  }
}

function wish(what: string, title: string, shown: boolean): void {
  const all = { ...wished(what), [title]: shown };
  localStorage.setItem(hiddenKey(what), JSON.stringify(all));
  wishes.value = { ...wishes.value, [what]: all };
}

/** Those of a list that are shown; the first always is. */
export function chosenColumns<T>(what: string, columns: Column<T>[]): Column<T>[] {
  const all = wished(what);
  return columns.filter((column, index) => index === 0 || (all[column.title] ?? !column.extra));
}

/** What the broker must send for them, as `columns` of a query. */
export function fieldsOf<T>(base: string, columns: Column<T>[]): string {
  return [...new Set([...base.split(","), ...columns.flatMap((column) => (column.fields ?? column.sort ?? "").split(","))])].filter(Boolean).join();
}

const PAGE_SIZE = 50;
const SIZES = [25, 50, 100, 500];
/** Of the API. */
const PAGE_SIZE_MAX = 500;
/** A list of so few columns has no choice of them. */
const CHOICE_MIN = 5;
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

export function List<T>({ what, path, names = {}, query = {}, columns, idOf, aside, pageSize = PAGE_SIZE, searched = true, by = "name", as = "", version = 0, many }: ListProps<T>) {
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
  const [chosen, setChosen] = useState<ReadonlyMap<string, T>>(new Map());
  useEffect(() => setChosen(new Map()), [path, JSON.stringify(names), name, regex]);
  const shownColumns = chosenColumns(what, columns);
  const wide = searched === "many" ? name !== "" || (shown?.total_count ?? 0) > size : searched;

  return (
    <div class="list">
      <div class="bar">
        {wide && <Search what={what} by={by} text={name} regex={regex} say={say} />}
        <span class="grow" aria-live="polite">
          {shown && tally(shown, what)}
        </span>
        {columns.length > CHOICE_MIN && <ColumnChoice what={what} columns={columns} />}
        {aside}
      </div>
      {!outside && <Failure error={error} />}
      <Missing nodes={shown?.missing_nodes} />
      {!shown && error === undefined && <Waiting />}
      {many && chosen.size > 0 && shown && (
        <div class="bar chosen">
          <b aria-live="polite">{count(chosen.size)} chosen</b>
          {chosen.size < shown.filtered_count && <ChooseAll url={address(path, names, { ...query, ...(name ? { name, use_regex: regex } : {}), sort: "name" })} count={shown.filtered_count} onFound={(items: T[]) => setChosen(new Map(items.map((item) => [idOf(item), item])))} />}
          <button onClick={() => setChosen(new Map())}>Choose none</button>
          <span class="grow" />
          {many([...chosen.values()], () => setChosen(new Map()))}
        </div>
      )}
      {shown && (
        <Rows
          what={what}
          items={whole ? shown.items : shown.items.slice(0, FIRST)}
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

function ColumnChoice<T>({ what, columns }: { what: string; columns: Column<T>[] }) {
  const shown = chosenColumns(what, columns);
  const frame = useRef<HTMLDetailsElement>(null);
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const elsewhere = (event: Event): void => {
      if (event instanceof KeyboardEvent ? event.key === "Escape" : !frame.current?.contains(event.target as Node)) frame.current!.open = false;
    };
    for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, elsewhere);
    return () => {
      for (const kind of ["pointerdown", "keydown"]) removeEventListener(kind, elsewhere);
    };
  }, []);
  return (
    <details class="choose" ref={frame} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Columns</summary>
      <div class="card">
        {open &&
          columns.slice(1).map((column) => (
            <label key={column.title} class="check">
              <input type="checkbox" checked={shown.includes(column)} onChange={(event) => wish(what, column.title, event.currentTarget.checked)} /> {column.title}
            </label>
          ))}
      </div>
    </details>
  );
}

/** Of all pages, not only those of this one. */
function ChooseAll<T>({ url, count: all, onFound }: { url: string; count: number; onFound: (items: T[]) => void }) {
  const [busy, setBusy] = useState(false);
  const find = async (): Promise<void> => {
    setBusy(true);
    try {
      onFound(await allOf<T>(url));
    } catch (error) {
      notify(sentence(error), "bad");
    }
    setBusy(false);
  };
  return (
    <button disabled={busy} onClick={() => void find()}>
      Choose all {count(all)}
    </button>
  );
}

/** Each page of a list, one after the other. url: with a query. */
export async function allOf<T>(url: string): Promise<T[]> {
  const items: T[] = [];
  for (let page = 1, pages = 1; page <= pages; page += 1) {
    const found = await getUrl<Listed<T>>(`${url}&page=${page}&page_size=${PAGE_SIZE_MAX}`);
    items.push(...found.items);
    pages = found.page_count;
  }
  return items;
}

interface RowsProps<T> {
  what: string;
  items: T[];
  columns: Column<T>[];
  idOf: (item: T) => string;
  sort?: string;
  down?: boolean;
  onSort?: (column: string) => void;
  /** Which lines are chosen, by their ids. */
  chosen?: ReadonlyMap<string, T>;
  onChoose?: (chosen: ReadonlyMap<string, T>) => void;
  /** A click on a line, beside its buttons and links. */
  onOpen?: (item: T) => void;
}

export function Rows<T>({ what, items, columns, idOf, sort = "", down = false, onSort, chosen, onChoose, onOpen }: RowsProps<T>) {
  if (!items.length) return <p class="empty">No {what}.</p>;
  const choose = (of: T[], on: boolean): void => {
    const next = new Map(chosen);
    for (const item of of) if (on) next.set(idOf(item), item); else next.delete(idOf(item));
    onChoose?.(next);
  };
  const open = (event: MouseEvent, item: T): void => {
    if ((event.target as Element).closest("a, button, input, select, label") || getSelection()?.toString()) return;
    onOpen?.(item);
  };
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={what}>
      <table>
        <thead>
          <tr>
            {chosen && (
              <th class="box">
                <input type="checkbox" aria-label={`Choose all ${what} of this page`} checked={items.every((item) => chosen.has(idOf(item)))} onChange={(event) => choose(items, event.currentTarget.checked)} />
              </th>
            )}
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
            <tr key={idOf(item)} class={onOpen ? "opens" : ""} onClick={onOpen && ((event) => open(event, item))}>
              {chosen && (
                <td class="box">
                  <input type="checkbox" aria-label={`Choose ${visible(idOf(item).split("\0").at(-1) ?? "")}`} checked={chosen.has(idOf(item))} onChange={(event) => choose([item], event.currentTarget.checked)} />
                </td>
              )}
              {columns.map((column, index) => (
                <td key={column.title} class={index ? (column.number ? "number" : "") : column.number ? "first number" : "first"} data-title={column.title}>
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
