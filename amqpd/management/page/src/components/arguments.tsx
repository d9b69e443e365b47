// Arguments of a queue or an exchange, and the definition of a policy: a row each with its name, its kind of value and its unit.
// All of it is one JSON object as a text, which may be written by hand as well: arguments of clients' own have no row in the broker.
import { useEffect, useState } from "preact/hooks";
import { get, type Answer } from "../api/client";
import { kept } from "../api/json";
import { Field } from "./form";
import { Icon } from "./icon";

export { asObject } from "./form";

type Known = Answer<"/api/amqpd/arguments">[number];
type Kind = "queue" | "exchange" | "policy" | "operator policy";

/** One that may be set: as an argument, or as a policy's key. */
interface Offer {
  name: string;
  value: Known["value"];
  unit: string;
  words: string[];
  meaning: string;
}

let asked: Promise<Known[]> | undefined;

function ask(): Promise<Known[]> {
  asked ??= get("/api/amqpd/arguments");
  asked.catch(() => (asked = undefined));
  return asked;
}

function offers(known: Known[], kind: Kind, type: string | undefined): Offer[] {
  if (kind === "queue" || kind === "exchange") return known.filter((each) => each.of === kind && (!each.types || type === undefined || each.types.includes(type)));
  const [thing, only] = APPLIED[type ?? ""] ?? [];
  return known
    .filter((each) => (!thing || each.of === thing) && (!only || !each.types || each.types.includes(only)))
    .flatMap(({ policy, meaning }) => (policy && (kind === "policy" || policy.operator) ? [{ ...policy, meaning }] : []));
}

/** By what a policy applies to: the thing, and its type. */
const APPLIED: Record<string, ["queue" | "exchange", string?]> = {
  queues: ["queue"],
  classic_queues: ["queue", "classic"],
  quorum_queues: ["queue", "quorum"],
  streams: ["queue", "stream"],
  exchanges: ["exchange"],
};

/** What a row begins with. */
function begun({ value, unit, words }: Offer): unknown {
  if (value === "flag") return true;
  if (value === "choice") return words[0];
  if (value === "text") return "";
  return unit === "ms" ? 60_000 : unit === "bytes" ? 104_857_600 : unit === "messages" ? 1000 : 5;
}

interface ArgumentsProps {
  kind: Kind;
  /** Of the queue or exchange, or what the policy applies to: only what that takes is offered. */
  type?: string;
  label: string;
  /** A JSON object, or nothing. */
  text: string;
  onChange: (text: string) => void;
}

export function Arguments({ kind, type, label, text, onChange }: ArgumentsProps) {
  const [known, setKnown] = useState<Known[]>([]);
  useEffect(() => {
    let ended = false;
    // Without the list all of it can be written as JSON.
    ask().then((found) => !ended && setKnown(found), () => undefined);
    return () => {
      ended = true;
    };
  }, []);
  const offered = offers(known, kind, type);
  const now = objectOf(text);
  const set = (next: Record<string, unknown>): void => onChange(Object.keys(next).length ? JSON.stringify(next, null, 2) : "");
  const rows = offered.filter(({ name }) => now && name in now);
  return (
    <fieldset>
      <legend>{label}</legend>
      {now &&
        rows.map((offer) => (
          <div key={offer.name} class="argument">
            <Field label={offer.name} hint={offer.meaning}>
              <Value of={offer} value={now[offer.name]} onChange={(value) => set({ ...now, [offer.name]: value })} />
            </Field>
            <button type="button" class="quiet" aria-label={`Remove ${offer.name}`} onClick={() => set(Object.fromEntries(Object.entries(now).filter(([name]) => name !== offer.name)))}>
              <Icon name="close" />
            </button>
          </div>
        ))}
      {now && (
        <p class="chips" aria-label={`Add to ${label.toLowerCase()}`} role="group">
          {offered
            .filter((offer) => !(offer.name in now))
            .map((offer) => (
              <button key={offer.name} type="button" class="quiet" title={offer.meaning} onClick={() => set({ ...now, [offer.name]: begun(offer) })}>
                + {offer.name}
              </button>
            ))}
        </p>
      )}
      {!now && <p class="bad">{label}: this is no JSON object.</p>}
      <details open={!now}>
        <summary>As JSON</summary>
        <textarea class="code" rows={4} spellcheck={false} aria-label={`${label} as JSON`} placeholder='{"name": value}' value={text} onInput={(event) => onChange(event.currentTarget.value)} />
      </details>
    </fieldset>
  );
}

function Value({ of, value, onChange }: { of: Offer; value: unknown; onChange: (value: unknown) => void }) {
  if (of.value === "flag" || of.value === "choice") {
    const words = of.value === "flag" ? ["true", "false"] : of.words;
    return (
      <select value={String(value)} onChange={(event) => onChange(of.value === "flag" ? event.currentTarget.value === "true" : event.currentTarget.value)}>
        {[...new Set([...words, String(value)])].map((word) => (
          <option key={word}>{word}</option>
        ))}
      </select>
    );
  }
  if (of.value === "number" && typeof value !== "string") {
    return (
      <span class="unit">
        <input type="number" step={1} required value={typeof value === "number" ? value : JSON.stringify(value)} onInput={(event) => onChange(event.currentTarget.valueAsNumber)} /> {of.unit}
      </span>
    );
  }
  return <input class="code" autocomplete="off" spellcheck={false} value={typeof value === "string" ? value : JSON.stringify(value)} onInput={(event) => onChange(event.currentTarget.value)} />;
}

/** The object in a JSON text, numbers as they are written; null: it is none. */
export function objectOf(text: string): Record<string, unknown> | null {
  try {
    const value = kept(text.trim() || "{}");
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
