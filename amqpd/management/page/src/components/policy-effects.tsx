// Preview of a policy, as the broker computes it: a summary, warnings, and a table of objects.
import { Badge, KeyValues, Name } from "./elements";
import { formatCount, plural } from "./format";
import { DataTable } from "./table";

interface Item {
  kind: "queue" | "exchange";
  name: string;
  type: string;
  why: "applied" | "outranked" | "unsupported" | "released";
  holds: string;
  before: Record<string, unknown>;
  after: Record<string, unknown>;
  messages?: number;
  over_length?: number;
}
export interface PolicyEffect {
  matched: { queues: number; exchanges: number };
  applied: number;
  outranked: number;
  unsupported: number;
  released: number;
  changed: { queues: number; exchanges: number };
  messages_over_length: number;
  messages_with_shorter_ttl: number;
  unused_queues_that_expire: number;
  items: Item[];
  items_left_out: number;
}

export function effectSummary(effect: PolicyEffect): string {
  const parts = [`The policy matches ${plural(effect.matched.queues, "queue")} and ${plural(effect.matched.exchanges, "exchange")}`];
  const exceptions = [
    effect.outranked ? `${formatCount(effect.outranked)} follow another policy with a higher priority (or the same priority and an earlier name)` : "",
    effect.unsupported ? `${formatCount(effect.unsupported)} have a type that does not support a key of it, so they do not follow it` : "",
    effect.released ? `${formatCount(effect.released)} follow it now and would no longer` : "",
  ].filter(Boolean);
  if (exceptions.length) parts.push(`; ${exceptions.join("; ")}`);
  parts.push(`. ${effect.changed.queues + effect.changed.exchanges === 0 ? "Nothing changes" : `${plural(effect.changed.queues, "queue")} and ${plural(effect.changed.exchanges, "exchange")} change`}.`);
  return parts.join("");
}

const OUTCOME_TEXT = { applied: "follows it", outranked: "follows another", unsupported: "unsupported", released: "no longer follows it" } as const;
const OUTCOME_BADGE = { applied: "good", outranked: "", unsupported: "warn", released: "warn" } as const;

export function PolicyEffects({ effect }: { effect: PolicyEffect }) {
  return (
    <>
      <p>{effectSummary(effect)}</p>
      <EffectWarnings effect={effect} />
      {effect.items.length > 0 && (
        <DataTable<Item>
          noun="affected queues and exchanges"
          items={effect.items}
          idOf={(item) => `${item.kind} ${item.name}`}
          columns={[
            { title: "Name", cell: (item) => <ItemName item={item} /> },
            { title: "Messages", number: true, cell: (item) => (item.messages === undefined ? "–" : formatCount(item.messages)) },
            {
              title: "Result",
              cell: (item) => (
                <Badge kind={OUTCOME_BADGE[item.why]} title={item.holds && `Effective policy: ${item.holds}`}>
                  {OUTCOME_TEXT[item.why]}
                </Badge>
              ),
            },
            { title: "Effective definition", cell: (item) => <KeyValues values={item.after} none="nothing" /> },
          ]}
        />
      )}
      {effect.items_left_out > 0 && <p class="muted">and {formatCount(effect.items_left_out)} more</p>}
    </>
  );
}

function ItemName({ item }: { item: Item }) {
  return (
    <>
      {item.kind} <Name>{item.name || "(AMQP default)"}</Name>
    </>
  );
}

export function EffectWarnings({ effect }: { effect: PolicyEffect }) {
  return (
    <>
      {effect.messages_over_length > 0 && <p class="warning">{plural(effect.messages_over_length, "message")} over the new length limit would be dropped or dead-lettered at once.</p>}
      {effect.messages_with_shorter_ttl > 0 && <p class="warning">{plural(effect.messages_with_shorter_ttl, "message")} would get a shorter time to live and may expire.</p>}
      {effect.unused_queues_that_expire > 0 && <p class="warning">{plural(effect.unused_queues_that_expire, "queue")} without consumers would be deleted after the expiry time.</p>}
    </>
  );
}
