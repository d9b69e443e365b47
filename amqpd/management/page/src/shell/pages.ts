// The table of all pages, in the order of the navigation. Each page is a module in pages/, loaded when it is first
// opened; the overview and the list of queues are loaded with the start. Its default export is a component with
// `PageProps`.
import type { ComponentType } from "preact";
import { prefetch } from "../api/client";
import { type Role, session } from "./session";
import Overview, { firstUrl as firstOfOverview } from "../pages/overview";
import Queues, { firstUrl as firstOfQueues } from "../pages/queues";

/** Props of a page: the decoded names of its path, in order. */
export interface PageProps {
  names: string[];
}

export interface Page {
  /** Path behind #/ in the address; `*` is a name. */
  path: string;
  /** Title in the navigation and the browser. The page of a single object has no group and no entry in the navigation. */
  title: string;
  group?: "Broker" | "Messages" | "Administration";
  /** Tag that a user needs. The navigation hides the page from others, and its address shows them which tag it needs. */
  role: Role;
  /** Only for a broker with a Kafka listener: the navigation hides the page for others. */
  kafka?: true;
  load: () => Promise<PageModule>;
}

interface PageModule {
  default: ComponentType<PageProps>;
  /** URL of the page's first request. It is sent before the session is known. */
  firstUrl?: () => string;
}

export const PAGES: readonly Page[] = [
  { path: "", title: "Overview", group: "Broker", role: "management", load: async () => ({ default: Overview, firstUrl: firstOfOverview }) },
  { path: "nodes", title: "Nodes", group: "Broker", role: "monitoring", load: () => import("../pages/nodes") },
  { path: "connections", title: "Connections", group: "Broker", role: "management", load: () => import("../pages/connections") },
  { path: "connections/*", title: "Connection", role: "management", load: () => import("../pages/connection") },
  { path: "channels", title: "Channels", group: "Broker", role: "management", load: () => import("../pages/channels") },
  { path: "channels/*", title: "Channel", role: "management", load: () => import("../pages/channel") },
  { path: "queues", title: "Queues", group: "Messages", role: "management", load: async () => ({ default: Queues, firstUrl: firstOfQueues }) },
  { path: "queues/*/*", title: "Queue", role: "management", load: () => import("../pages/queue") },
  { path: "exchanges", title: "Exchanges", group: "Messages", role: "management", load: () => import("../pages/exchanges") },
  { path: "exchanges/*/*", title: "Exchange", role: "management", load: () => import("../pages/exchange") },
  { path: "topology", title: "Topology", group: "Messages", role: "management", load: () => import("../pages/topology") },
  { path: "kafka-groups", title: "Kafka groups", group: "Messages", role: "monitoring", kafka: true, load: () => import("../pages/kafka-groups") },
  { path: "kafka-groups/*/*", title: "Kafka group", role: "monitoring", kafka: true, load: () => import("../pages/kafka-group") },
  { path: "policies", title: "Policies", group: "Administration", role: "management", load: () => import("../pages/policies") },
  { path: "vhosts", title: "Virtual hosts", group: "Administration", role: "management", load: () => import("../pages/vhosts") },
  { path: "vhosts/*", title: "Virtual host", role: "management", load: () => import("../pages/vhost") },
  { path: "users", title: "Users", group: "Administration", role: "administrator", load: () => import("../pages/users") },
  { path: "users/*", title: "User", role: "administrator", load: () => import("../pages/user") },
  { path: "exports", title: "Exports", group: "Administration", role: "management", load: () => import("../pages/exports") },
  { path: "definitions", title: "Definitions", group: "Administration", role: "administrator", load: () => import("../pages/definitions") },
  { path: "audit", title: "Audit log", group: "Administration", role: "administrator", load: () => import("../pages/audit") },
];

const NOT_FOUND: Page = { path: "*", title: "Not found", role: "management", load: () => import("../pages/not-found") };

const loadedComponents = new Map<Page, ComponentType<PageProps>>();

/** Load a page's module and, while the session is unknown, send its first request. Rejects if the module cannot be loaded. */
export async function loadPage(page: Page): Promise<void> {
  const { default: component, firstUrl } = await page.load();
  loadedComponents.set(page, component);
  if (firstUrl && session.peek() === undefined) prefetch(firstUrl());
}

export function componentOf(page: Page): ComponentType<PageProps> | undefined {
  return loadedComponents.get(page);
}

export function findPage(path: string[]): { page: Page; names: string[] } {
  for (const page of PAGES) {
    const words = page.path.split("/").filter(Boolean);
    if (words.length !== path.length || !words.every((word, index) => word === "*" || word === path[index])) continue;
    return { page, names: path.filter((_, index) => words[index] === "*") };
  }
  return { page: NOT_FOUND, names: path };
}
