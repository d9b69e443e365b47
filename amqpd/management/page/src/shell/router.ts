// Where the page is: what stands behind # in the address, with RabbitMQ's paths, so that links and bookmarks of its page work:
// #/queues/%2F/orders. What a page shows of its thing (a tab, a sort order, a search) stands behind a ? there.
import { signal } from "@preact/signals";

export interface Route {
  /** The path's segments, decoded. */
  path: string[];
  query: URLSearchParams;
}

function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function parseHash(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decodeSegment), query: new URLSearchParams(query) };
}

export const route = signal<Route>(parseHash(location.hash));
addEventListener("hashchange", () => {
  route.value = parseHash(location.hash);
});

// What is no Unicode, half of a pair, would throw; nothing there is called so. (With the u flag a whole pair is one sign, and matches not.)
const encodeSegment = (text: string): string => encodeURIComponent(text.replace(/[\ud800-\udfff]/gu, "\ufffd"));

/** The address of a page: `href(["queues", vhost, name], { tab: "messages" })`. */
export function href(path: (string | number)[], query: Record<string, string | number | undefined> = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.map((each) => encodeSegment(String(each))).join("/")}${text ? `?${text}` : ""}`;
}

export function navigate(path: (string | number)[], query?: Record<string, string | number | undefined>): void {
  location.hash = href(path, query);
}

/** Other words behind the ?, on the same page; undefined takes one away. No step back in the browser's history for it. */
export function setQuery(changes: Record<string, string | number | undefined>): void {
  const now = Object.fromEntries(route.value.query);
  const hash = href(route.value.path, { ...now, ...changes });
  history.replaceState(null, "", hash);
  route.value = parseHash(hash);
}
