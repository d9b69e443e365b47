// States of connections and queues as badges, and the reasons for which reading is paused.
import type { components } from "../api/schema";
import { Badge } from "./elements";

type Connection = components["schemas"]["Connection"];

export const PAUSE_REASONS: Record<string, string> = {
  alarm: "a publish met an alarm: it is read on when memory or disk are free again",
  sync: "it has written more than the disk has taken: it is read on when that is synced",
  backlog: "its commands wait behind busy channels",
  output: "the client does not read what it is sent",
  sharing: "its publish goes to very many queues, in slices",
  paced: "it has had its share of this turn",
  bodies: "unfinished messages take all the room there is for them",
};
// A busy connection meets these in every loop turn: not worth a warning.
const ROUTINE_REASONS = ["paced", "sharing"];

export function ConnectionState({ connection }: { connection: Connection }) {
  const reasons = connection.held_by.filter((word) => !ROUTINE_REASONS.includes(word));
  if (reasons.length) {
    return (
      <>
        {reasons.map((word) => (
          <Badge key={word} kind={word === "alarm" ? "bad" : "warn"} title={PAUSE_REASONS[word] ?? word}>
            held: {word}
          </Badge>
        ))}
      </>
    );
  }
  if (connection.state === "blocking") return <Badge kind="warn" title="There is an alarm: its next publish will wait">publishes will wait</Badge>;
  return <Badge kind="good">running</Badge>;
}

/** Return the reasons in whole sentences. */
export function pauseText(connection: Connection): string {
  const reasons = connection.held_by.map((word) => PAUSE_REASONS[word] ?? word);
  return reasons.length ? `The broker does not read it now: ${reasons.join("; ")}.` : "The broker reads what it sends, and holds nothing back.";
}

export function QueueState({ queue }: { queue: components["schemas"]["Queue"] }) {
  if (queue.state === "syncing") return <Badge kind="warn" title={queue.state_reason ?? ""}>syncing</Badge>;
  if (queue.state === "down") return <Badge kind="bad" title="Its log cannot be read or written; the broker's log says why">down</Badge>;
  if (queue.degraded) return <Badge kind="warn" title="Some of its log could not be read">degraded</Badge>;
  if (queue.idle_since) return <Badge title={`Nothing has happened since ${queue.idle_since}`}>idle</Badge>;
  return <Badge kind="good">running</Badge>;
}
