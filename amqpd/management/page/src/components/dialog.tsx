// Dialogs, and among them the one that stands before everything dangerous: what will happen, to how many, and only then do.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { sentence } from "../api/client";
import { Icon } from "./icon";
import { notify } from "./notices";
import { visible } from "./elements";

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
        <h2 id={id}>{visible(title)}</h2>
        <button class="quiet" aria-label="Close" onClick={() => dialog.current?.close()}>
          <Icon name="close" />
        </button>
      </div>
      {children}
    </dialog>
  );
}

export interface Consequence {
  /** What it will do, to how many messages; in whole sentences. */
  text: ComponentChildren;
  /** What stands on the button that does it: "Purge 1,203 messages". */
  action: string;
  /** There is nothing to do: it cannot be confirmed. */
  nothing?: boolean;
}

/** Says how far it is. */
export type Say = (text: string) => void;

interface DangerProps {
  /** Of the button that opens the dialog. */
  label: string;
  title: string;
  /** Finds out what it will do: by a dry run, or by a look at the thing as it is now. signal: nobody waits for it any more. */
  look: (signal: AbortSignal) => Promise<Consequence>;
  /** Does it; what it returns is told. */
  run: (say: Say) => Promise<string | void>;
  onDone?: () => void;
  disabled?: boolean;
  why?: string;
}

/** A button that asks before it does. */
export function Danger({ label, title, look, run, onDone, disabled, why }: DangerProps) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button class="danger" disabled={disabled} title={why} onClick={() => setOpen(true)}>
        {label}
      </button>
      {open && (
        <Confirm
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

export function Confirm({ title, look, run, onClose }: Pick<DangerProps, "title" | "look" | "run"> & { onClose: (done: boolean) => void }) {
  const [found, setFound] = useState<Consequence>();
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  const done = useRef(false);
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const left = new AbortController();
    look(left.signal).then(setFound, (error: unknown) => setFailure(sentence(error)));
    return () => left.abort();
  }, []);
  const close = (): void => frame.current?.closest("dialog")?.close();
  const confirm = async (): Promise<void> => {
    setBusy(true);
    setFailure("");
    try {
      const told = await run(setSaid);
      if (told) notify(told);
      done.current = true;
      close();
    } catch (error) {
      setFailure(sentence(error));
    }
    setBusy(false);
    setSaid("");
  };
  return (
    <Dialog title={title} onClose={() => onClose(done.current)}>
      <div ref={frame}>
        <div aria-live="polite">{found ? found.text : !failure && <p>Looking at what it would do …</p>}</div>
        <p aria-live="polite" class="soft">
          {said}
        </p>
        <p role="alert" class="bad">
          {failure}
        </p>
        <div class="buttons">
          <button onClick={close}>Cancel</button>
          {found && !found.nothing && (
            <button class="danger main" disabled={busy} onClick={() => void confirm()}>
              {found.action}
            </button>
          )}
        </div>
      </div>
    </Dialog>
  );
}
