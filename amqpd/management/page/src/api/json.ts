// JSON with numbers that JavaScript cannot represent (ids, nanoseconds): their digits are preserved.

interface Context {
  source?: string;
}
type Reviver = (key: string, value: unknown, context?: Context) => unknown;
type Raw = { rawJSON?: (text: string) => unknown };

function parseWith(text: string, exact: (source: string) => unknown): unknown {
  const reviver: Reviver = (_, value, context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? exact(context.source) : value;
  return JSON.parse(text, reviver);
}

/** Parse JSON. Integers beyond 2^53 become strings. */
export function parseJson(text: string): unknown {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return parseWith(text, (source) => (/^-?\d+$/.test(source) ? source : Number(source)));
}

/** Parse JSON that is sent back to the broker; its numbers keep all digits. Throws SyntaxError, or Error if this browser cannot keep them. */
export function parseExactJson(text: string): unknown {
  const { rawJSON } = JSON as Raw;
  const value = rawJSON ? parseWith(text, rawJSON) : JSON.parse(text);
  if (!rawJSON && /\d{16}/.test(text)) throw new Error("this browser would change a number with so many digits; use a newer browser");
  return value;
}

/** Returns undefined if the text is not JSON or this browser would change a number. */
export function formatJson(text: string): string | undefined {
  const { rawJSON } = JSON as Raw;
  try {
    if (rawJSON) return JSON.stringify(parseWith(text, rawJSON), null, 2);
    return /\d{16}/.test(text) ? undefined : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return undefined;
  }
}

/** Parse a JSON object; an empty text is an empty object. Throws Error with a text for the user. */
export function parseObject(written: string, label: string): Record<string, unknown> {
  const text = written.trim();
  if (!text) return {};
  let value: unknown;
  try {
    value = parseExactJson(text);
  } catch (error) {
    throw new Error(`${label}: this is not JSON (${error instanceof Error ? error.message : String(error)})`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${label}: write a JSON object, {"name": value}`);
  return value as Record<string, unknown>;
}

/** Parse a JSON object. Returns null if the text is not one. */
export function tryParseObject(text: string): Record<string, unknown> | null {
  try {
    const value = parseExactJson(text.trim() || "{}");
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
