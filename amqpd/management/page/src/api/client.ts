// HTTP client of the admin API: typed requests, error texts, and whether the broker can be reached.
import { signal } from "@preact/signals";
import { parseJson } from "./json";
import type { paths } from "./schema";

/** When the broker stopped answering, in ms since 1970; null while it answers. */
export const unreachableSince = signal<number | null>(null);
/** Counts the ends of sessions. The session module listens to it and shows the login. */
export const sessionEndCount = signal(0);

let pageUser = "";
/** Set the user whom this tab shows. The broker refuses its requests once another tab has logged in as another user. */
export function setPageUser(name: string): void {
  pageUser = name;
}

/** An error answer of the broker: HTTP status, `error` and `reason`. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly reason: string,
  ) {
    super(reason);
  }
}

export class UnreachableError extends Error {
  constructor() {
    super("The broker does not answer.");
  }
}

type Json<Operation> = Operation extends { responses: { 200: { content: { "application/json": infer Body } } } } ? Unpaged<Body> : unknown;
/** An answer that is not a page of a list. */
type Unpaged<Body> = Body extends { page_count: number } ? never : Body;
type PathWith<Method extends string> = {
  [Path in keyof paths]: paths[Path] extends Record<Method, infer Operation> ? (Operation extends undefined ? never : Path) : never;
}[keyof paths];
export type GetPath = PathWith<"get">;
export type Answer<Path extends GetPath> = paths[Path] extends { get: infer Operation } ? Json<Operation> : never;
/** Values for the `{name}` parts of a path. `apiUrl` encodes them. */
export type PathNames = Record<string, string | number>;
export type Query = Record<string, string | number | boolean | undefined>;

/** "." and "..": browsers remove such a segment from a URL, also as %2E%2E, and would request another path. */
export const isDotSegment = (name: string): boolean => name === "." || name === "..";
export const DOT_SEGMENT_TEXT = "A browser cannot request an object named . or .. because it removes such a part from addresses. Use amqpctl.";

function encodeSegment(name: string): string {
  if (isDotSegment(name)) throw new Error(DOT_SEGMENT_TEXT);
  return encodeURIComponent(name);
}

export function apiUrl(path: string, names: PathNames = {}, query: Query = {}): string {
  const url = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeSegment(String(names[name])));
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return pairs.length ? `${url}?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}` : url;
}

/** Send a request. A body is sent as JSON; a Blob is sent unchanged, URLSearchParams as a form. Throws ApiError, UnreachableError or AbortError. */
export async function request<T>(method: string, url: string, body?: unknown, signal?: AbortSignal, extraHeaders: Record<string, string> = {}): Promise<T> {
  const headers: Record<string, string> = { "Amqpd-Page": "1", Accept: "application/json", ...extraHeaders };
  const user = pageUser;
  if (user) headers["Amqpd-User"] = encodeURIComponent(user);
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
    unreachableSince.value ??= Date.now();
    throw new UnreachableError();
  }
  unreachableSince.value = null;
  if (!answer.ok) throw await toApiError(answer, user);
  const text = await answer.text();
  return (text ? parseJson(text) : undefined) as T;
}

const PREFETCH_TTL_MS = 5000;
const prefetched = new Map<string, { at: number; answer: Promise<unknown> }>();

/** Request a URL before a page needs it. The first `getUrl` of this URL within PREFETCH_TTL_MS gets the answer. */
export function prefetch(url: string): void {
  const answer = request("GET", url);
  answer.catch(() => undefined); // `getUrl` reports the error
  prefetched.set(url, { at: Date.now(), answer });
}

/** Discard prefetched answers: the next request may come from another user. */
export function clearPrefetched(): void {
  prefetched.clear();
}

async function toApiError(answer: Response, user: string): Promise<ApiError> {
  let body: { error?: unknown; reason?: unknown; detail?: unknown } = {};
  try {
    body = (await answer.json()) as typeof body;
  } catch {
    // A proxy answered without JSON: use the status text.
  }
  const text = [body.detail, body.reason].find((each) => typeof each === "string" && each) as string | undefined;
  const reason = text ?? (answer.statusText || `status ${answer.status}`);
  if (answer.status === 401 && reason === "Login failed" && user === pageUser) sessionEndCount.value += 1;
  return new ApiError(answer.status, typeof body.error === "string" ? body.error : "", reason);
}

export function get<Path extends GetPath>(path: Path, names?: PathNames, query?: Query, signal?: AbortSignal): Promise<Answer<Path>> {
  return getUrl<Answer<Path>>(apiUrl(path, names, query), signal);
}

export function getUrl<T>(url: string, signal?: AbortSignal): Promise<T> {
  const prefetchedAnswer = prefetched.get(url);
  prefetched.delete(url);
  return prefetchedAnswer && Date.now() - prefetchedAnswer.at < PREFETCH_TTL_MS ? (prefetchedAnswer.answer as Promise<T>) : request<T>("GET", url, undefined, signal);
}

/** Return the object at a URL, or undefined if the answer is 404. */
export async function getIfExists<T>(url: string): Promise<T | undefined> {
  try {
    return await request<T>("GET", url);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

export async function countItems(path: string, names: PathNames = {}): Promise<number> {
  const { total_count } = await request<{ total_count: number }>("GET", apiUrl(path, names, { page: 1, page_size: 1 }));
  return total_count;
}

export function put(path: PathWith<"put">, names: PathNames, body: unknown = {}): Promise<unknown> {
  return request("PUT", apiUrl(path, names), body);
}

export function post<T = unknown>(path: PathWith<"post">, names: PathNames, body: unknown = {}): Promise<T> {
  return request<T>("POST", apiUrl(path, names), body);
}

export function remove(path: PathWith<"delete">, names: PathNames, query?: Query): Promise<unknown> {
  return request("DELETE", apiUrl(path, names, query));
}

export function errorText(error: unknown): string {
  if (error instanceof ApiError) {
    if (error.status === 401) {
      const tag = /^Not (\w+) user$/.exec(error.reason);
      if (tag) return `Not permitted: this needs the user tag ${tag[1] === "administrator" ? "administrator" : `${tag[1]} or administrator`}.`;
      return error.reason === "Login failed" ? "You are no longer logged in." : `Not permitted: ${error.reason}`;
    }
    if (error.status === 403) return `The broker does not accept requests from this page: ${error.reason}`;
    return error.status === 404 ? `Not found: ${error.reason}` : error.reason;
  }
  return error instanceof Error ? error.message : String(error);
}
