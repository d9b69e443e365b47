// Modal dialogs. A dangerous action first shows what it will change and how many messages it affects.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { errorText } from "../api/client";
import { Icon, showInvisible } from "./elements";
import { notify } from "./notices";

/** The browser's modal dialog: it traps the focus and restores it, and Escape closes it. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId(); // two dialogs may be open at once
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} class={wide ? "wide" : ""} aria-labelledby={id} onClose={onClose}>
      <div class="title">
        <h2 id={id}>{showInvisible(title)}</h2>
        <button class="quiet" aria-label="Close" onClick={() => dialog.current?.close()}>
          <Icon name="close" />
        </button>
      </div>
      {children}
    </dialog>
  );
}

export interface Preview {
  text: ComponentChildren;
  /** Label of the confirming button: "Purge 1,203 messages". */
  action: string;
  /** True hides the confirming button. */
  nothingToDo?: boolean;
}

export type ReportProgress = (text: string) => void;

interface DangerButtonProps {
  label: string;
  title: string;
  /** Find out what the action would change, by a dry run or by reading the current state. `signal` aborts when the dialog closes. */
  preview: (signal: AbortSignal) => Promise<Preview>;
  /** Execute the action. The returned text becomes a notice. */
  run: (reportProgress: ReportProgress) => Promise<string | void>;
  onDone?: () => void;
  disabled?: boolean;
  disabledReason?: string;
}

export function DangerButton({ label, title, preview, run, onDone, disabled, disabledReason }: DangerButtonProps) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button class="danger" disabled={disabled} title={disabledReason} onClick={() => setOpen(true)}>
        {label}
      </button>
      {open && (
        <ConfirmDialog
          title={title}
          preview={preview}
          run={run}
          onClose={(done) => {
            setOpen(false);
            if (done) onDone?.();
          }}
        />
      )}
    </>
  );
}

export function ConfirmDialog({ title, preview, run, onClose }: Pick<DangerButtonProps, "title" | "preview" | "run"> & { onClose: (done: boolean) => void }) {
  const [shown, setShown] = useState<Preview>();
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [progress, setProgress] = useState("");
  const done = useRef(false);
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const controller = new AbortController();
    preview(controller.signal).then(setShown, (error: unknown) => setFailure(errorText(error)));
    return () => controller.abort();
  }, []);
  const close = (): void => frame.current?.closest("dialog")?.close();
  const confirm = async (): Promise<void> => {
    setBusy(true);
    setFailure("");
    try {
      const message = await run(setProgress);
      if (message) notify(message);
      done.current = true;
      close();
    } catch (error) {
      setFailure(errorText(error));
    }
    setBusy(false);
    setProgress("");
  };
  return (
    <Dialog title={title} onClose={() => onClose(done.current)}>
      <div ref={frame}>
        <div aria-live="polite">{shown ? shown.text : !failure && <p>Loading the preview …</p>}</div>
        <p aria-live="polite" class="muted">
          {progress}
        </p>
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button onClick={close}>Cancel</button>
          {shown && !shown.nothingToDo && (
            <button class="danger primary" disabled={busy} onClick={() => void confirm()}>
              {shown.action}
            </button>
          )}
        </div>
      </div>
    </Dialog>
  );
}
