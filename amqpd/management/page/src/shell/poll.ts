// Asking again and again: every few seconds while somebody looks, never twice at once, and not at all while the tab is hidden.
import { useCallback, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError, unreachableSince } from "../api/client";
import { refreshIntervalS } from "./preferences";

const RETRY_MS = 1000;
/** Whoever has heard nothing for so long is told: a broker that hangs refuses nothing. */
const SLOW_MS = 10000;
const UNSEEN_MS = 200;

export interface Polled<T> {
  data: T | undefined;
  /** Why the last request failed; the data before it stays. */
  error: unknown;
  /** Asks now; the promise ends with the answer. */
  refresh: () => Promise<void>;
}

/** deps: what the request depends on; another one begins anew, and the old answer goes. leastS: seconds between two at least, for
 *  what costs the broker more than others, or is no newer if asked sooner. */
export function usePoll<T>(ask: (signal: AbortSignal) => Promise<T>, deps: readonly unknown[], leastS = 0): Polled<T> {
  const [state, setState] = useState<{ data: T | undefined; error: unknown }>({ data: undefined, error: undefined });
  const asking = useRef(ask);
  asking.current = ask;
  const now = useRef<() => Promise<void>>(async () => undefined);
  const seconds = refreshIntervalS.value;

  // What was asked before is no answer to this; before the first request, whose answer may be there before the next paint.
  const begun = useRef(false);
  useLayoutEffect(() => {
    if (begun.current) setState({ data: undefined, error: undefined });
    begun.current = true;
  }, deps);

  // Not behind the next paint: what is asked for now is what that should show.
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
      await running; // what is under way may be from before a change
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

/** Ends when what is set now has been painted, which is when the frame after it begins; where nobody looks nothing is, and it ends
 *  all the same. */
export function afterPaint(): Promise<void> {
  return new Promise((done) => {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
    setTimeout(done, UNSEEN_MS);
  });
}

/** Whether what was there when `ready` came has been painted: what costs more than it tells stands behind this. */
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
