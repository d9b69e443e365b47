// The picture: a box for each exchange and queue, a line for each link, as wide as messages go along it, a bar in each queue
// for how much lies in it. It stands still while rates change; things move only when some come or go.
//
// It is for eyes and a pointer. Whoever has a keyboard or a screen reader has the same in the list beside it, so nothing in
// it can be focused, and the keys scroll it. (In SVG the attribute is `tabindex`, and `tabIndex` is none.)
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, plural, rate } from "../components/format";
import { exchangeName, visible } from "../components/elements";
import { href } from "../shell/router";
import { ALL, layout, type Layout, type Spot } from "./layout";
import { pilesUp, things, WORDS, type Exchange, type Leads, type Model, type Queue } from "./model";

const SIZES = { columnWidth: 372, rowHeight: 62, gap: 36 };
const [BOX_WIDTH, BOX_HEIGHT, EDGE] = [220, 50, 16];
const [PEERS_GAP, PEERS_WIDTH] = [22, 104];
const [SCALE_MIN, SCALE_MAX] = [0.15, 2];
/** Names of 16 px in the picture are no smaller than 13 on the screen; where columns need more room one scrolls. */
const FIT_MIN = 0.85;
const NAME_SIGNS = 24;

export function Picture({ model }: { model: Model }) {
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const [near, setNear] = useState<string | null>(null);
  const [scale, setScale] = useState<number | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const drawn = useMemo(() => layout(things(model), model.links, opened, SIZES), [model.shape, opened]);
  const [width, height] = [drawn.width + 2 * EDGE, drawn.height + 2 * EDGE];
  const fitting = useFit(frame, width);
  const shown = scale ?? fitting;
  const zoom = (by: number): void => setScale(Math.min(SCALE_MAX, Math.max(SCALE_MIN, shown * by)));
  useZoomByWheel(frame, zoom);
  const bright = near === null ? null : reach(model, near);
  const open = (fold: string): void => setOpened(new Set([...opened, fold]));
  const spot = (id: string): Spot | undefined => drawn.spots.get(drawn.foldOf.get(id) ?? id);
  return (
    <figure class="topology">
      <div class="bar">
        <button onClick={() => zoom(1 / 1.3)} aria-label="Smaller">
          −
        </button>
        <button onClick={() => zoom(1.3)} aria-label="Larger">
          +
        </button>
        <button onClick={() => setScale(null)}>Fit</button>
        {drawn.folds.length > 0 && <button onClick={() => setOpened(new Set([ALL]))}>Unfold all</button>}
        {opened.size > 0 && <button onClick={() => setOpened(new Set())}>Fold</button>}
        <Legend />
      </div>
      <div class="canvas" ref={frame} onPointerDown={drag} tabIndex={0} role="region" aria-label="The topology as a picture; the list has the same in words">
        <svg aria-hidden="true" width={width * shown} height={height * shown} viewBox={`${-EDGE} ${-EDGE} ${width} ${height}`}>
          <g class="lines">
            {lines(model, drawn).map((link) => (
              <Line key={`${link.kind} ${link.source} ${link.destination}`} link={link} from={spot(link.source)!} to={spot(link.destination)!} dim={bright !== null && !(link.source === near || link.destination === near)} />
            ))}
          </g>
          {model.exchanges.map((each) =>
            drawn.foldOf.has(each.id) ? null : (
              <ExchangeBox key={each.id} exchange={each} model={model} at={spot(each.id)!} dim={bright?.has(each.id) === false} onNear={setNear} />
            ),
          )}
          {model.queues.map((each) =>
            drawn.foldOf.has(each.id) ? null : (
              <QueueBox key={each.id} queue={each} model={model} at={spot(each.id)!} dim={bright?.has(each.id) === false} onNear={setNear} />
            ),
          )}
          {drawn.folds.map((fold) => (
            <FoldBox key={fold.id} count={fold.things.length} queues={fold.things.flatMap((id) => model.queueOf.get(id) ?? [])} at={drawn.spots.get(fold.id)!} onOpen={() => open(fold.id)} />
          ))}
        </svg>
      </div>
      <figcaption>
        Lines are as wide as messages go along them, bars as long as queues are deep. A click leads to the thing; the list has the same in words.
      </figcaption>
    </figure>
  );
}

function Legend() {
  return (
    <span class="legend grow">
      <span class="key exchange">exchange</span>
      <span class="key queue">queue</span>
      <span class="key piles">piles up</span>
      <span class="key dead">dead letters</span>
      <span class="key alternate">no route</span>
    </span>
  );
}

/** Those of folded things as one. */
function lines(model: Model, drawn: Layout): Leads[] {
  const folded = new Map<string, Leads>();
  const found: Leads[] = [];
  for (const link of model.links) {
    const [source, destination] = [drawn.foldOf.get(link.source) ?? link.source, drawn.foldOf.get(link.destination) ?? link.destination];
    if (source === link.source && destination === link.destination) {
      found.push(link);
      continue;
    }
    const key = `${link.kind} ${source} ${destination}`;
    const there = folded.get(key);
    if (there) {
      if (link.rate !== null) there.rate = (there.rate ?? 0) + link.rate;
      there.count += link.count;
    } else folded.set(key, { ...link, source, destination, keys: [] });
  }
  return [...found, ...folded.values()];
}

const strokeOf = (perS: number | null): number => (perS ? Math.min(14, 1.5 + 2.4 * Math.log10(1 + perS)) : 1);

function Line({ link, from, to, dim }: { link: Leads; from: Spot; to: Spot; dim: boolean }) {
  const dead = link.kind === "dead_letter";
  const [x1, y1] = [from.x + BOX_WIDTH, from.y + (dead ? BOX_HEIGHT - 6 : BOX_HEIGHT / 2)];
  const [x2, y2] = [to.x, to.y + BOX_HEIGHT / 2];
  const bend = x2 > x1 ? (x2 - x1) / 2 : 120;
  const flows = (link.rate ?? 0) > 0;
  const keys = link.keys.map(visible).join(", ") + (link.count > link.keys.length && link.keys.length ? ", …" : "");
  const told = link.rate === null ? "" : `, ${link.estimated ? "about " : ""}${rate(link.rate)}`;
  return (
    <path class={`line ${link.kind}${flows ? " flows" : ""}${dim ? " dim" : ""}`} d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} stroke-width={strokeOf(link.rate)}>
      <title>{`${link.kind === "binding" ? plural(link.count, "binding") : WORDS[link.kind]}${keys ? `: ${keys}` : ""}${told}`}</title>
    </path>
  );
}

interface BoxProps {
  model: Model;
  at: Spot;
  dim: boolean;
  onNear: (id: string | null) => void;
}

function ExchangeBox({ exchange, model, at, dim, onNear }: BoxProps & { exchange: Exchange }) {
  const publishers = (model.peersOf.get(exchange.id) ?? []).length;
  const said = [model.severalVhosts ? visible(exchange.vhost) : "", exchange.type, publishers ? plural(publishers, "publisher") : "", exchange.in_rate ? rate(exchange.in_rate) : ""];
  return (
    <g class={`box exchange${dim ? " dim" : ""}`} transform={`translate(${at.x} ${at.y})`} onPointerEnter={() => onNear(exchange.id)} onPointerLeave={() => onNear(null)}>
      <a href={href(["exchanges", exchange.vhost, exchange.name || "amq.default"])} tabindex={-1}>
        <title>{`exchange ${visible(exchangeName(exchange.name))} in ${visible(exchange.vhost)}`}</title>
        <rect width={BOX_WIDTH} height={BOX_HEIGHT} rx={BOX_HEIGHT / 2} />
        <Words x={18} name={exchangeName(exchange.name)} small={said.filter(Boolean).join(" · ")} />
      </a>
    </g>
  );
}

function QueueBox({ queue, model, at, dim, onNear }: BoxProps & { queue: Queue }) {
  const depth = model.messagesMax ? Math.log1p(queue.messages) / Math.log1p(Math.max(10, model.messagesMax)) : 0;
  const rates = queue.in_rate || queue.out_rate ? `${rate(queue.in_rate)} in, ${rate(queue.out_rate)} out` : "";
  const said = [model.severalVhosts ? visible(queue.vhost) : "", count(queue.messages), rates];
  const middle = BOX_HEIGHT / 2;
  return (
    <g class={`box queue${pilesUp(queue) ? " piles" : ""}${dim ? " dim" : ""}`} transform={`translate(${at.x} ${at.y})`} onPointerEnter={() => onNear(queue.id)} onPointerLeave={() => onNear(null)}>
      {queue.consumers > 0 && (
        <>
          <path class={`line${queue.out_rate > 0 ? " flows" : ""}`} d={`M${BOX_WIDTH} ${middle}h${PEERS_GAP}`} stroke-width={strokeOf(queue.out_rate)} />
          <a href={href(["queues", queue.vhost, queue.name], { tab: "consumers" })} tabindex={-1}>
            <title>{(model.peersOf.get(queue.id) ?? []).map((peer) => `${visible(peer.connection)} (${visible(peer.user)})`).join("\n")}</title>
            <rect class="peers" x={BOX_WIDTH + PEERS_GAP} y={8} width={PEERS_WIDTH} height={BOX_HEIGHT - 16} rx={12} />
            <text class="small" x={BOX_WIDTH + PEERS_GAP + PEERS_WIDTH / 2} y={middle + 5} text-anchor="middle">
              {plural(queue.consumers, "consumer")}
            </text>
          </a>
        </>
      )}
      <a href={href(["queues", queue.vhost, queue.name])} tabindex={-1}>
        <title>{`${queue.type} queue ${visible(queue.name)} in ${visible(queue.vhost)}: ${count(queue.messages_ready)} ready, ${count(queue.messages_unacknowledged)} unacked`}</title>
        <rect width={BOX_WIDTH} height={BOX_HEIGHT} rx={4} />
        {queue.messages > 0 && <rect class="depth" y={BOX_HEIGHT - 5} width={Math.max(3, depth * BOX_WIDTH)} height={5} rx={2} />}
        <Words x={10} name={queue.name} small={said.filter(Boolean).join(" · ")} />
      </a>
    </g>
  );
}

function FoldBox({ count: all, queues, at, onOpen }: { count: number; queues: Queue[]; at: Spot; onOpen: () => void }) {
  const messages = queues.reduce((sum, queue) => sum + queue.messages, 0);
  const piles = queues.filter(pilesUp).length;
  return (
    <g class={`box fold${queues.length ? " queue" : " exchange"}${piles ? " piles" : ""}`} transform={`translate(${at.x} ${at.y})`} onClick={onOpen}>
      <title>Show them</title>
      <rect x={5} y={5} width={BOX_WIDTH} height={BOX_HEIGHT} rx={4} />
      <rect width={BOX_WIDTH} height={BOX_HEIGHT} rx={4} />
      <Words x={10} name={`and ${plural(all, queues.length ? "queue" : "exchange")} like it`} small={queues.length ? `${count(messages)} in them${piles ? `, ${count(piles)} pile up` : ""}` : ""} />
    </g>
  );
}

/** Cut in the middle, as names often differ at their end alone; what is still too wide is clipped. */
function Words({ x, name, small }: { x: number; name: string; small: string }) {
  const signs = [...visible(name)];
  const cut = signs.length > NAME_SIGNS ? [...signs.slice(0, NAME_SIGNS - 9), "…", ...signs.slice(-8)].join("") : signs.join("");
  return (
    <svg x={x} width={BOX_WIDTH - x - 6} height={BOX_HEIGHT}>
      <text y={20} direction="ltr" unicode-bidi="isolate">
        {cut}
      </text>
      <text class="small" y={39}>
        {small}
      </text>
    </svg>
  );
}

/** It, and what a link joins it to. */
function reach(model: Model, id: string): Set<string> {
  return new Set([id, ...(model.from.get(id) ?? []).map((link) => link.destination), ...(model.to.get(id) ?? []).map((link) => link.source)]);
}

/** The scale at which all columns are in sight; smaller than that names cannot be read, and one scrolls. */
function useFit(frame: { current: HTMLDivElement | null }, width: number): number {
  const [room, setRoom] = useState(0);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setRoom(element.clientWidth));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  return room ? Math.min(1.25, Math.max(FIT_MIN, room / width)) : 1;
}

/** Ctrl and the wheel, as maps have it; the wheel alone scrolls. */
function useZoomByWheel(frame: { current: HTMLDivElement | null }, zoom: (by: number) => void): void {
  const now = useRef(zoom);
  now.current = zoom;
  useEffect(() => {
    const element = frame.current;
    const turned = (event: WheelEvent): void => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      now.current(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    };
    element?.addEventListener("wheel", turned, { passive: false });
    return () => element?.removeEventListener("wheel", turned);
  }, []);
}

/** With a mouse the picture is pushed about; fingers scroll by themselves. A push is no click. */
function drag(event: PointerEvent): void {
  const canvas = event.currentTarget as HTMLElement;
  if (event.pointerType !== "mouse" || event.button !== 0) return;
  const start = { x: event.clientX, y: event.clientY, left: canvas.scrollLeft, top: canvas.scrollTop };
  let moved = false;
  const move = (to: PointerEvent): void => {
    const [x, y] = [to.clientX - start.x, to.clientY - start.y];
    moved ||= Math.abs(x) + Math.abs(y) > 4;
    if (moved) canvas.scrollTo(start.left - x, start.top - y);
  };
  const end = (): void => {
    removeEventListener("pointermove", move);
    removeEventListener("pointerup", end);
    if (moved) canvas.addEventListener("click", (click) => click.preventDefault(), { capture: true, once: true });
  };
  addEventListener("pointermove", move);
  addEventListener("pointerup", end);
}
