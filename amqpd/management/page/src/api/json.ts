// Numbers that a browser cannot hold exactly, as ids and nanoseconds are: kept as they were written.

interface Context {
  source?: string;
}
type Reviver = (key: string, value: unknown, context?: Context) => unknown;
type Raw = { rawJSON?: (text: string) => unknown };

function revived(text: string, exact: (source: string) => unknown): unknown {
  const reviver: Reviver = (_, value, context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? exact(context.source) : value;
  return JSON.parse(text, reviver);
}

/** JSON; whole numbers beyond 2^53 are texts. */
export function parsed(text: string): unknown {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return revived(text, (source) => (/^-?\d+$/.test(source) ? source : Number(source)));
}

/** JSON that is sent on, each number as it was written. Throws: SyntaxError; Error where this browser might change one. */
export function kept(text: string): unknown {
  const { rawJSON } = JSON as Raw;
  const value = rawJSON ? revived(text, rawJSON) : JSON.parse(text);
  if (!rawJSON && /\d{16}/.test(text)) throw new Error("this browser cannot keep a number of so many digits; a newer one can");
  return value;
}

/** JSON with line breaks, each number as it was written. undefined: it is no JSON, or this browser would change a number. */
export function pretty(text: string): string | undefined {
  const { rawJSON } = JSON as Raw;
  try {
    if (rawJSON) return JSON.stringify(revived(text, rawJSON), null, 2);
    return /\d{16}/.test(text) ? undefined : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return undefined;
  }
}
