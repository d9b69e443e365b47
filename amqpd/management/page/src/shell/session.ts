// Who is logged in. The cookie is the browser's alone; this knows what the broker says of it.
import { computed, effect, signal } from "@preact/signals";
import type { components } from "../api/schema";
import { type Answer, clearPrefetched, get, request, sessionEndCount } from "../api/client";
import { usePoll } from "./poll";

export type Session = Answer<"/api/amqpd/session">;
export type Role = "management" | "policymaker" | "monitoring" | "administrator";

/** undefined: not yet known; null: nobody. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the login is shown again; empty the first time. */
export const loginMessage = signal("");

const TAGS_WITH_ROLE: Record<Role, readonly string[]> = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

const tags = computed(() => session.value?.tags ?? []);

/** Whether the user has this tag or one that includes it: what the broker asks of him for a route of that role. */
export function hasTag(role: Role): boolean {
  return tags.value.some((tag) => TAGS_WITH_ROLE[role].includes(tag));
}

/** The tag in words, with what includes it. */
export function tagAlternatives(role: Role): string {
  return role === "administrator" ? role : `${role}, or ${role === "management" ? "any other" : "administrator"}`;
}

export async function loadSession(): Promise<void> {
  const before = sessionEndCount.peek();
  try {
    session.value = await get("/api/amqpd/session");
  } catch (error) {
    if (sessionEndCount.peek() === before) throw error;
    clearPrefetched();
    session.value = null;
  }
}

/** Throws: Refusal with why not, Silence. */
export async function login(username: string, password: string): Promise<void> {
  session.value = await request<Session>("POST", "/api/amqpd/session", new URLSearchParams({ username, password }));
  loginMessage.value = "";
}

export async function logout(): Promise<void> {
  await request("DELETE", "/api/amqpd/session");
  loginMessage.value = "You are logged out.";
  session.value = null;
}

effect(() => {
  if (sessionEndCount.value > 0 && session.peek()) {
    loginMessage.value = "Your login is over: it has run its time, the password was changed, or the broker was started anew.";
    session.value = null;
  }
});

export type Rights = components["schemas"]["Rights"];
const NONE: Rights = { configure: false, write: false, read: false };

export function useRights(kind: "queue" | "exchange", vhost: string, name: string): Rights {
  const { data } = usePoll((signal) => get("/api/amqpd/rights/{vhost}", { vhost }, { [kind]: name || "amq.default" }, signal), [kind, vhost, name]);
  return data ?? NONE;
}
