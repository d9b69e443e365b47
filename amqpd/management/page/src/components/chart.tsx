// Line charts of counters over time. uPlot is loaded after the first figures are painted. Screen readers get the last
// values.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { isDark } from "../shell/preferences";
import { LoadError, Section } from "./elements";
import { formatBytes, formatCount, formatDuration, formatRate, formatShort } from "./format";
import type { Range, Series } from "./samples";

export interface Curve {
  name: string;
  label: string;
}

type Unit = "rate" | "count" | "bytes" | "ms";
const FORMAT: Record<Unit, (value: number | null | undefined) => string> = { rate: formatRate, count: formatCount, bytes: formatBytes, ms: formatDuration };
const AXIS_FORMAT: Record<Unit, (value: number) => string> = { rate: formatShort, count: formatShort, bytes: formatBytes, ms: formatDuration };
// Colours differ in lightness, and every second curve is dashed, for users who see few colours.
const LIGHT = ["#0b62b3", "#b35400", "#00775c", "#a3257f", "#6a4bc4", "#8c6d00", "#5b6570", "#c22f2f"];
const DARK = ["#6db5ff", "#ffab5e", "#4fd0ae", "#f48bd2", "#b6a1ff", "#e3c34b", "#aab4be", "#ff8d8d"];
const HEIGHT = 180;

/** Format a local time, e.g. 14:30 or 14:30:05. */
function clockTime(at: number, seconds: boolean): string {
  return new Date(at * 1000).toTimeString().slice(0, seconds ? 8 : 5);
}

/** Return the time range of the x axis in seconds. It covers `ageS` even if there are fewer samples. */
function timeRange(from: number | null, to: number | null, ageS: number | undefined): [number, number] {
  const end = to && Number.isFinite(to) ? to : Date.now() / 1000;
  const begin = from && Number.isFinite(from) ? from : end;
  return [ageS === undefined ? Math.min(begin, end - 60) : end - ageS, end];
}

/** Samples without neighbours are drawn as dots. */
function isolatedPoints(values: ArrayLike<number | null | undefined>): number[] {
  const is = (index: number): boolean => typeof values[index] === "number";
  return Array.from(values, (_, index) => index).filter((index) => is(index) && !is(index - 1) && !is(index + 1));
}

/** Return the time of the first sample (seconds since 1970), or undefined if it is outside the range. */
function recordedSince({ times, ageS, sinceS }: Series): number | undefined {
  const last = times.at(-1);
  return sinceS !== undefined && last !== undefined && ageS !== undefined && sinceS > last - ageS ? sinceS : undefined;
}

interface ChartProps {
  title: string;
  points: Series;
  curves: Curve[];
  unit?: Unit;
  /** Values of a curve, if they are not the counter itself or its rate. */
  valuesOf?: (curve: Curve) => (number | null)[];
}

export function Chart({ title, points, curves, unit = "rate", valuesOf }: ChartProps) {
  const values = curves.map((curve) => valuesOf?.(curve) ?? (unit === "rate" ? points.rates(curve.name) : points.values(curve.name)));
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>();
  const colors = isDark.value ? DARK : LIGHT;
  const data = [points.times, ...values] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;
  const key = curves.map((curve) => curve.name).join();
  const shownS = useRef(points.ageS);
  shownS.current = points.ageS;
  const [failed, setFailed] = useState(false);

  useEffect(() => {
    let ended = false;
    let sizes: ResizeObserver | undefined;
    const load = import("uplot");
    load.catch(() => !ended && setFailed(true));
    void load.then(({ default: UPlot }) => {
      const element = frame.current;
      if (ended || !element) return;
      const style = getComputedStyle(element);
      const [grid, text] = [style.borderTopColor, style.color];
      const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui" };
      plot.current = new UPlot(
        {
          width: Math.max(100, element.clientWidth),
          height: HEIGHT,
          // The last label of the x axis needs room on the right.
          padding: [8, 28, 0, 0],
          legend: { show: false },
          cursor: { points: { size: 6 }, drag: { x: false, y: false } },
          scales: { x: { range: (_, from, to) => timeRange(from, to, shownS.current) }, y: { range: (_, __, most) => [0, Math.max(most * 1.1, unit === "bytes" ? 1024 : 1)] } },
          axes: [{ ...axis, space: 80, size: 30, values: (_, ticks, __, ___, step) => ticks.map((at) => clockTime(at, step < 60)) }, { ...axis, size: unit === "bytes" ? 78 : 62, values: (_, ticks) => ticks.map(AXIS_FORMAT[unit]) }],
          series: [{}, ...curves.map((curve, index) => ({ label: curve.label, stroke: colors[index % colors.length]!, width: 1.8, spanGaps: false, points: { show: true, size: 4, fill: colors[index % colors.length]!, filter: (plot: uPlot, of: number) => isolatedPoints(plot.data[of]!) }, ...(index % 2 ? { dash: [6, 3] } : {}) }))],
        },
        latest.current,
        element,
      );
      sizes = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(100, element.clientWidth), height: HEIGHT }));
      sizes.observe(element);
    }, () => undefined);
    return () => {
      ended = true;
      sizes?.disconnect();
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [key, unit, isDark.value]);

  useEffect(() => {
    plot.current?.setData(data);
  });

  // A counter without samples still has a rate.
  const now = curves.map((curve, index) => (unit === "rate" ? points.now?.(curve.name) : undefined) ?? values[index]!.findLast((value) => value !== null) ?? null);
  const startS = recordedSince(points);
  const latestText = curves.map((curve, index) => `${curve.label} ${FORMAT[unit](now[index])}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        <h3>
          {title} {startS !== undefined && <small>recorded since {clockTime(startS, (points.ageS ?? 0) <= 600)}</small>}
        </h3>
        <ul class="legend">
          {curves.map((curve, index) => (
            <li key={curve.name}>
              <svg viewBox="0 0 22 6" aria-hidden="true">
                <path d="M0 3h22" stroke={colors[index % colors.length]} stroke-width="3" stroke-dasharray={index % 2 ? "6 3" : undefined} />
              </svg>
              {curve.label} <b>{FORMAT[unit](now[index])}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      {failed ? <LoadError /> : <div ref={frame} class="plot" role="img" aria-label={`${title}, now: ${latestText}`} />}
    </figure>
  );
}

export function Charts({ title, range, ranges, onRange, children }: { title: string; range: Range; ranges: Range[]; onRange: (range: Range) => void; children: ComponentChildren }) {
  return (
    <Section
      title={title}
      aside={
        <div class="segments" role="group" aria-label="Time shown">
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
