// Fields with their names, and forms that send themselves.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { errorText } from "../api/client";
import { parseObject } from "../api/json";
import { ConfirmDialog, type Preview } from "./dialog";

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
  before?: (fields: FormData) => Promise<Preview | undefined>;
}

interface Pending {
  fields: FormData;
  consequence: Preview;
}

export function Form({ action, send, children, once, before }: FormProps) {
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [pending, setPending] = useState<Pending>();
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    setFailure("");
    try {
      const fields = new FormData(form);
      const consequence = await before?.(fields);
      if (consequence) setPending({ fields, consequence });
      else {
        await send(fields);
        if (once) form.reset();
      }
    } catch (error) {
      setFailure(errorText(error));
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
      {pending && <ConfirmDialog title={`${action}?`} look={async () => pending.consequence} run={() => send(pending.fields)} onClose={() => setPending(undefined)} />}
    </>
  );
}

/** A text of a form; empty when it is not there. */
export function fieldText(fields: FormData, name: string): string {
  const value = fields.get(name);
  return typeof value === "string" ? value : "";
}

/** The JSON object in a field; as `asObject`. */
export function fieldObject(fields: FormData, name: string, label: string): Record<string, unknown> {
  return parseObject(fieldText(fields, name), label);
}
