// Who is logged in. The cookie is the browser's alone; this knows what the broker says of it.
import { computed, effect, signal } from "@preact/signals";
import { forgetAhead, get, request, sessionOver, type Answer } from "../api/client";

export type Session = Answer<"/api/amqpd/session">;
export type Role = "management" | "policymaker" | "monitoring" | "administrator";

/** undefined: not yet known; null: nobody. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the login is shown again; empty the first time. */
export const loginNote = signal("");

const INCLUDED: Record<Role, readonly string[]> = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

const tags = computed(() => session.value?.tags ?? []);

/** Whether the user has this tag or one that includes it: what the broker asks of him for a route of that role. */
export function has(role: Role): boolean {
  return tags.value.some((tag) => INCLUDED[role].includes(tag));
}

/** The tag in words, with what includes it. */
export function orAbove(role: Role): string {
  return role === "administrator" ? role : `${role}, or ${role === "management" ? "any other" : "administrator"}`;
}

export async function look(): Promise<void> {
  const before = sessionOver.peek();
  try {
    session.value = await get("/api/amqpd/session");
  } catch (error) {
    if (sessionOver.peek() === before) throw error;
    forgetAhead();
    session.value = null;
  }
}

/** Throws: Refusal with why not, Silence. */
export async function login(username: string, password: string): Promise<void> {
  session.value = await request<Session>("POST", "/api/amqpd/session", new URLSearchParams({ username, password }));
  loginNote.value = "";
}

export async function logout(): Promise<void> {
  await request("DELETE", "/api/amqpd/session");
  loginNote.value = "You are logged out.";
  session.value = null;
}

effect(() => {
  if (sessionOver.value > 0 && session.peek()) {
    loginNote.value = "Your login is over: it has run its time, the password was changed, or the broker was started anew.";
    session.value = null;
  }
});
