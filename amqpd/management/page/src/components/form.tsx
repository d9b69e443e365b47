// Fields with their names, and forms that send themselves.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { sentence } from "../api/client";
import { kept } from "../api/json";
import { Confirm, type Consequence } from "./dialog";

export function Field({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint && <small>{hint}</small>}
    </label>
  );
}

interface FormProps {
  /** On its button. */
  action: string;
  /** Sends it; what it throws is shown. */
  send: (fields: FormData) => Promise<void>;
  children: ComponentChildren;
  /** Empties the fields when it is sent. */
  once?: boolean;
  /** What it would take away, such as what is there by that name: asked for first, and confirmed. undefined: nothing. */
  before?: (fields: FormData) => Promise<Consequence | undefined>;
}

interface Asked {
  fields: FormData;
  consequence: Consequence;
}

export function Form({ action, send, children, once, before }: FormProps) {
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [asked, setAsked] = useState<Asked>();
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    setFailure("");
    try {
      const fields = new FormData(form);
      const consequence = await before?.(fields);
      if (consequence) setAsked({ fields, consequence });
      else {
        await send(fields);
        if (once) form.reset();
      }
    } catch (error) {
      setFailure(sentence(error));
    }
    setBusy(false);
  };
  return (
    <>
      <form class="form" onSubmit={(event) => void submit(event)}>
        {children}
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button class="main" disabled={busy}>
            {action}
          </button>
        </div>
      </form>
      {asked && <Confirm title={`${action}?`} look={async () => asked.consequence} run={() => send(asked.fields)} onClose={() => setAsked(undefined)} />}
    </>
  );
}

/** A text of a form; empty when it is not there. */
export function text(fields: FormData, name: string): string {
  const value = fields.get(name);
  return typeof value === "string" ? value : "";
}

/** The JSON object in a field; as `asObject`. */
export function object(fields: FormData, name: string, label: string): Record<string, unknown> {
  return asObject(text(fields, name), label);
}

/** The JSON object in a text, its numbers as they were written; an empty text is an empty one. Throws: Error for people. */
export function asObject(written: string, label: string): Record<string, unknown> {
  const said = written.trim();
  if (!said) return {};
  let value: unknown;
  try {
    value = kept(said);
  } catch (error) {
    throw new Error(`${label}: this is not JSON (${error instanceof Error ? error.message : String(error)})`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${label}: a JSON object is wanted, {"name": value}`);
  return value as Record<string, unknown>;
}
