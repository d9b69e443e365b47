// Why the broker does not read a connection, in words.
import type { components } from "../api/schema";
import { Badge } from "./elements";

type Connection = components["schemas"]["Connection"];

export const HELD: Record<string, string> = {
  alarm: "a publish met an alarm: it is read on when memory or disk are free again",
  sync: "it has written more than the disk has taken: it is read on when that is synced",
  backlog: "its commands wait behind busy channels",
  output: "the client does not read what it is sent",
  sharing: "its publish goes to very many queues, in slices",
  paced: "it has had its share of this turn",
  bodies: "unfinished messages take all the room there is for them",
};
// Of every turn anew: the way of a busy connection, and nothing to look at.
const USUAL = ["paced", "sharing"];

export function Held({ of }: { of: Connection }) {
  const why = of.held_by.filter((word) => !USUAL.includes(word));
  if (why.length) {
    return (
      <>
        {why.map((word) => (
          <Badge key={word} kind={word === "alarm" ? "bad" : "warn"} title={HELD[word] ?? word}>
            held: {word}
          </Badge>
        ))}
      </>
    );
  }
  if (of.state === "blocking") return <Badge kind="warn" title="There is an alarm: its next publish will wait">publishes will wait</Badge>;
  return <Badge kind="good">running</Badge>;
}

/** In whole sentences. */
export function why(of: Connection): string {
  const reasons = of.held_by.map((word) => HELD[word] ?? word);
  return reasons.length ? `The broker does not read it now: ${reasons.join("; ")}.` : "The broker reads what it sends, and holds nothing back.";
}
