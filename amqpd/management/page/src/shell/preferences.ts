// Whose things the lists show: one vhost's, or those of all that the user may see. Kept by the browser.
import { signal } from "@preact/signals";
import { request } from "../api/client";

/** A choice offers so many; of more it opens a list that the broker pages and searches. */
const OFFERED = 100;

/** Empty: all. */
export const vhost = signal(localStorage.getItem("amqpd.vhost") ?? "");
/** The first names in order, OFFERED at most; read at the login, and when the choice is opened. */
export const vhosts = signal<string[]>([]);
/** How many there are. */
export const vhostCount = signal(0);

export function choose(name: string): void {
  vhost.value = name;
  localStorage.setItem("amqpd.vhost", name);
}

interface Found {
  items: { name: string }[];
  total_count: number;
}

const asked = (query: Record<string, string>): Promise<Found> => request<Found>("GET", `/api/vhosts?${new URLSearchParams({ page: "1", columns: "name", sort: "name", ...query })}`);

export async function lookForVhosts(): Promise<void> {
  const found = await asked({ page_size: String(OFFERED) });
  vhosts.value = found.items.map((each) => each.name);
  vhostCount.value = found.total_count;
  const chosen = vhost.peek();
  if (chosen && !vhosts.peek().includes(chosen) && !(await isThere(chosen))) choose("");
}

async function isThere(name: string): Promise<boolean> {
  if (vhostCount.peek() <= OFFERED) return false;
  const exactly = name.replace(/[^\w]/gu, (sign) => `\\x{${sign.codePointAt(0)!.toString(16)}}`);
  return (await asked({ page_size: "1", name: `^${exactly}$`, use_regex: "true" })).items.length > 0;
}
