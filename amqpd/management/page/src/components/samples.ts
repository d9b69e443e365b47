// Samples of counters over time, for charts. The first request fetches the whole range, later ones only what is new.
import { useRef, useState } from "preact/hooks";
import type { Query } from "../api/client";
import { afterPaint, type Polled, usePoll } from "../shell/poll";

export interface Sample {
  sample: number;
  timestamp: number;
}
/** Counters by the name that a chart uses; the values are the API's `..._details`. */
export type Counters = Record<string, { rate?: number; samples?: Sample[] | undefined; recorded_since?: number | undefined } | undefined>;

/** Range -> seconds, and the interval of the broker's samples in it. */
export const RANGES = { "1 min": [60, 5], "10 min": [600, 5], "1 h": [3600, 60], "8 h": [28800, 600], "24 h": [86400, 1800] } as const;
export type Range = keyof typeof RANGES;
/** The broker keeps one hour of samples for a queue, exchange, channel or connection. */
export const OBJECT_RANGES: Range[] = ["1 min", "10 min", "1 h"];
export const ALL_RANGES = Object.keys(RANGES) as Range[];

export interface Series {
  times: number[];
  values: (name: string) => (number | null)[];
  rates: (name: string) => (number | null)[];
  /** The current rate, as the broker measures it; undefined if it does not. */
  now?: (name: string) => number | undefined;
  /** Seconds that a chart shows, up to the newest sample; undefined shows all samples. */
  ageS?: number;
  /** Time of the broker's first sample, in seconds since 1970. */
  sinceS?: number | undefined;
}

/** A larger distance than so many steps is a gap: the broker took no samples there. */
const STEPS_MAX = 2;

const KINDS = ["msg_rates", "lengths", "data_rates", "node_stats"] as const;

function sampleQuery(age: number, increment: number): Query {
  return Object.fromEntries(KINDS.flatMap((kind) => [[`${kind}_age`, age], [`${kind}_incr`, increment]]));
}

class SampleTrack {
  private readonly latest = new Map<string, number>();
  private readonly samples = new Map<string, Map<number, number>>();
  private sinceMs: number | undefined;
  newest = 0;

  constructor(
    readonly age: number,
    readonly increment: number,
  ) {}

  add(counters: Counters): void {
    for (const [name, counter] of Object.entries(counters)) {
      const values = this.samples.get(name) ?? new Map<number, number>();
      this.samples.set(name, values);
      if (counter?.recorded_since !== undefined) this.sinceMs = Math.max(this.sinceMs ?? 0, counter.recorded_since);
      if (counter?.rate !== undefined) this.latest.set(name, counter.rate);
      for (const { sample, timestamp } of counter?.samples ?? []) {
        values.set(timestamp, sample);
        this.newest = Math.max(this.newest, timestamp);
      }
    }
    const oldest = this.newest - this.age * 1000;
    for (const values of this.samples.values()) for (const at of values.keys()) if (at < oldest) values.delete(at);
  }

  points(): Series {
    const times: number[] = [];
    for (const at of [...new Set([...this.samples.values()].flatMap((values) => [...values.keys()]))].sort((a, b) => a - b)) {
      const before = times.at(-1);
      // A time without values interrupts every curve.
      if (before !== undefined && at - before > STEPS_MAX * this.increment * 1000) times.push(before + this.increment * 1000);
      times.push(at);
    }
    const values = (name: string): (number | null)[] => times.map((at) => this.samples.get(name)?.get(at) ?? null);
    const rates = (name: string): (number | null)[] => {
      const counts = values(name);
      return counts.map((value, index) => {
        const before = counts[index - 1];
        // The newest value is the current one, not a sample.
        if (index === 0 || index === counts.length - 1 || value === null || before === null || before === undefined) return null;
        return Math.max(0, ((value - before) * 1000) / (times[index]! - times[index - 1]!));
      });
    };
    return { times: times.map((at) => at / 1000), values, rates, now: (name) => this.latest.get(name), ageS: this.age, sinceS: this.sinceMs === undefined ? undefined : this.sinceMs / 1000 };
  }
}

/** Poll `ask` with a query for new samples, and keep the counters that `pick` finds in the answers. */
export function useHistory<T>(
  range: Range,
  ask: (query: Query, signal: AbortSignal) => Promise<T>,
  pick: (answer: T) => Counters,
  deps: readonly unknown[],
): Polled<T> & { points: Series } {
  const [age, increment] = RANGES[range];
  const track = useRef<SampleTrack>();
  const key = JSON.stringify([range, ...deps]);
  const trackKey = useRef("");
  if (trackKey.current !== key) {
    trackKey.current = key;
    track.current = new SampleTrack(age, increment);
  }
  const [, rerender] = useState(0);
  // The first request has no samples and is painted at once; an hour of samples is 100 KB.
  const [first, setFirst] = useState<{ key: string; answer: T }>();
  const polled = usePoll(
    async (signal) => {
      const current = track.current!;
      if (current.newest === 0) {
        setFirst({ key, answer: await ask({}, signal) });
        await afterPaint();
      }
      const missed = (Date.now() - current.newest) / 1000 + 2 * increment;
      const answer = await ask(sampleQuery(Math.min(age, Math.ceil(missed / increment) * increment), increment), signal);
      current.add(pick(answer));
      rerender((before) => before + 1);
      return answer;
    },
    [range, ...deps],
  );
  const firstAnswer = first?.key === key ? first.answer : undefined;
  return { ...polled, data: polled.data ?? (polled.error === undefined ? firstAnswer : undefined), points: track.current!.points() };
}
