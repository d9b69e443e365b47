// States of connections and queues as badges, and the reasons for which reading is paused.
import type { components } from "../api/schema";
import { Badge } from "./elements";

type Connection = components["schemas"]["Connection"];

export const PAUSE_REASONS: Record<string, string> = {
  alarm: "it published during a memory or disk alarm; the broker reads again when the alarm ends",
  sync: "the disk is behind with its messages; the broker reads again after the sync",
  backlog: "its commands wait for busy channels",
  output: "the client does not read its output",
  sharing: "it published to very many queues, which takes several loop turns",
  paced: "it has used its share of this loop turn",
  bodies: "unfinished message bodies fill the memory reserved for them",
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
            paused: {word}
          </Badge>
        ))}
      </>
    );
  }
  if (connection.state === "blocking") return <Badge kind="warn" title="During an alarm the next publish of this connection waits">blocking</Badge>;
  return <Badge kind="good">running</Badge>;
}

export function pauseText(connection: Connection): string {
  const reasons = connection.held_by.map((word) => PAUSE_REASONS[word] ?? word);
  return reasons.length ? `The broker does not read from this connection now: ${reasons.join("; ")}.` : "The broker reads from this connection.";
}

export function QueueState({ queue }: { queue: components["schemas"]["Queue"] }) {
  if (queue.state === "syncing") return <Badge kind="warn" title={queue.state_reason ?? ""}>syncing</Badge>;
  if (queue.state === "down") return <Badge kind="bad" title="Its log cannot be read or written; see the broker's log">down</Badge>;
  if (queue.degraded) return <Badge kind="warn" title="Parts of its log could not be read">degraded</Badge>;
  if (queue.idle_since) return <Badge title={`No activity since ${queue.idle_since}`}>idle</Badge>;
  return <Badge kind="good">running</Badge>;
}
