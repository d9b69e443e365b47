// Dialogs, and among them the one that stands before everything dangerous: what will happen, to how many, and only then do.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { errorText } from "../api/client";
import { Icon, showInvisible } from "./elements";
import { notify } from "./notices";

/** The browser's own modal dialog: it keeps the focus, gives it back, and Escape closes it. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId(); // one may stand before another
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
  /** What it will do, to how many messages; in whole sentences. */
  text: ComponentChildren;
  /** What stands on the button that does it: "Purge 1,203 messages". */
  action: string;
  /** There is nothing to do: it cannot be confirmed. */
  nothingToDo?: boolean;
}

/** Says how far it is. */
export type ReportProgress = (text: string) => void;

interface DangerButtonProps {
  /** Of the button that opens the dialog. */
  label: string;
  title: string;
  /** Finds out what it will do: by a dry run, or by a look at the thing as it is now. signal: nobody waits for it any more. */
  look: (signal: AbortSignal) => Promise<Preview>;
  /** Does it; what it returns is told. */
  run: (say: ReportProgress) => Promise<string | void>;
  onDone?: () => void;
  disabled?: boolean;
  why?: string;
}

/** A button that asks before it does. */
export function DangerButton({ label, title, look, run, onDone, disabled, why }: DangerButtonProps) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button class="danger" disabled={disabled} title={why} onClick={() => setOpen(true)}>
        {label}
      </button>
      {open && (
        <ConfirmDialog
          title={title}
          look={look}
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

export function ConfirmDialog({ title, look, run, onClose }: Pick<DangerButtonProps, "title" | "look" | "run"> & { onClose: (done: boolean) => void }) {
  const [shown, setShown] = useState<Preview>();
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [progress, setProgress] = useState("");
  const done = useRef(false);
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const left = new AbortController();
    look(left.signal).then(setShown, (error: unknown) => setFailure(errorText(error)));
    return () => left.abort();
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
        <div aria-live="polite">{shown ? shown.text : !failure && <p>Looking at what it would do …</p>}</div>
        <p aria-live="polite" class="soft">
          {progress}
        </p>
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button onClick={close}>Cancel</button>
          {shown && !shown.nothingToDo && (
            <button class="danger main" disabled={busy} onClick={() => void confirm()}>
              {shown.action}
            </button>
          )}
        </div>
      </div>
    </Dialog>
  );
}
