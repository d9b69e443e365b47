// Labelled fields, and forms with error texts and an optional confirmation.
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
  action: string;
  /** Send the form. Its error is shown below the fields. */
  submit: (fields: FormData) => Promise<void>;
  children: ComponentChildren;
  resetsOnSubmit?: boolean;
  /** Return what submitting would replace, or undefined. The user must confirm a replacement. */
  confirmation?: (fields: FormData) => Promise<Preview | undefined>;
}

interface Pending {
  fields: FormData;
  consequence: Preview;
}

export function Form({ action, submit, children, resetsOnSubmit, confirmation }: FormProps) {
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [pending, setPending] = useState<Pending>();
  const onSubmit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    setFailure("");
    try {
      const fields = new FormData(form);
      const consequence = await confirmation?.(fields);
      if (consequence) setPending({ fields, consequence });
      else {
        await submit(fields);
        if (resetsOnSubmit) form.reset();
      }
    } catch (error) {
      setFailure(errorText(error));
    }
    setBusy(false);
  };
  return (
    <>
      <form class="form" onSubmit={(event) => void onSubmit(event)}>
        {children}
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button class="primary" disabled={busy}>
            {action}
          </button>
        </div>
      </form>
      {pending && <ConfirmDialog title={`${action}?`} preview={async () => pending.consequence} run={() => submit(pending.fields)} onClose={() => setPending(undefined)} />}
    </>
  );
}

export function fieldText(fields: FormData, name: string): string {
  const value = fields.get(name);
  return typeof value === "string" ? value : "";
}

/** Return the JSON object in a field. Throws like `parseObject`. */
export function fieldObject(fields: FormData, name: string, label: string): Record<string, unknown> {
  return parseObject(fieldText(fields, name), label);
}
