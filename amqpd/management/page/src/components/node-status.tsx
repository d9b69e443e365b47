// Status of a node: alarms, paused connections with reasons, sync times, loop lag, memory, disk and files.
import { useEffect, useRef } from "preact/hooks";
import type { components } from "../api/schema";
import { ApiError, get } from "../api/client";
import { usePoll } from "../shell/poll";
import { href } from "../shell/router";
import { loadSession, session } from "../shell/session";
import { Chart } from "./chart";
import { Badge, ErrorMessage, Facts, NameLink, Section, showInvisible } from "./elements";
import { formatBytes, formatCount, formatDuration, plural } from "./format";
import { type Range, RANGES, type Series, useHistory } from "./samples";
import { PAUSE_REASONS } from "./states";

type Pulse = components["schemas"]["LiveStatus"];
type Histogram = components["schemas"]["Histogram"];
type Node = components["schemas"]["Node"];

const SYNC = [
  { name: "sync", label: "Sync time, average" },
  { name: "lag", label: "Loop lag, average" },
];
const USED = [{ name: "mem_used", label: "Memory" }];
const FIELDS =
  "mem_used,mem_used_details,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm,fd_used,fd_total,uptime,being_drained,io_write_bytes_details.rate,db_dir,platform";
const MINUTE_MS = 60_000;

interface PulseSample {
  at: number;
  pulse: Pulse;
}

function total(histogram: Histogram): number {
  return histogram.counts.reduce((sum, each) => sum + each, 0);
}

/** Return count, mean and 99th percentile (an upper bound of a bucket) of what came between two histograms, in ms. */
function histogramDifference(before: Histogram, after: Histogram): { count: number; mean: number | null; most: number | null } {
  const counts = after.counts.map((each, index) => each - (before.counts[index] ?? 0));
  const all = total(after) - total(before);
  if (all <= 0 || counts.some((each) => each < 0)) return { count: 0, mean: null, most: null };
  let seen = 0;
  const index = counts.findIndex((each) => (seen += each) >= all * 0.99);
  const bound = after.bounds_s[index];
  return { count: all, mean: ((after.total_s - before.total_s) / all) * 1000, most: bound === undefined ? Infinity : bound * 1000 };
}

/** Collect histograms while the page is open. The broker has only sums since its start. */
function usePulseSamples(pulse: Pulse | undefined, range: Range, node: string): PulseSample[] {
  const samples = useRef<PulseSample[]>([]);
  const shownNode = useRef(node);
  if (shownNode.current !== node) [shownNode.current, samples.current] = [node, []];
  useEffect(() => {
    if (!pulse) return;
    const last = samples.current.at(-1);
    if (last && total(pulse.loop_lag) < total(last.pulse.loop_lag)) samples.current = []; // the broker was restarted
    samples.current = [...samples.current.filter((sample) => sample.at > Date.now() - RANGES["1 h"][0] * 1000), { at: Date.now(), pulse }];
  }, [pulse]);
  const from = Date.now() - RANGES[range][0] * 1000;
  return samples.current.filter((sample) => sample.at >= from);
}

function averageSeries(samples: PulseSample[]): Series {
  const means = (histogramOf: (pulse: Pulse) => Histogram): (number | null)[] =>
    samples.map((sample, index) => (index ? histogramDifference(histogramOf(samples[index - 1]!.pulse), histogramOf(sample.pulse)).mean : null));
  const values = (name: string): (number | null)[] => means((pulse) => (name === "sync" ? pulse.sync : pulse.loop_lag));
  return { times: samples.map((sample) => sample.at / 1000), values, rates: values };
}

export function NodeStatus({ range }: { range: Range }) {
  // In a cluster the next request may reach another node, so the node is named.
  const name = session.value?.node ?? "";
  const pulse = usePoll((signal) => get("/api/amqpd/pulse/{node}", { node: name }, {}, signal), [name]);
  useEffect(() => {
    if (pulse.error instanceof ApiError && pulse.error.status === 404) void loadSession().catch(() => undefined); // the node left: load the name of the answering node
  }, [pulse.error]);
  const node = useHistory(range, (query, signal) => get("/api/nodes/{node}", { node: name }, { ...query, columns: FIELDS }, signal), (node) => ({ mem_used: node.mem_used_details }), [name]);
  const samples = usePulseSamples(pulse.data, range, name);
  const minute = samples.find((sample) => sample.at >= Date.now() - MINUTE_MS) ?? samples[0];
  return (
    <>
      <ErrorMessage error={pulse.error ?? node.error} />
      {pulse.data && <Alarms pulse={pulse.data} />}
      {pulse.data && node.data && (
        <Section title={`Node ${name}`} aside={<HealthBadge pulse={pulse.data} node={node.data} />}>
          <Facts
            facts={[
              ["Memory", <Meter used={node.data.mem_used} limit={node.data.mem_limit} bad={node.data.mem_alarm} />],
              ["Disk", <DiskFree node={node.data} />],
              ["Open files", <Meter used={node.data.fd_used} limit={node.data.fd_total} show={formatCount} />],
              ["Uptime", formatDuration(node.data.uptime)],
              ["Syncs, last minute", minute && pulse.data && histogramText(histogramDifference(minute.pulse.sync, pulse.data.sync), "none")],
              ["Loop lag, last minute", minute && pulse.data && histogramText(histogramDifference(minute.pulse.loop_lag, pulse.data.loop_lag), "–")],
              ["Not yet synced", formatBytes(pulse.data.unsynced_bytes)],
              ["Written", `${formatBytes(node.data.io_write_bytes_details.rate)}/s`],
              ["Data directory", node.data.db_dir],
              ["Platform", node.data.platform],
            ]}
          />
          <PausedConnections pulse={pulse.data} />
          <div class="charts">
            <Chart title="Syncs and loop lag, since this page was opened" unit="ms" points={averageSeries(samples)} curves={SYNC} />
            <Chart title="Memory" unit="bytes" points={node.points} curves={USED} />
          </div>
        </Section>
      )}
    </>
  );
}

function histogramText(change: { count: number; mean: number | null; most: number | null }, none: string): string {
  if (change.mean === null) return none;
  const most = change.most === null || change.most === Infinity ? "some took longer than the largest bucket" : `99 % below ${formatDuration(change.most)}`;
  return `${formatCount(change.count)}: ${formatDuration(change.mean)} on average, ${most}`;
}

function Alarms({ pulse }: { pulse: Pulse }) {
  if (!pulse.alarms.length && !pulse.failed_log_count && pulse.app_running) return null;
  return (
    <div role="alert" class="failure">
      {!pulse.app_running && <p>Clients cannot connect because of amqpctl stop_app. Run amqpctl start_app to let them connect.</p>}
      {pulse.alarms.map((each) => (
        <p key={each}>Alarm: {each}. Publishing connections are blocked until the alarm ends; consumers continue.</p>
      ))}
      {pulse.failed_log_count > 0 && (
        <p>
          The logs of {plural(pulse.failed_log_count, "queue")} accept no messages because a write or a sync failed. The broker's log has the error:{" "}
          {pulse.failed_logs.map((queue) => (
            <span key={`${queue.vhost}\0${queue.name}`}>
              <NameLink path={["queues", queue.vhost, queue.name]}>{showInvisible(queue.name)}</NameLink>{" "}
            </span>
          ))}
        </p>
      )}
    </div>
  );
}

function HealthBadge({ pulse, node }: { pulse: Pulse; node: Node }) {
  if (pulse.alarms.length) return <Badge kind="bad">alarm</Badge>;
  if (node.being_drained) return <Badge kind="warn">in maintenance (drain)</Badge>;
  return <Badge kind="good">no alarm</Badge>;
}

function PausedConnections({ pulse }: { pulse: Pulse }) {
  const held = Object.entries(pulse.held).filter(([, several]) => several > 0);
  if (!held.length) return <p class="muted">The broker reads from every connection.</p>;
  return (
    <>
      <h3>Connections that the broker does not read from now</h3>
      <ul class="key-values">
        {held.map(([word, several]) => (
          <li key={word}>
            <a href={href(["connections"], { sort: "state" })}>{plural(several, "connection")}</a>: {PAUSE_REASONS[word] ?? word}.
          </li>
        ))}
      </ul>
    </>
  );
}

function Meter({ used, limit, bad = false, show = formatBytes }: { used: number; limit: number; bad?: boolean; show?: (value: number) => string }) {
  const share = limit > 0 ? used / limit : 0;
  return (
    <>
      <span class={`meter ${bad || share >= 1 ? "bad" : share > 0.8 ? "warn" : ""}`} aria-hidden="true">
        <i style={{ width: `${Math.min(100, Math.round(share * 100))}%` }} />
      </span>
      {show(used)} of {show(limit)}
    </>
  );
}

function DiskFree({ node }: { node: Node }) {
  const near = node.disk_free < node.disk_free_limit * 2;
  return (
    <>
      {node.disk_free_alarm ? <Badge kind="bad">below the limit</Badge> : near && <Badge kind="warn">low</Badge>}
      {formatBytes(node.disk_free)} free; publishers are blocked below {formatBytes(node.disk_free_limit)}
    </>
  );
}
