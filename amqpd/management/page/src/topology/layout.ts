// Where things of the topology stand: in columns from left to right, the way messages go.
//
// What hangs together is laid out by itself, and these parts stand one below the other. A thing stands one column to the
// right of what leads to it; a link that would close a circle (dead letters often do) is left out of that and drawn
// backwards. Within a column things are sorted so that few links cross, each by where its neighbours stand, a few times to
// and fro; then each column stands beside the tallest as near to its neighbours as there is room.
//
// Things that the same lead to and that lead to the same are alike: of many the first are drawn and the others folded into
// one box, until that is opened. The more kinds there are the fewer of each: five hundred boxes below each other are no picture.
//
// Cost: some 10 ms for 500 things.

export interface Thing {
  id: string;
  name: string;
  /** In what order things stand before links have their say, and which are folded last: higher comes first. */
  weight: number;
}
export interface Link {
  source: string;
  destination: string;
}
export interface Fold {
  /** Of the folded box. */
  id: string;
  things: string[];
}
export interface Spot {
  column: number;
  x: number;
  y: number;
}
export interface Layout {
  spots: Map<string, Spot>;
  folds: Fold[];
  /** Which fold a thing is in. */
  foldOf: Map<string, string>;
  width: number;
  height: number;
}

export interface Sizes {
  columnWidth: number;
  rowHeight: number;
  gap: number;
}

/** Of things that are alike, so many are drawn; in a picture of more than ROOM things fewer, and one at least. */
const ALIKE_MAX = 12;
const ROOM = 80;
export const ALL = "*";
const SWEEPS = 6;

/** opened: folds that are not to be, or ALL. */
export function layout(things: readonly Thing[], links: readonly Link[], opened: ReadonlySet<string>, sizes: Sizes): Layout {
  const { folds, foldOf } = fold(things, links, opened);
  const nodes = things.filter((thing) => !foldOf.has(thing.id)).map((thing) => thing.id);
  const weight = new Map(things.map((thing) => [thing.id, thing.weight]));
  for (const each of folds) {
    nodes.push(each.id);
    weight.set(each.id, -1);
  }
  const edges = new Map<string, Set<string>>(nodes.map((id) => [id, new Set()]));
  for (const link of links) {
    const [from, to] = [foldOf.get(link.source) ?? link.source, foldOf.get(link.destination) ?? link.destination];
    if (from !== to) edges.get(from)?.add(to);
  }
  const spots = new Map<string, Spot>();
  let [width, height] = [0, 0];
  const parts = together(nodes, edges).sort((a, b) => heaviest(b, weight) - heaviest(a, weight) || b.length - a.length);
  for (const part of parts) {
    const columns = inColumns(part, edges, weight);
    sortColumns(columns, edges);
    const rows = Math.max(...columns.map((column) => column.length));
    const row = rowsOf(columns, edges);
    columns.forEach((column, index) => {
      for (const id of column) spots.set(id, { column: index, x: index * sizes.columnWidth, y: height + row.get(id)! * sizes.rowHeight });
    });
    width = Math.max(width, columns.length * sizes.columnWidth);
    height += rows * sizes.rowHeight + sizes.gap;
  }
  return { spots, folds, foldOf, width, height: Math.max(0, height - sizes.gap) };
}

function fold(things: readonly Thing[], links: readonly Link[], opened: ReadonlySet<string>) {
  const ends = new Map<string, Set<string>>(things.map((thing) => [thing.id, new Set()]));
  for (const link of links) {
    ends.get(link.destination)?.add(`from ${link.source}`);
    ends.get(link.source)?.add(`to ${link.destination}`);
  }
  const alike = new Map<string, Thing[]>();
  for (const thing of things) {
    const found = [...ends.get(thing.id)!].sort();
    if (!found.length) continue;
    const sign = JSON.stringify(found);
    (alike.get(sign) ?? alike.set(sign, []).get(sign)!).push(thing);
  }
  const most = things.length > ROOM ? Math.min(ALIKE_MAX, Math.max(1, Math.floor(ROOM / alike.size))) : ALIKE_MAX;
  const folds: Fold[] = [];
  const foldOf = new Map<string, string>();
  for (const [sign, found] of alike) {
    const id = `fold ${sign}`;
    if (opened.has(ALL) || opened.has(id) || found.length <= most + 1) continue;
    const folded = found.sort((a, b) => b.weight - a.weight || (a.name < b.name ? -1 : 1)).slice(most);
    folds.push({ id, things: folded.map((thing) => thing.id) });
    for (const thing of folded) foldOf.set(thing.id, id);
  }
  return { folds, foldOf };
}

/** The row of each: the tallest column is filled from above, the others stand beside their neighbours in it, in their order. */
function rowsOf(columns: readonly string[][], edges: ReadonlyMap<string, Set<string>>): Map<string, number> {
  const near = neighbours(columns, edges);
  const rows = Math.max(...columns.map((column) => column.length));
  const tallest = columns.findIndex((column) => column.length === rows);
  const row = new Map(columns[tallest]!.map((id, index) => [id, index]));
  const outward = [...columns.keys()].sort((a, b) => Math.abs(a - tallest) - Math.abs(b - tallest)).slice(1);
  for (const index of outward) {
    const column = columns[index]!;
    const wanted = column.map((id) => {
      const placed = near.get(id)!.flatMap((other) => row.get(other) ?? []);
      return placed.length ? placed.reduce((sum, at) => sum + at, 0) / placed.length : 0;
    });
    for (let at = 1; at < column.length; at++) wanted[at] = Math.max(wanted[at]!, wanted[at - 1]! + 1);
    for (let at = column.length - 1, below = rows; at >= 0; at--) wanted[at] = below = Math.min(wanted[at]!, below - 1);
    column.forEach((id, at) => row.set(id, wanted[at]!));
  }
  return row;
}

/** Both ways; within a part. */
function neighbours(columns: readonly string[][], edges: ReadonlyMap<string, Set<string>>): Map<string, string[]> {
  const near = new Map<string, string[]>(columns.flat().map((id) => [id, []]));
  for (const id of near.keys())
    for (const to of edges.get(id) ?? []) {
      near.get(id)!.push(to);
      near.get(to)!.push(id);
    }
  return near;
}

const heaviest = (part: readonly string[], weight: ReadonlyMap<string, number>): number =>
  part.reduce((most, id) => Math.max(most, weight.get(id) ?? 0), -1);

/** The parts that no link leads between, in the order of their first thing. */
function together(nodes: readonly string[], edges: ReadonlyMap<string, Set<string>>): string[][] {
  const near = new Map<string, string[]>(nodes.map((id) => [id, []]));
  for (const [from, ends] of edges)
    for (const to of ends) {
      near.get(from)?.push(to);
      near.get(to)?.push(from);
    }
  const seen = new Set<string>();
  const parts: string[][] = [];
  for (const node of nodes) {
    if (seen.has(node)) continue;
    const part: string[] = [];
    const open = [node];
    seen.add(node);
    for (let id = open.pop(); id !== undefined; id = open.pop()) {
      part.push(id);
      for (const other of near.get(id) ?? [])
        if (!seen.has(other)) {
          seen.add(other);
          open.push(other);
        }
    }
    parts.push(part);
  }
  return parts;
}

/** Each as far to the right as the longest way to it, without the links that close a circle. */
function inColumns(part: readonly string[], edges: ReadonlyMap<string, Set<string>>, weight: ReadonlyMap<string, number>): string[][] {
  const inward = new Map<string, number>(part.map((id) => [id, 0]));
  for (const id of part) for (const to of edges.get(id) ?? []) inward.set(to, (inward.get(to) ?? 0) + 1);
  // From those that nothing leads to; what is in circles alone comes last.
  const order = [...part].sort((a, b) => (inward.get(a) ?? 0) - (inward.get(b) ?? 0));
  const state = new Map<string, "open" | "done">();
  const forward = new Map<string, string[]>();
  const finished: string[] = [];
  for (const start of order) {
    if (state.has(start)) continue;
    // Depth first without recursion: a chain of exchanges may be long.
    const stack: { id: string; ends: string[]; at: number }[] = [{ id: start, ends: [...(edges.get(start) ?? [])], at: 0 }];
    state.set(start, "open");
    while (stack.length) {
      const top = stack[stack.length - 1]!;
      const to = top.ends[top.at++];
      if (to === undefined) {
        state.set(top.id, "done");
        finished.push(top.id);
        stack.pop();
      } else if (state.get(to) !== "open") {
        (forward.get(top.id) ?? forward.set(top.id, []).get(top.id)!).push(to);
        if (!state.has(to)) {
          state.set(to, "open");
          stack.push({ id: to, ends: [...(edges.get(to) ?? [])], at: 0 });
        }
      }
    }
  }
  const column = new Map<string, number>(part.map((id) => [id, 0]));
  for (const id of finished.reverse())
    for (const to of forward.get(id) ?? []) column.set(to, Math.max(column.get(to)!, column.get(id)! + 1));
  const columns: string[][] = Array.from({ length: Math.max(...column.values()) + 1 }, () => []);
  for (const [id, index] of column) columns[index]!.push(id);
  for (const each of columns) each.sort((a, b) => (weight.get(b) ?? 0) - (weight.get(a) ?? 0) || (a < b ? -1 : 1));
  return columns.filter((each) => each.length > 0);
}

/** By the middle of where neighbours stand, from left to right and back. */
function sortColumns(columns: string[][], edges: ReadonlyMap<string, Set<string>>): void {
  const near = neighbours(columns, edges);
  const place = new Map<string, { column: number; at: number }>();
  const note = (column: number): void => {
    const ids = columns[column]!;
    ids.forEach((id, row) => place.set(id, { column, at: (row + 0.5) / ids.length }));
  };
  columns.forEach((_, index) => note(index));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const right = sweep % 2 === 0;
    for (let step = 0; step < columns.length; step++) {
      const index = right ? step : columns.length - 1 - step;
      const middle = new Map<string, number>();
      for (const id of columns[index]!) {
        const before = near.get(id)!.map((other) => place.get(other)!).filter((spot) => (right ? spot.column < index : spot.column > index));
        middle.set(id, before.length ? before.reduce((sum, spot) => sum + spot.at, 0) / before.length : place.get(id)!.at);
      }
      columns[index]!.sort((a, b) => middle.get(a)! - middle.get(b)!);
      note(index);
    }
  }
}
