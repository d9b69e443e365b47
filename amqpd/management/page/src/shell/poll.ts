// Polling: one request every few seconds, never two at once, none while the tab is hidden.
import { useCallback, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError, unreachableSince } from "../api/client";
import { refreshIntervalS } from "./preferences";

const RETRY_MS = 1000;
/** After so long without an answer the page shows that the broker is unreachable. A broker that hangs refuses nothing. */
const SLOW_MS = 10000;
const UNSEEN_MS = 200;

export interface Polled<T> {
  data: T | undefined;
  /** Error of the last request; the previous data stay. */
  error: unknown;
  /** Request now. The promise ends with the answer. */
  refresh: () => Promise<void>;
}

/**
 * Poll `ask`. If `deps` change, the old data are removed and polling starts again. `intervalMinS` is the shortest
 * interval, for requests that are expensive or whose data change slowly.
 */
export function usePoll<T>(ask: (signal: AbortSignal) => Promise<T>, deps: readonly unknown[], leastS = 0): Polled<T> {
  const [state, setState] = useState<{ data: T | undefined; error: unknown }>({ data: undefined, error: undefined });
  const asking = useRef(ask);
  asking.current = ask;
  const now = useRef<() => Promise<void>>(async () => undefined);
  const seconds = refreshIntervalS.value;

  // Data of the old `deps` must not be shown for the new ones. This runs before the request below, whose answer may
  // arrive before the next paint.
  const begun = useRef(false);
  useLayoutEffect(() => {
    if (begun.current) setState({ data: undefined, error: undefined });
    begun.current = true;
  }, deps);

  // A layout effect, so that the request does not wait for a paint.
  useLayoutEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let running: Promise<void> | undefined;
    let broken: AbortController | undefined;

    const once = async (): Promise<void> => {
      broken = new AbortController();
      const begun = Date.now();
      const slow = setTimeout(() => (unreachableSince.value ??= begun), SLOW_MS);
      try {
        const data = await asking.current(broken.signal);
        if (!ended) setState({ data, error: undefined });
      } catch (error) {
        if (ended || (error instanceof DOMException && error.name === "AbortError")) return;
        setState((before) => ({ data: isNotFound(error) ? undefined : before.data, error }));
      } finally {
        clearTimeout(slow);
      }
    };
    const next = (): void => {
      clearTimeout(timer);
      const silent = unreachableSince.peek() !== null;
      if (ended || document.hidden || (seconds === 0 && !silent)) return;
      timer = setTimeout(() => void run(), silent ? RETRY_MS : Math.max(seconds, leastS) * 1000);
    };
    const run = (): Promise<void> => {
      clearTimeout(timer);
      running ??= once().finally(() => {
        running = undefined;
        next();
      });
      return running;
    };
    const seen = (): void => {
      if (document.hidden) clearTimeout(timer);
      else if (seconds !== 0) void run();
    };
    now.current = async () => {
      await running; // the running request may show the state before a change
      await run();
    };
    document.addEventListener("visibilitychange", seen);
    void run();
    return () => {
      ended = true;
      clearTimeout(timer);
      broken?.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [...deps, seconds]);

  const refresh = useCallback(() => now.current(), []);
  return { ...state, refresh };
}

/** Resolve after the current state is painted: two animation frames later. A hidden tab paints nothing; there a timer resolves. */
export function afterPaint(): Promise<void> {
  return new Promise((done) => {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
    setTimeout(done, UNSEEN_MS);
  });
}

/** Return true once the state that made `ready` true is painted. Expensive parts of a page wait for this. */
export function useAfterPaint(ready: boolean): boolean {
  const [seen, setSeen] = useState(false);
  useLayoutEffect(() => {
    if (!ready) return;
    let ended = false;
    void afterPaint().then(() => !ended && setSeen(true));
    return () => {
      ended = true;
    };
  }, [ready]);
  return seen;
}

function isNotFound(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}
