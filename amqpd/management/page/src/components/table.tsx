import type { ComponentChildren } from "preact";
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, showInvisible } from "./elements";

export interface Column<T> {
  title: string;
  cell: (item: T) => ComponentChildren;
  /** Field that the broker sorts by, with dots for nested fields. Without it the column cannot be sorted. */
  sort?: string;
  /** Right-aligned, with digits of equal width. */
  number?: boolean;
  /** Hidden until the user selects it. */
  extra?: boolean;
  /** Comma-separated fields that the cell needs, if they are more than `sort`. */
  fields?: string;
}

interface DataTableProps<T> {
  noun: string;
  items: T[];
  columns: Column<T>[];
  idOf: (item: T) => string;
  sort?: string;
  down?: boolean;
  onSort?: (column: string) => void;
  chosen?: ReadonlyMap<string, T>;
  onChoose?: (chosen: ReadonlyMap<string, T>) => void;
  /** Called for a click on a row, except on its buttons and links. */
  onOpen?: (item: T) => void;
}

export function DataTable<T>({ noun, items, columns, idOf, sort = "", down = false, onSort, chosen, onChoose, onOpen }: DataTableProps<T>) {
  if (!items.length) return <p class="empty">No {noun}.</p>;
  const choose = (changed: T[], on: boolean): void => {
    const next = new Map(chosen);
    for (const item of changed) if (on) next.set(idOf(item), item); else next.delete(idOf(item));
    onChoose?.(next);
  };
  const open = (event: MouseEvent, item: T): void => {
    if ((event.target as Element).closest("a, button, input, select, label") || getSelection()?.toString()) return;
    onOpen?.(item);
  };
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={noun}>
      <table>
        <thead>
          <tr>
            {chosen && (
              <th class="select-cell">
                <input type="checkbox" aria-label={`Select all ${noun} of this page`} checked={items.every((item) => chosen.has(idOf(item)))} onChange={(event) => choose(items, event.currentTarget.checked)} />
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
            <tr key={idOf(item)} class={onOpen ? "clickable" : ""} onClick={onOpen && ((event) => open(event, item))}>
              {chosen && (
                <td class="select-cell">
                  <input type="checkbox" aria-label={`Select ${showInvisible(idOf(item).split("\0").at(-1) ?? "")}`} checked={chosen.has(idOf(item))} onChange={(event) => choose([item], event.currentTarget.checked)} />
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

const columnsKey = (noun: string): string => `amqpd.columns.${noun}`;

/** Columns that the user shows or hides, by list and title; stored in the browser. */
const columnChoices = signal<Record<string, Record<string, boolean>>>({});

function columnChoicesOf(noun: string): Record<string, boolean> {
  const here = columnChoices.value[noun];
  if (here) return here;
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(columnsKey(noun)) ?? "{}");
    return typeof stored === "object" && stored !== null ? (stored as Record<string, boolean>) : {};
  } catch {
    return {};
  }
}

function setColumnShown(noun: string, title: string, shown: boolean): void {
  const all = { ...columnChoicesOf(noun), [title]: shown };
  localStorage.setItem(columnsKey(noun), JSON.stringify(all));
  columnChoices.value = { ...columnChoices.value, [noun]: all };
}

/** The first column is always visible. */
export function visibleColumns<T>(noun: string, columns: Column<T>[]): Column<T>[] {
  const all = columnChoicesOf(noun);
  return columns.filter((column, index) => index === 0 || (all[column.title] ?? !column.extra));
}

/** Return the fields of the visible columns, for the query `columns`. */
export function fieldsOf<T>(base: string, columns: Column<T>[]): string {
  return [...new Set([...base.split(","), ...columns.flatMap((column) => (column.fields ?? column.sort ?? "").split(","))])].filter(Boolean).join();
}

export function ColumnChoice<T>({ noun, columns }: { noun: string; columns: Column<T>[] }) {
  const shown = visibleColumns(noun, columns);
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
    <details class="column-choice" ref={frame} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Columns</summary>
      <div class="card">
        {open &&
          columns.slice(1).map((column) => (
            <label key={column.title} class="checkbox">
              <input type="checkbox" checked={shown.includes(column)} onChange={(event) => setColumnShown(noun, column.title, event.currentTarget.checked)} /> {column.title}
            </label>
          ))}
      </div>
    </details>
  );
}
