// The route: the part of the address behind #, with RabbitMQ's paths (#/queues/%2F/orders), so that links and
// bookmarks work. Its query holds the tab, the order and the search of a page.
import { signal } from "@preact/signals";

export interface Route {
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

// encodeURIComponent throws for half of a surrogate pair, so it is replaced. With the flag u a whole pair is one
// character and does not match.
const encodeSegment = (text: string): string => encodeURIComponent(text.replace(/[\ud800-\udfff]/gu, "\ufffd"));

/** Return the address of a page: `href(["queues", vhost, name], { tab: "messages" })`. */
export function href(path: (string | number)[], query: Record<string, string | number | undefined> = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.map((each) => encodeSegment(String(each))).join("/")}${text ? `?${text}` : ""}`;
}

export function navigate(path: (string | number)[], query?: Record<string, string | number | undefined>): void {
  location.hash = href(path, query);
}

/** Change the query of the route without a step in the browser's history; undefined removes a value. */
export function setQuery(changes: Record<string, string | number | undefined>): void {
  const current = Object.fromEntries(route.value.query);
  const hash = href(route.value.path, { ...current, ...changes });
  history.replaceState(null, "", hash);
  route.value = parseHash(hash);
}
