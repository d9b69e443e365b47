// All pages, in the order of the navigation: one line each. A page is a module of its own under pages/, fetched when it is
// opened first, but the overview, which comes with the start; its default export is a component that gets the names of its path.
import type { ComponentType } from "preact";
import { prefetch } from "../api/client";
import { type Role, session } from "./session";
import Overview, { firstUrl as firstOfOverview } from "../pages/overview";
import Queues, { firstUrl as firstOfQueues } from "../pages/queues";

/** What a page's component gets: the decoded names of its path, in order. */
export interface PageProps {
  names: string[];
}

export interface Page {
  /** As in the address behind #/; `*` stands for one name. */
  path: string;
  /** Of the navigation and the browser's title; a thing's own page is not in the navigation. */
  title: string;
  group?: "Broker" | "Messages" | "Administration";
  /** Whoever has no such tag does not find it in the navigation, and is told so when he opens it by address. */
  role: Role;
  load: () => Promise<PageModule>;
}

interface PageModule {
  default: ComponentType<PageProps>;
  /** The address of what it asks first, so that this may be asked before it is known who is logged in. */
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

/** Fetches a page's module; while nobody knows yet who is logged in, its first question is asked beside that one. Rejects where it cannot be had. */
export async function loadPage(page: Page): Promise<void> {
  const { default: component, firstUrl } = await page.load();
  loadedComponents.set(page, component);
  if (firstUrl && session.peek() === undefined) prefetch(firstUrl());
}

/** The page's component, once it is fetched. */
export function componentOf(page: Page): ComponentType<PageProps> | undefined {
  return loadedComponents.get(page);
}

/** The page of an address, and the names in it. */
export function findPage(path: string[]): { page: Page; names: string[] } {
  for (const page of PAGES) {
    const words = page.path.split("/").filter(Boolean);
    if (words.length !== path.length || !words.every((word, index) => word === "*" || word === path[index])) continue;
    return { page, names: path.filter((_, index) => words[index] === "*") };
  }
  return { page: NOT_FOUND, names: path };
}
