// Picture of the topology: a box for each exchange and queue, a line for each link with the width of its rate, and a
// bar in each queue for its length. Boxes move only when objects or links change, not with rates.
//
// The picture is for pointer users. Keyboard and screen reader users have the same in the tables, so nothing in the
// picture takes the focus. (The attribute of SVG is `tabindex`; `tabIndex` has no effect.)
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { exchangeName, showInvisible } from "../components/elements";
import { formatCount, formatRate, plural } from "../components/format";
import { href } from "../shell/router";
import { ALL_GROUPS, layout, type Layout, type Position } from "./layout";
import { type Exchange, isGrowing, layoutNodes, LINK_TEXT, type Queue, type Topology, type TopologyLink } from "./model";

const SIZES = { columnWidth: 372, rowHeight: 62, gap: 36 };
const [BOX_WIDTH, BOX_HEIGHT, EDGE] = [220, 50, 16];
const [PEERS_GAP, PEERS_WIDTH] = [22, 104];
const [SCALE_MIN, SCALE_MAX] = [0.15, 2];
/** A text of 16 px is at least 13 px on the screen. Wider pictures scroll. */
const FIT_MIN = 0.85;
const NAME_CHARACTERS_MAX = 24;

export function TopologyPicture({ model }: { model: Topology }) {
  const [expanded, setExpanded] = useState<ReadonlySet<string>>(new Set());
  const [hovered, setHovered] = useState<string | null>(null);
  const [scale, setScale] = useState<number | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const placed = useMemo(() => layout(layoutNodes(model), model.links, expanded, SIZES), [model.shape, expanded]);
  const [width, height] = [placed.width + 2 * EDGE, placed.height + 2 * EDGE];
  const fitting = useFitScale(frame, width);
  const shown = scale ?? fitting;
  const zoom = (by: number): void => setScale(Math.min(SCALE_MAX, Math.max(SCALE_MIN, shown * by)));
  useZoomByWheel(frame, zoom);
  const highlighted = hovered === null ? null : linkedNodes(model, hovered);
  const open = (fold: string): void => setExpanded(new Set([...expanded, fold]));
  const positionOf = (id: string): Position | undefined => placed.positions.get(placed.groupOf.get(id) ?? id);
  return (
    <figure class="topology">
      <div class="bar">
        <button onClick={() => zoom(1 / 1.3)} aria-label="Zoom out">
          −
        </button>
        <button onClick={() => zoom(1.3)} aria-label="Zoom in">
          +
        </button>
        <button onClick={() => setScale(null)}>Fit</button>
        {placed.groups.length > 0 && <button onClick={() => setExpanded(new Set([ALL_GROUPS]))}>Expand all</button>}
        {expanded.size > 0 && <button onClick={() => setExpanded(new Set())}>Collapse</button>}
        <Legend />
      </div>
      <div class="canvas" ref={frame} onPointerDown={startDrag} tabIndex={0} role="region" aria-label="Picture of the topology; the tab List has the same as tables">
        <svg aria-hidden="true" width={width * shown} height={height * shown} viewBox={`${-EDGE} ${-EDGE} ${width} ${height}`}>
          <g class="lines">
            {drawnLinks(model, placed).map((link) => (
              <LinkLine key={`${link.kind} ${link.source} ${link.destination}`} link={link} from={positionOf(link.source)!} to={positionOf(link.destination)!} dim={highlighted !== null && !(link.source === hovered || link.destination === hovered)} />
            ))}
          </g>
          {model.exchanges.map((each) =>
            placed.groupOf.has(each.id) ? null : (
              <ExchangeBox key={each.id} exchange={each} model={model} at={positionOf(each.id)!} dim={highlighted?.has(each.id) === false} onHover={setHovered} />
            ),
          )}
          {model.queues.map((each) =>
            placed.groupOf.has(each.id) ? null : (
              <QueueBox key={each.id} queue={each} model={model} at={positionOf(each.id)!} dim={highlighted?.has(each.id) === false} onHover={setHovered} />
            ),
          )}
          {placed.groups.map((fold) => (
            <GroupBox key={fold.id} count={fold.members.length} queues={fold.members.flatMap((id) => model.queueOf.get(id) ?? [])} at={placed.positions.get(fold.id)!} onOpen={() => open(fold.id)} />
          ))}
        </svg>
      </div>
      <figcaption>
        The width of a line is its message rate, the length of a bar the number of messages in a queue. Click a box to open its page. The tab List has the same as tables.
      </figcaption>
    </figure>
  );
}

function Legend() {
  return (
    <span class="legend grow">
      <span class="key exchange">exchange</span>
      <span class="key queue">queue</span>
      <span class="key growing">growing</span>
      <span class="key dead">dead letters</span>
      <span class="key alternate">alternate exchange</span>
    </span>
  );
}

function drawnLinks(model: Topology, drawn: Layout): TopologyLink[] {
  const folded = new Map<string, TopologyLink>();
  const found: TopologyLink[] = [];
  for (const link of model.links) {
    const [source, destination] = [drawn.groupOf.get(link.source) ?? link.source, drawn.groupOf.get(link.destination) ?? link.destination];
    if (source === link.source && destination === link.destination) {
      found.push(link);
      continue;
    }
    const key = `${link.kind} ${source} ${destination}`;
    const existing = folded.get(key);
    if (existing) {
      if (link.rate !== null) existing.rate = (existing.rate ?? 0) + link.rate;
      existing.count += link.count;
    } else folded.set(key, { ...link, source, destination, keys: [] });
  }
  return [...found, ...folded.values()];
}

const strokeWidth = (perS: number | null): number => (perS ? Math.min(14, 1.5 + 2.4 * Math.log10(1 + perS)) : 1);

function LinkLine({ link, from, to, dim }: { link: TopologyLink; from: Position; to: Position; dim: boolean }) {
  const dead = link.kind === "dead_letter";
  const [x1, y1] = [from.x + BOX_WIDTH, from.y + (dead ? BOX_HEIGHT - 6 : BOX_HEIGHT / 2)];
  const [x2, y2] = [to.x, to.y + BOX_HEIGHT / 2];
  const bend = x2 > x1 ? (x2 - x1) / 2 : 120;
  const flows = (link.rate ?? 0) > 0;
  const keys = link.keys.map(showInvisible).join(", ") + (link.count > link.keys.length && link.keys.length ? ", …" : "");
  const rateText = link.rate === null ? "" : `, ${link.estimated ? "about " : ""}${formatRate(link.rate)}`;
  return (
    <path class={`line ${link.kind}${flows ? " flows" : ""}${dim ? " dim" : ""}`} d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} stroke-width={strokeWidth(link.rate)}>
      <title>{`${link.kind === "binding" ? plural(link.count, "binding") : LINK_TEXT[link.kind]}${keys ? `: ${keys}` : ""}${rateText}`}</title>
    </path>
  );
}

interface BoxProps {
  model: Topology;
  at: Position;
  dim: boolean;
  onHover: (id: string | null) => void;
}

function ExchangeBox({ exchange, model, at, dim, onHover }: BoxProps & { exchange: Exchange }) {
  const publishers = (model.clientsOf.get(exchange.id) ?? []).length;
  const details = [model.severalVhosts ? showInvisible(exchange.vhost) : "", exchange.type, publishers ? plural(publishers, "publisher") : "", exchange.in_rate ? formatRate(exchange.in_rate) : ""];
  return (
    <g class={`box exchange${dim ? " dim" : ""}`} transform={`translate(${at.x} ${at.y})`} onPointerEnter={() => onHover(exchange.id)} onPointerLeave={() => onHover(null)}>
      <a href={href(["exchanges", exchange.vhost, exchange.name || "amq.default"])} tabindex={-1}>
        <title>{`exchange ${showInvisible(exchangeName(exchange.name))} in ${showInvisible(exchange.vhost)}`}</title>
        <rect width={BOX_WIDTH} height={BOX_HEIGHT} rx={BOX_HEIGHT / 2} />
        <BoxText x={18} name={exchangeName(exchange.name)} small={details.filter(Boolean).join(" · ")} />
      </a>
    </g>
  );
}

function QueueBox({ queue, model, at, dim, onHover }: BoxProps & { queue: Queue }) {
  const depth = model.messagesMax ? Math.log1p(queue.messages) / Math.log1p(Math.max(10, model.messagesMax)) : 0;
  const rates = queue.in_rate || queue.out_rate ? `${formatRate(queue.in_rate)} in, ${formatRate(queue.out_rate)} out` : "";
  const details = [model.severalVhosts ? showInvisible(queue.vhost) : "", formatCount(queue.messages), rates];
  const middle = BOX_HEIGHT / 2;
  return (
    <g class={`box queue${isGrowing(queue) ? " growing" : ""}${dim ? " dim" : ""}`} transform={`translate(${at.x} ${at.y})`} onPointerEnter={() => onHover(queue.id)} onPointerLeave={() => onHover(null)}>
      {queue.consumers > 0 && (
        <>
          <path class={`line${queue.out_rate > 0 ? " flows" : ""}`} d={`M${BOX_WIDTH} ${middle}h${PEERS_GAP}`} stroke-width={strokeWidth(queue.out_rate)} />
          <a href={href(["queues", queue.vhost, queue.name], { tab: "consumers" })} tabindex={-1}>
            <title>{(model.clientsOf.get(queue.id) ?? []).map((peer) => `${showInvisible(peer.connection)} (${showInvisible(peer.user)})`).join("\n")}</title>
            <rect class="consumers" x={BOX_WIDTH + PEERS_GAP} y={8} width={PEERS_WIDTH} height={BOX_HEIGHT - 16} rx={12} />
            <text class="small" x={BOX_WIDTH + PEERS_GAP + PEERS_WIDTH / 2} y={middle + 5} text-anchor="middle">
              {plural(queue.consumers, "consumer")}
            </text>
          </a>
        </>
      )}
      <a href={href(["queues", queue.vhost, queue.name])} tabindex={-1}>
        <title>{`${queue.type} queue ${showInvisible(queue.name)} in ${showInvisible(queue.vhost)}: ${formatCount(queue.messages_ready)} ready, ${formatCount(queue.messages_unacknowledged)} unacked`}</title>
        <rect width={BOX_WIDTH} height={BOX_HEIGHT} rx={4} />
        {queue.messages > 0 && <rect class="depth" y={BOX_HEIGHT - 5} width={Math.max(3, depth * BOX_WIDTH)} height={5} rx={2} />}
        <BoxText x={10} name={queue.name} small={details.filter(Boolean).join(" · ")} />
      </a>
    </g>
  );
}

function GroupBox({ count: all, queues, at, onOpen }: { count: number; queues: Queue[]; at: Position; onOpen: () => void }) {
  const messages = queues.reduce((sum, queue) => sum + queue.messages, 0);
  const piles = queues.filter(isGrowing).length;
  return (
    <g class={`box group${queues.length ? " queue" : " exchange"}${piles ? " growing" : ""}`} transform={`translate(${at.x} ${at.y})`} onClick={onOpen}>
      <title>Expand</title>
      <rect x={5} y={5} width={BOX_WIDTH} height={BOX_HEIGHT} rx={4} />
      <rect width={BOX_WIDTH} height={BOX_HEIGHT} rx={4} />
      <BoxText x={10} name={`and ${plural(all, queues.length ? "queue" : "exchange")} more`} small={queues.length ? `${plural(messages, "message")}${piles ? `, ${formatCount(piles)} growing` : ""}` : ""} />
    </g>
  );
}

/** Shorten a name in its middle, because names often differ at their end. A name that is still too wide is clipped. */
function BoxText({ x, name, small }: { x: number; name: string; small: string }) {
  const characters = [...showInvisible(name)];
  const cut = characters.length > NAME_CHARACTERS_MAX ? [...characters.slice(0, NAME_CHARACTERS_MAX - 9), "…", ...characters.slice(-8)].join("") : characters.join("");
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

function linkedNodes(model: Topology, id: string): Set<string> {
  return new Set([id, ...(model.linksFrom.get(id) ?? []).map((link) => link.destination), ...(model.linksTo.get(id) ?? []).map((link) => link.source)]);
}

/** Return the scale at which all columns fit, but no smaller than FIT_MIN. */
function useFitScale(frame: { current: HTMLDivElement | null }, width: number): number {
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

/** Zoom with Ctrl and the wheel, like maps; the wheel alone scrolls. */
function useZoomByWheel(frame: { current: HTMLDivElement | null }, zoom: (by: number) => void): void {
  const latestZoom = useRef(zoom);
  latestZoom.current = zoom;
  useEffect(() => {
    const element = frame.current;
    const turned = (event: WheelEvent): void => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      latestZoom.current(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    };
    element?.addEventListener("wheel", turned, { passive: false });
    return () => element?.removeEventListener("wheel", turned);
  }, []);
}

/** Scroll the picture by dragging it with a mouse; touch scrolls by itself. A drag is not a click. */
function startDrag(event: PointerEvent): void {
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
