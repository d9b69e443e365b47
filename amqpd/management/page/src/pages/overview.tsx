// The overview: totals, rates, the state of the node, listeners.
import { useState } from "preact/hooks";
import { type Answer, apiUrl, get } from "../api/client";
import { Chart, Charts } from "../components/chart";
import { ErrorMessage, Facts, MissingNodes, PageTitle, Section } from "../components/elements";
import { formatCount, formatRate } from "../components/format";
import { NodeStatus } from "../components/node-status";
import { ALL_RANGES, type Counters, type Range, useHistory } from "../components/samples";
import { useAfterPaint } from "../shell/poll";
import { href } from "../shell/router";
import { hasTag } from "../shell/session";

type Overview = Answer<"/api/overview">;

const RATES = [
  { name: "publish", label: "Published" },
  { name: "confirm", label: "Confirmed" },
  { name: "deliver_get", label: "Delivered" },
  { name: "ack", label: "Acked" },
  { name: "redeliver", label: "Redelivered" },
  { name: "return_unroutable", label: "Returned" },
  { name: "drop_unroutable", label: "Dropped" },
];
const DEPTHS = [
  { name: "messages_ready", label: "Ready" },
  { name: "messages_unacknowledged", label: "Unacked" },
  { name: "messages", label: "Total" },
];

// Request only the shown fields: all samples would be 120 KB.
const FIELDS = ["object_totals,queue_totals,listeners", ...RATES.map(({ name }) => `message_stats.${name}_details`)].join();

function counters(answer: Overview): Counters {
  const stats = (answer.message_stats ?? {}) as Counters;
  const totals = answer.queue_totals as unknown as Counters;
  const found: Counters = {};
  for (const { name } of RATES) found[name] = stats[`${name}_details`];
  for (const { name } of DEPTHS) found[name] = totals[`${name}_details`];
  return found;
}

export const firstUrl = (): string => apiUrl("/api/overview", {}, { fields: FIELDS });

export default function OverviewPage() {
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points } = useHistory(range, (query, signal) => get("/api/overview", {}, { ...query, fields: FIELDS }, signal), counters, []);
  // Figures first: charts and the node's status follow after the first paint.
  const figuresPainted = useAfterPaint(data !== undefined || error !== undefined);
  return (
    <>
      <PageTitle>Overview</PageTitle>
      <ErrorMessage error={error} />
      <MissingNodes nodes={data?.missing_nodes} />
      {data && <Totals overview={data} />}
      {figuresPainted && data?.message_stats && (
        <Charts title="Messages" range={range} ranges={ALL_RANGES} onRange={setRange}>
          <Chart title="Rates" points={points} curves={RATES} />
          <Chart title="Messages in queues" unit="count" points={points} curves={DEPTHS} />
        </Charts>
      )}
      {figuresPainted && hasTag("monitoring") && <NodeStatus range={range} />}
      {figuresPainted && data?.listeners && <Listeners listeners={data.listeners} />}
      {!hasTag("monitoring") && <p class="muted">Rates, node and listeners need the user tag monitoring or administrator.</p>}
    </>
  );
}

function Tile({ name, value, to }: { name: string; value: string; to?: string }) {
  const inner = (
    <>
      <b>{value}</b>
      <span>{name}</span>
    </>
  );
  return to ? (
    <a class="tile" href={to}>
      {inner}
    </a>
  ) : (
    <div class="tile">{inner}</div>
  );
}

function Totals({ overview }: { overview: Overview }) {
  const { object_totals: objects, queue_totals: queues, message_stats: stats } = overview;
  return (
    <div class="tiles">
      <Tile name="ready" value={formatCount(queues.messages_ready)} />
      <Tile name="unacked" value={formatCount(queues.messages_unacknowledged)} />
      {queues.messages_delayed > 0 && <Tile name="delayed" value={formatCount(queues.messages_delayed)} />}
      {stats && <Tile name="published" value={formatRate(stats.publish_details?.rate)} />}
      {stats && <Tile name="delivered" value={formatRate(stats.deliver_get_details?.rate)} />}
      <Tile name="queues" value={formatCount(objects.queues)} to={href(["queues"])} />
      <Tile name="exchanges" value={formatCount(objects.exchanges)} to={href(["exchanges"])} />
      <Tile name="connections" value={formatCount(objects.connections)} to={href(["connections"])} />
      <Tile name="channels" value={formatCount(objects.channels)} to={href(["channels"])} />
      <Tile name="consumers" value={formatCount(objects.consumers)} />
    </div>
  );
}

function Listeners({ listeners }: { listeners: NonNullable<Overview["listeners"]> }) {
  return (
    <Section title="Listeners">
      <Facts facts={listeners.map((each) => [each.protocol, `${each.ip_address.includes(":") ? `[${each.ip_address}]` : each.ip_address || "all addresses"}, port ${each.port}`])} />
    </Section>
  );
}
