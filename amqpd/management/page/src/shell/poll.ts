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
export function usePoll<T>(ask: (signal: AbortSignal) => Promise<T>, deps: readonly unknown[], intervalMinS = 0): Polled<T> {
  const [state, setState] = useState<{ data: T | undefined; error: unknown }>({ data: undefined, error: undefined });
  const latestAsk = useRef(ask);
  latestAsk.current = ask;
  const pollNow = useRef<() => Promise<void>>(async () => undefined);
  const seconds = refreshIntervalS.value;

  // Data of the old `deps` must not be shown for the new ones. This runs before the request below, whose answer may
  // arrive before the next paint.
  const hasStarted = useRef(false);
  useLayoutEffect(() => {
    if (hasStarted.current) setState({ data: undefined, error: undefined });
    hasStarted.current = true;
  }, deps);

  // A layout effect, so that the request does not wait for a paint.
  useLayoutEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let running: Promise<void> | undefined;
    let controller: AbortController | undefined;

    const poll = async (): Promise<void> => {
      controller = new AbortController();
      const startedMs = Date.now();
      const slow = setTimeout(() => (unreachableSince.value ??= startedMs), SLOW_MS);
      try {
        const data = await latestAsk.current(controller.signal);
        if (!ended) setState({ data, error: undefined });
      } catch (error) {
        if (ended || (error instanceof DOMException && error.name === "AbortError")) return;
        setState((before) => ({ data: isNotFound(error) ? undefined : before.data, error }));
      } finally {
        clearTimeout(slow);
      }
    };
    const schedule = (): void => {
      clearTimeout(timer);
      const unreachable = unreachableSince.peek() !== null;
      if (ended || document.hidden || (seconds === 0 && !unreachable)) return;
      timer = setTimeout(() => void run(), unreachable ? RETRY_MS : Math.max(seconds, intervalMinS) * 1000);
    };
    const run = (): Promise<void> => {
      clearTimeout(timer);
      running ??= poll().finally(() => {
        running = undefined;
        schedule();
      });
      return running;
    };
    const onVisibilityChange = (): void => {
      if (document.hidden) clearTimeout(timer);
      else if (seconds !== 0) void run();
    };
    pollNow.current = async () => {
      await running; // the running request may show the state before a change
      await run();
    };
    document.addEventListener("visibilitychange", onVisibilityChange);
    void run();
    return () => {
      ended = true;
      clearTimeout(timer);
      controller?.abort();
      document.removeEventListener("visibilitychange", onVisibilityChange);
    };
  }, [...deps, seconds]);

  const refresh = useCallback(() => pollNow.current(), []);
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
  const [isPainted, setIsPainted] = useState(false);
  useLayoutEffect(() => {
    if (!ready) return;
    let ended = false;
    void afterPaint().then(() => !ended && setIsPainted(true));
    return () => {
      ended = true;
    };
  }, [ready]);
  return isPainted;
}

function isNotFound(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}
