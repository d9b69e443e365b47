// How a queue is, in a word.
import type { components } from "../api/schema";
import { Badge } from "./elements";

export function State({ queue }: { queue: components["schemas"]["Queue"] }) {
  if (queue.state === "syncing") return <Badge kind="warn" title={queue.state_reason ?? ""}>syncing</Badge>;
  if (queue.state === "down") return <Badge kind="bad" title="Its log cannot be read or written; the broker's log says why">down</Badge>;
  if (queue.degraded) return <Badge kind="warn" title="Some of its log could not be read">degraded</Badge>;
  if (queue.idle_since) return <Badge title={`Nothing has happened since ${queue.idle_since}`}>idle</Badge>;
  return <Badge kind="good">running</Badge>;
}
