// The session of the logged-in user, and what the user may do. Scripts cannot read the cookie; the broker describes
// the session.
import { computed, effect, signal } from "@preact/signals";
import type { components } from "../api/schema";
import { type Answer, clearPrefetched, get, request, sessionEndCount, setPageUser } from "../api/client";
import { usePoll } from "./poll";

export type Session = Answer<"/api/amqpd/session">;
export type Role = "management" | "policymaker" | "monitoring" | "administrator";

/** undefined while unknown, null without a login. */
export const session = signal<Session | null | undefined>(undefined);
/** Reason why the login is shown again; empty the first time. */
export const loginMessage = signal("");

const TAGS_WITH_ROLE: Record<Role, readonly string[]> = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

const tags = computed(() => session.value?.tags ?? []);

/** Return whether the user has this tag or one that includes it. The broker checks routes in the same way. */
export function hasTag(role: Role): boolean {
  return tags.value.some((tag) => TAGS_WITH_ROLE[role].includes(tag));
}

/** Return the tag with those that include it, in words. */
export function tagAlternatives(role: Role): string {
  return role === "administrator" ? role : `${role} or ${role === "management" ? "any other" : "administrator"}`;
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

export async function login(username: string, password: string): Promise<void> {
  session.value = await request<Session>("POST", "/api/amqpd/session", new URLSearchParams({ username, password }));
  loginMessage.value = "";
}

export async function logout(): Promise<void> {
  await request("DELETE", "/api/amqpd/session");
  loginMessage.value = "You have logged out.";
  session.value = null;
}

effect(() => setPageUser(session.value?.name ?? ""));
effect(() => {
  if (sessionEndCount.value > 0 && session.peek()) {
    loginMessage.value = "Your session has ended: it expired, another tab logged out or in as another user, the password was changed, or the user was deleted.";
    session.value = null;
  }
});

export type Rights = components["schemas"]["Rights"];
const NONE: Rights = { configure: false, write: false, read: false };

export function useRights(kind: "queue" | "exchange", vhost: string, name: string): Rights {
  const { data } = usePoll((signal) => get("/api/amqpd/rights/{vhost}", { vhost }, { [kind]: name || "amq.default" }, signal), [kind, vhost, name]);
  return data ?? NONE;
}
