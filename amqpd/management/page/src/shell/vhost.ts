// Whose things the lists show: one vhost's, or those of all that the user may see. Kept by the browser.
import { signal } from "@preact/signals";
import { get, type Query } from "../api/client";

/** Empty: all. */
export const vhost = signal(localStorage.getItem("amqpd.vhost") ?? "");
/** The names that may be chosen; read at the login, and when the choice is opened. */
export const vhosts = signal<string[]>([]);

export function choose(name: string): void {
  vhost.value = name;
  localStorage.setItem("amqpd.vhost", name);
}

export async function lookForVhosts(): Promise<void> {
  const query: Query = { columns: "name", sort: "name" };
  const found = (await get("/api/vhosts", {}, query)) as unknown as { name: string }[];
  vhosts.value = found.map((each) => each.name);
  if (vhost.peek() && !vhosts.peek().includes(vhost.peek())) choose("");
}
