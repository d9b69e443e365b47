// Notices in a corner of the screen, which screen readers read aloud.
import { signal } from "@preact/signals";
import { Icon } from "./elements";

type Kind = "good" | "bad";
interface Notice {
  id: number;
  text: string;
  kind: Kind;
}
const SHOWN_MS = 6000;
const notices = signal<Notice[]>([]);
let last = 0;

/** Show a notice. A "good" one disappears after SHOWN_MS, a "bad" one stays until it is closed. */
export function notify(text: string, kind: Kind = "good"): void {
  const id = ++last;
  notices.value = [...notices.value.filter((each) => each.text !== text).slice(-3), { id, text, kind }];
  if (kind === "good") setTimeout(() => close(id), SHOWN_MS);
}

function close(id: number): void {
  notices.value = notices.value.filter((each) => each.id !== id);
}

/** Remove all notices, before another user logs in. */
export function clearNotices(): void {
  notices.value = [];
}

export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((each) => (
        <div key={each.id} class={`notice ${each.kind}`}>
          <span>{each.text}</span>
          <button class="quiet" aria-label="Close" onClick={() => close(each.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
