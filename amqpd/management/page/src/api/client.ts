// The API as the page asks it: typed by its OpenAPI description, errors in words, and whether the broker answers at all.
import { signal } from "@preact/signals";
import { parsed } from "./json";
import type { paths } from "./schema";

/** Since when (ms) the broker has not answered; null: it does. */
export const silentSince = signal<number | null>(null);
/** How often the session has turned out to be over; who shows the login listens to it. */
export const sessionOver = signal(0);

/** The broker refused: status, its word for it, and its reason in a sentence. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly word: string,
    readonly reason: string,
  ) {
    super(reason);
  }
}

/** Nobody answered. */
export class Silence extends Error {
  constructor() {
    super("The broker does not answer.");
  }
}

type Json<Operation> = Operation extends { responses: { 200: { content: { "application/json": infer Body } } } } ? Whole<Body> : unknown;
/** A list without `page` in its query. */
type Whole<Body> = Body extends { page_count: number } ? never : Body;
type With<Method extends string> = {
  [Path in keyof paths]: paths[Path] extends Record<Method, infer Operation> ? (Operation extends undefined ? never : Path) : never;
}[keyof paths];
export type GetPath = With<"get">;
export type Answer<Path extends GetPath> = paths[Path] extends { get: infer Operation } ? Json<Operation> : never;
/** What stands for the names in a path, `{vhost}`: encoded here, whatever they hold. */
export type Names = Record<string, string | number>;
export type Query = Record<string, string | number | boolean | undefined>;

/** Names that no address can hold: browsers take `..`, and %2E%2E too, for the way up, and would ask for another thing. */
export const unspeakable = (name: string): boolean => name === "." || name === "..";
export const UNSPEAKABLE = "A browser cannot ask for a thing of this name: in an address it means the way up. amqpctl can.";

function segment(name: string): string {
  if (unspeakable(name)) throw new Error(UNSPEAKABLE);
  return encodeURIComponent(name);
}

export function address(path: string, names: Names = {}, query: Query = {}): string {
  const whole = path.replace(/\{(\w+)\}/g, (_, name: string) => segment(String(names[name])));
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return pairs.length ? `${whole}?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}` : whole;
}

/** Any request. body: JSON, as it is where it is a Blob, or a form where it is URLSearchParams. more: headers. Throws: Refusal, Silence, AbortError. */
export async function request<T>(method: string, url: string, body?: unknown, signal?: AbortSignal, more: Record<string, string> = {}): Promise<T> {
  const headers: Record<string, string> = { "Amqpd-Page": "1", Accept: "application/json", ...more };
  const form = body instanceof URLSearchParams;
  if (body !== undefined && !form) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(url, {
      method,
      headers,
      body: body === undefined ? null : form || body instanceof Blob ? body : JSON.stringify(body),
      signal: signal ?? null,
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    silentSince.value ??= Date.now();
    throw new Silence();
  }
  silentSince.value = null;
  if (!answer.ok) throw await refusal(answer);
  const text = await answer.text();
  return (text ? parsed(text) : undefined) as T;
}

const EARLY_MS = 5000;
const early = new Map<string, { at: number; answer: Promise<unknown> }>();

/** Asks now what somebody will `get` soon, such as a page that is on its way: the first who does has this answer. */
export function askAhead(url: string): void {
  const answer = request("GET", url);
  answer.catch(() => undefined); // who wants it hears of that
  early.set(url, { at: Date.now(), answer });
}

/** What was asked ahead is nobody's any more: another user, or none, will ask. */
export function forgetAhead(): void {
  early.clear();
}

async function refusal(answer: Response): Promise<Refusal> {
  let said: { error?: unknown; reason?: unknown; detail?: unknown } = {};
  try {
    said = (await answer.json()) as typeof said;
  } catch {
    // Not from the broker, but from something between: the status has to do.
  }
  const text = [said.detail, said.reason].find((each) => typeof each === "string" && each) as string | undefined;
  const reason = text ?? (answer.statusText || `status ${answer.status}`);
  if (answer.status === 401 && reason === "Login failed") sessionOver.value += 1;
  return new Refusal(answer.status, typeof said.error === "string" ? said.error : "", reason);
}

export function get<Path extends GetPath>(path: Path, names?: Names, query?: Query, signal?: AbortSignal): Promise<Answer<Path>> {
  return getUrl<Answer<Path>>(address(path, names, query), signal);
}

export function getUrl<T>(url: string, signal?: AbortSignal): Promise<T> {
  const asked = early.get(url);
  early.delete(url);
  return asked && Date.now() - asked.at < EARLY_MS ? (asked.answer as Promise<T>) : request<T>("GET", url, undefined, signal);
}

/** What stands at an address; undefined: nothing does. */
export async function found<T>(url: string): Promise<T | undefined> {
  try {
    return await request<T>("GET", url);
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) return undefined;
    throw error;
  }
}

/** How many a list has, without the list. */
export async function counted(path: string, names: Names = {}): Promise<number> {
  const { total_count } = await request<{ total_count: number }>("GET", address(path, names, { page: 1, page_size: 1 }));
  return total_count;
}

export function put(path: With<"put">, names: Names, body: unknown = {}): Promise<unknown> {
  return request("PUT", address(path, names), body);
}

export function post<T = unknown>(path: With<"post">, names: Names, body: unknown = {}): Promise<T> {
  return request<T>("POST", address(path, names), body);
}

export function remove(path: With<"delete">, names: Names, query?: Query): Promise<unknown> {
  return request("DELETE", address(path, names, query));
}

/** An error as a sentence for people. */
export function sentence(error: unknown): string {
  if (error instanceof Refusal) {
    if (error.status === 401) {
      const tag = /^Not (\w+) user$/.exec(error.reason);
      if (tag) return `You may not do that: it takes the user tag ${tag[1] === "administrator" ? "administrator" : `${tag[1]}, or administrator`}.`;
      return error.reason === "Login failed" ? "You are no longer logged in." : `You may not do that: ${error.reason}`;
    }
    if (error.status === 403) return `The broker does not take this from here: ${error.reason}`;
    return error.status === 404 ? `It is not there (any more): ${error.reason}` : error.reason;
  }
  return error instanceof Error ? error.message : String(error);
}
