// Editor for the arguments of a queue or exchange and for the definition of a policy. Each known name is a row with
// an input for its type and its unit. The JSON text below holds everything, also names that the broker does not know.
import { useEffect, useState } from "preact/hooks";
import { type Answer, get } from "../api/client";
import { tryParseObject } from "../api/json";
import { Icon } from "./elements";
import { Field } from "./form";

type ArgumentRow = Answer<"/api/amqpd/arguments">[number];
type Kind = "queue" | "exchange" | "policy" | "operator policy";

interface ArgumentOption {
  name: string;
  value: ArgumentRow["value"];
  unit: string;
  words: string[];
  meaning: string;
}

let rowsPromise: Promise<ArgumentRow[]> | undefined;

function loadRows(): Promise<ArgumentRow[]> {
  rowsPromise ??= get("/api/amqpd/arguments");
  rowsPromise.catch(() => (rowsPromise = undefined));
  return rowsPromise;
}

function optionsFor(known: ArgumentRow[], kind: Kind, type: string | undefined): ArgumentOption[] {
  if (kind === "queue" || kind === "exchange") return known.filter((each) => each.of === kind && (!each.types || type === undefined || each.types.includes(type)));
  const [thing, only] = APPLY_TO_FILTERS[type ?? ""] ?? [];
  return known
    .filter((each) => (!thing || each.of === thing) && (!only || !each.types || each.types.includes(only)))
    .flatMap(({ policy, meaning }) => (policy && (kind === "policy" || policy.operator) ? [{ ...policy, meaning }] : []));
}

const APPLY_TO_FILTERS: Record<string, ["queue" | "exchange", string?]> = {
  queues: ["queue"],
  classic_queues: ["queue", "classic"],
  quorum_queues: ["queue", "quorum"],
  streams: ["queue", "stream"],
  exchanges: ["exchange"],
};

function initialValue({ value, unit, words }: ArgumentOption): unknown {
  if (value === "flag") return true;
  if (value === "choice") return words[0];
  if (value === "text") return "";
  return unit === "ms" ? 60_000 : unit === "bytes" ? 104_857_600 : unit === "messages" ? 1000 : 5;
}

interface ArgumentsProps {
  kind: Kind;
  /** Type of the queue or exchange, or a policy's apply-to. Limits the offered names. */
  type?: string;
  label: string;
  text: string;
  onChange: (text: string) => void;
}

export function Arguments({ kind, type, label, text, onChange }: ArgumentsProps) {
  const [rows, setRows] = useState<ArgumentRow[]>([]);
  useEffect(() => {
    let ended = false;
    // If the request fails, the user can still write JSON.
    loadRows().then((found) => !ended && setRows(found), () => undefined);
    return () => {
      ended = true;
    };
  }, []);
  const options = optionsFor(rows, kind, type);
  const values = tryParseObject(text);
  const set = (next: Record<string, unknown>): void => onChange(Object.keys(next).length ? JSON.stringify(next, null, 2) : "");
  const present = options.filter(({ name }) => values && name in values);
  return (
    <fieldset>
      <legend>{label}</legend>
      {values &&
        present.map((option) => (
          <div key={option.name} class="argument">
            <Field label={option.name} hint={option.meaning}>
              <ValueInput option={option} value={values[option.name]} onChange={(value) => set({ ...values, [option.name]: value })} />
            </Field>
            <button type="button" class="quiet" aria-label={`Remove ${option.name}`} onClick={() => set(Object.fromEntries(Object.entries(values).filter(([name]) => name !== option.name)))}>
              <Icon name="close" />
            </button>
          </div>
        ))}
      {values && (
        <p class="chips" aria-label={`Add to ${label.toLowerCase()}`} role="group">
          {options
            .filter((option) => !(option.name in values))
            .map((option) => (
              <button key={option.name} type="button" class="quiet" title={option.meaning} onClick={() => set({ ...values, [option.name]: initialValue(option) })}>
                + {option.name}
              </button>
            ))}
        </p>
      )}
      {!values && <p class="bad">{label}: this is not a JSON object.</p>}
      <details open={!values}>
        <summary>As JSON</summary>
        <textarea class="code" rows={4} spellcheck={false} aria-label={`${label} as JSON`} placeholder='{"name": value}' value={text} onInput={(event) => onChange(event.currentTarget.value)} />
      </details>
    </fieldset>
  );
}

function ValueInput({ option, value, onChange }: { option: ArgumentOption; value: unknown; onChange: (value: unknown) => void }) {
  if (option.value === "flag" || option.value === "choice") {
    const words = option.value === "flag" ? ["true", "false"] : option.words;
    return (
      <select value={String(value)} onChange={(event) => onChange(option.value === "flag" ? event.currentTarget.value === "true" : event.currentTarget.value)}>
        {[...new Set([...words, String(value)])].map((word) => (
          <option key={word}>{word}</option>
        ))}
      </select>
    );
  }
  if (option.value === "number" && typeof value !== "string") {
    return (
      <span class="unit">
        <input type="number" step={1} required value={typeof value === "number" ? value : JSON.stringify(value)} onInput={(event) => onChange(event.currentTarget.valueAsNumber)} /> {option.unit}
      </span>
    );
  }
  return <input class="code" autocomplete="off" spellcheck={false} value={typeof value === "string" ? value : JSON.stringify(value)} onInput={(event) => onChange(event.currentTarget.value)} />;
}
