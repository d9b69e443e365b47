// What the API's samples of some counters were over a time, for charts: all of it once, then only what is new.
import { useRef, useState } from "preact/hooks";
import type { Query } from "../api/client";
import { afterPaint, type Polled, usePoll } from "../shell/poll";

export interface Sample {
  sample: number;
  timestamp: number;
}
/** By the name that a chart calls it: what the API has under `..._details`. */
export type Counters = Record<string, { rate?: number; samples?: Sample[] | undefined; recorded_since?: number | undefined } | undefined>;

/** Seconds; and how far apart the broker has samples of so long ago. */
export const RANGES = { "1 min": [60, 5], "10 min": [600, 5], "1 h": [3600, 60], "8 h": [28800, 600], "24 h": [86400, 1800] } as const;
export type Range = keyof typeof RANGES;
/** Of single objects: the broker keeps an hour of them. */
export const OBJECT_RANGES: Range[] = ["1 min", "10 min", "1 h"];
export const ALL_RANGES = Object.keys(RANGES) as Range[];

export interface Series {
  /** Seconds since 1970, rising. */
  times: number[];
  /** As the counters were. */
  values: (name: string) => (number | null)[];
  /** How fast they rose, a second. */
  rates: (name: string) => (number | null)[];
  /** How fast it rises now, as the broker says; undefined where it does not. */
  now?: (name: string) => number | undefined;
  /** Seconds that a chart shows, up to the newest sample; without it as far as there are any. */
  ageS?: number;
  /** When the broker took the first sample of them, seconds since 1970. */
  sinceS?: number | undefined;
}

/** Samples are absent where the broker took none: two that are further apart than so many steps have a gap between them. */
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
      // A moment without any value: no curve crosses it.
      if (before !== undefined && at - before > STEPS_MAX * this.increment * 1000) times.push(before + this.increment * 1000);
      times.push(at);
    }
    const values = (name: string): (number | null)[] => times.map((at) => this.samples.get(name)?.get(at) ?? null);
    const rates = (name: string): (number | null)[] => {
      const counts = values(name);
      return counts.map((value, index) => {
        const before = counts[index - 1];
        // The newest is not sampled yet but what it is now.
        if (index === 0 || index === counts.length - 1 || value === null || before === null || before === undefined) return null;
        return Math.max(0, ((value - before) * 1000) / (times[index]! - times[index - 1]!));
      });
    };
    return { times: times.map((at) => at / 1000), values, rates, now: (name) => this.latest.get(name), ageS: this.age, sinceS: this.sinceMs === undefined ? undefined : this.sinceMs / 1000 };
  }
}

/** Polls `ask`, which hands on the query it gets, and keeps what `pick` finds in the answers. */
export function useHistory<T>(
  range: Range,
  ask: (query: Query, signal: AbortSignal) => Promise<T>,
  pick: (answer: T) => Counters,
  deps: readonly unknown[],
): Polled<T> & { points: Series } {
  const [age, increment] = RANGES[range];
  const track = useRef<SampleTrack>();
  const key = JSON.stringify([range, ...deps]);
  const of = useRef("");
  if (of.current !== key) {
    of.current = key;
    track.current = new SampleTrack(age, increment);
  }
  const [, rerender] = useState(0);
  // What there is without its past comes first: that is asked and painted in no time, an hour of samples is 100 KB.
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
  const early = first?.key === key ? first.answer : undefined;
  return { ...polled, data: polled.data ?? (polled.error === undefined ? early : undefined), points: track.current!.points() };
}
