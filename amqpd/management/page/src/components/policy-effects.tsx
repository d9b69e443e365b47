// What a policy would do, as the broker has found out: in a sentence, and thing by thing.
import { Rows } from "./paged-list";
import { count, plural } from "./format";
import { Badge, Name, Table } from "./elements";

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
export interface Effect {
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

export function summary(of: Effect): string {
  const said = [`It matches ${plural(of.matched.queues, "queue")} and ${plural(of.matched.exchanges, "exchange")}`];
  const apart = [
    of.outranked ? `${count(of.outranked)} obey another policy that comes first: of a higher priority, or of the same and an earlier name` : "",
    of.unsupported ? `${count(of.unsupported)} are of a type that cannot follow all of it, and so do not obey it at all` : "",
    of.released ? `${count(of.released)} obey it today and would no longer` : "",
  ].filter(Boolean);
  if (apart.length) said.push(`; ${apart.join("; ")}`);
  said.push(`. ${of.changed.queues + of.changed.exchanges === 0 ? "Nothing changes" : `${plural(of.changed.queues, "queue")} and ${plural(of.changed.exchanges, "exchange")} change`}.`);
  return said.join("");
}

const WHY = { applied: "obeys it", outranked: "obeys another", unsupported: "cannot follow it", released: "no longer" } as const;
const KINDS = { applied: "good", outranked: "", unsupported: "warn", released: "warn" } as const;

export function Effects({ of }: { of: Effect }) {
  return (
    <>
      <p>{summary(of)}</p>
      {of.messages_over_length > 0 && <p class="warning">{plural(of.messages_over_length, "message")} over the new length would go at once.</p>}
      {of.messages_with_shorter_ttl > 0 && <p class="warning">{plural(of.messages_with_shorter_ttl, "message")} would get a shorter time to live.</p>}
      {of.unused_queues_that_expire > 0 && <p class="warning">{plural(of.unused_queues_that_expire, "queue")} without consumers would be deleted in time.</p>}
      {of.items.length > 0 && (
        <Rows<Item>
          what="queues and exchanges it has to do with"
          items={of.items}
          idOf={(item) => `${item.kind} ${item.name}`}
          columns={[
            { title: "Name", cell: (item) => <Thing item={item} /> },
            { title: "Messages", number: true, cell: (item) => (item.messages === undefined ? "–" : count(item.messages)) },
            {
              title: "Becomes",
              cell: (item) => (
                <Badge kind={KINDS[item.why]} title={item.holds && `What holds: ${item.holds}`}>
                  {WHY[item.why]}
                </Badge>
              ),
            },
            { title: "Obeys then", cell: (item) => <Table of={item.after} none="nothing" /> },
          ]}
        />
      )}
      {of.items_left_out > 0 && <p class="soft">and {count(of.items_left_out)} more</p>}
    </>
  );
}

function Thing({ item }: { item: Item }) {
  return (
    <>
      {item.kind} <Name>{item.name || "(AMQP default)"}</Name>
    </>
  );
}
