// Curves over time. The library that draws them is fetched behind the first figures; a screen reader gets the last values.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";
import { dark } from "../shell/theme";
import { brief, bytes, count, duration, rate } from "./numbers";
import type { Points, Range } from "./history";
import { Section } from "./text";

export interface Curve {
  /** In the counters that are drawn. */
  name: string;
  label: string;
}

type Unit = "rate" | "count" | "bytes" | "ms";
const SHOWN: Record<Unit, (value: number | null | undefined) => string> = { rate, count, bytes, ms: duration };
const AXIS: Record<Unit, (value: number) => string> = { rate: brief, count: brief, bytes, ms: duration };
// Told apart by those who see few colours too: hues of different lightness, and every other one dashed.
const LIGHT = ["#0b62b3", "#b35400", "#00775c", "#a3257f", "#6a4bc4", "#8c6d00", "#5b6570", "#c22f2f"];
const DARK = ["#6db5ff", "#ffab5e", "#4fd0ae", "#f48bd2", "#b6a1ff", "#e3c34b", "#aab4be", "#ff8d8d"];
const HEIGHT = 180;

/** 14:30, or with seconds; local. */
function clock(at: number, seconds: boolean): string {
  return new Date(at * 1000).toTimeString().slice(0, seconds ? 8 : 5);
}

interface ChartProps {
  title: string;
  points: Points;
  curves: Curve[];
  unit?: Unit;
  /** Instead of counters as they were: what a curve is at each moment. */
  of?: (curve: Curve) => (number | null)[];
}

export function Chart({ title, points, curves, unit = "rate", of }: ChartProps) {
  const values = curves.map((curve) => of?.(curve) ?? (unit === "rate" ? points.rates(curve.name) : points.values(curve.name)));
  const frame = useRef<HTMLDivElement>(null);
  const drawn = useRef<uPlot>();
  const colors = dark.value ? DARK : LIGHT;
  const data = [points.times, ...values] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;
  const key = curves.map((curve) => curve.name).join();

  useEffect(() => {
    let ended = false;
    let sizes: ResizeObserver | undefined;
    void import("uplot").then(({ default: UPlot }) => {
      const element = frame.current;
      if (ended || !element) return;
      const style = getComputedStyle(element);
      const [grid, text] = [style.borderTopColor, style.color];
      const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui" };
      drawn.current = new UPlot(
        {
          width: Math.max(100, element.clientWidth),
          height: HEIGHT,
          legend: { show: false },
          cursor: { points: { size: 6 }, drag: { x: false, y: false } },
          scales: { y: { range: (_, __, most) => [0, Math.max(most * 1.1, unit === "bytes" ? 1024 : 1)] } },
          axes: [{ ...axis, space: 80, size: 30, values: (_, ticks, __, ___, step) => ticks.map((at) => clock(at, step < 60)) }, { ...axis, size: unit === "bytes" ? 78 : 62, values: (_, ticks) => ticks.map(AXIS[unit]) }],
          series: [{}, ...curves.map((curve, index) => ({ label: curve.label, stroke: colors[index % colors.length]!, width: 1.8, spanGaps: true, points: { show: false }, ...(index % 2 ? { dash: [6, 3] } : {}) }))],
        },
        latest.current,
        element,
      );
      sizes = new ResizeObserver(() => drawn.current?.setSize({ width: Math.max(100, element.clientWidth), height: HEIGHT }));
      sizes.observe(element);
    });
    return () => {
      ended = true;
      sizes?.disconnect();
      drawn.current?.destroy();
      drawn.current = undefined;
    };
  }, [key, unit, dark.value]);

  useEffect(() => {
    drawn.current?.setData(data);
  });

  // A counter that nobody has asked for has no samples yet, but a rate.
  const now = curves.map((curve, index) => (unit === "rate" ? points.now?.(curve.name) : undefined) ?? values[index]!.findLast((value) => value !== null) ?? null);
  const said = curves.map((curve, index) => `${curve.label} ${SHOWN[unit](now[index])}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <ul class="legend">
          {curves.map((curve, index) => (
            <li key={curve.name}>
              <svg viewBox="0 0 22 6" aria-hidden="true">
                <path d="M0 3h22" stroke={colors[index % colors.length]} stroke-width="3" stroke-dasharray={index % 2 ? "6 3" : undefined} />
              </svg>
              {curve.label} <b>{SHOWN[unit](now[index])}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={frame} class="plot" role="img" aria-label={`${title}, now: ${said}`} />
    </figure>
  );
}

/** Charts under one heading, with the choice of their time. */
export function Charts({ title, range, ranges, onRange, children }: { title: string; range: Range; ranges: Range[]; onRange: (range: Range) => void; children: ComponentChildren }) {
  return (
    <Section
      title={title}
      aside={
        <div class="choice" role="group" aria-label="Time shown">
          {ranges.map((each) => (
            <button key={each} aria-pressed={each === range} onClick={() => onRange(each)}>
              {each}
            </button>
          ))}
        </div>
      }
    >
      <div class="charts">{children}</div>
    </Section>
  );
}
