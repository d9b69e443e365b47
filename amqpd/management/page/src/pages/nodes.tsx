// The nodes of the broker; in a cluster also which node serves which virtual host.
import { useState } from "preact/hooks";
import { apiUrl, request } from "../api/client";
import { DangerButton, type Preview } from "../components/dialog";
import { Badge, ErrorMessage, Facts, Name, NameLink, PageTitle, Section, showInvisible } from "../components/elements";
import { formatBytes, formatCount, formatDuration, formatRate, plural } from "../components/format";
import { type Column, DataTable } from "../components/table";
import { usePoll } from "../shell/poll";
import { hasTag } from "../shell/session";

interface Rate {
  rate?: number;
}
interface Node {
  name: string;
  running: boolean;
  being_drained?: boolean;
  uptime?: number;
  os_pid?: string;
  processors?: number;
  platform?: string;
  db_dir?: string;
  applications?: { name: string; version: string }[];
  mem_used?: number;
  mem_limit?: number;
  mem_alarm?: boolean;
  disk_free?: number;
  disk_free_limit?: number;
  disk_free_alarm?: boolean;
  fd_used?: number;
  fd_total?: number;
  sockets_used?: number;
  io_sync_count_details?: Rate;
  io_sync_avg_time?: number;
  io_write_bytes_details?: Rate;
  io_read_bytes_details?: Rate;
  memory?: Record<string, unknown>;
}
/** The cluster as the API describes it. A single node only says that it is not clustered. */
interface Cluster {
  clustered: boolean;
  node: string;
  name?: string;
  nodes?: ClusterNode[];
  vhosts?: VhostPlacement[];
  slots?: number;
  metadata_node?: string | null;
  kafka?: string[];
  confirms?: { promise: string; replication_factor: number; required_insync: number };
  relayed_out?: number;
  relayed_in?: number;
}
interface ClusterNode {
  name: string;
  address: string;
  draining: boolean;
  vhosts: number;
}
interface VhostPlacement {
  name: string;
  slot: number | null;
  node: string | null;
  state: string;
}

export default function Nodes() {
  const ask = async (signal: AbortSignal): Promise<{ nodes: Node[]; cluster: Cluster }> => {
    const [nodes, cluster] = await Promise.all([
      request<Node[]>("GET", "/api/nodes?memory=true", undefined, signal),
      request<Cluster>("GET", "/api/amqpd/cluster", undefined, signal),
    ]);
    return { nodes, cluster };
  };
  const { data, error, refresh } = usePoll(ask, []);
  return (
    <>
      <PageTitle>Nodes</PageTitle>
      <ErrorMessage error={error} />
      <div class="stack" aria-busy={!data && error === undefined}>
        {data && (
          <>
            {data.cluster.clustered ? <ClusterCard cluster={data.cluster} onDone={() => void refresh()} /> : <p class="muted">A single node serves all virtual hosts.</p>}
            {data.nodes.map((node) => (
              <NodeCard key={node.name} node={node} />
            ))}
          </>
        )}
      </div>
    </>
  );
}

function ClusterCard({ cluster, onDone }: { cluster: Cluster; onDone: () => void }) {
  const nodes = cluster.nodes ?? [];
  const canMove = hasTag("administrator");
  const columns: Column<VhostPlacement>[] = [
    { title: "Virtual host", cell: (item) => <NameLink path={["vhosts", item.name]}>{item.name}</NameLink> },
    { title: "Node", cell: (item) => <Name>{item.node ?? "–"}</Name> },
    { title: "State", cell: (item) => <Badge kind={item.state === "running" ? "good" : "warn"}>{item.state}</Badge> },
    { title: "Slot", number: true, cell: (item) => item.slot ?? "–" },
  ];
  if (canMove) columns.push({ title: "Move", cell: (item) => <MoveVhost vhost={item} cluster={cluster} onDone={onDone} /> });
  return (
    <>
      <Section title={`Cluster ${cluster.name ?? ""}`} aside={canMove && <RebalanceButton onDone={onDone} />}>
        <Facts
          facts={[
            ["This page is served by", <Name>{cluster.node}</Name>],
            ["Confirms", cluster.confirms && `${cluster.confirms.promise}: at least ${cluster.confirms.required_insync} of ${cluster.confirms.replication_factor} Kafka brokers have the message`],
            ["Kafka", cluster.kafka?.join(", ")],
            ["Metadata node", cluster.metadata_node ? <Name>{cluster.metadata_node}</Name> : "none at the moment"],
            ["Connections relayed to other nodes", plural(cluster.relayed_out ?? 0, "connection")],
            ["Connections relayed from other nodes", plural(cluster.relayed_in ?? 0, "connection")],
          ]}
        />
        <DataTable<ClusterNode>
          noun="nodes"
          items={nodes}
          idOf={(item) => item.name}
          columns={[
            { title: "Node", cell: (item) => <Name>{item.name}</Name> },
            { title: "Address", cell: (item) => <Name>{item.address}</Name> },
            { title: "State", cell: (item) => (item.draining ? <Badge kind="warn">draining</Badge> : <Badge kind="good">in the cluster</Badge>) },
            { title: "Virtual hosts", number: true, cell: (item) => formatCount(item.vhosts) },
          ]}
        />
      </Section>
      <Section title="Virtual hosts and their nodes">
        <DataTable<VhostPlacement> noun="virtual hosts" items={cluster.vhosts ?? []} idOf={(item) => item.name} columns={columns} />
      </Section>
    </>
  );
}

/** Moves a virtual host, and with it all others of its slot. The dialog names them and counts the connections to be closed. */
function MoveVhost({ vhost, cluster, onDone }: { vhost: VhostPlacement; cluster: Cluster; onDone: () => void }) {
  const others = (cluster.nodes ?? []).filter((node) => node.name !== vhost.node && !node.draining);
  const [to, setTo] = useState(others[0]?.name ?? "");
  const slotVhosts = (cluster.vhosts ?? []).filter((each) => each.slot === vhost.slot).map((each) => each.name);
  const preview = async (): Promise<Preview> => {
    const lists = await Promise.all(slotVhosts.map((name) => request<unknown[]>("GET", apiUrl("/api/vhosts/{vhost}/connections", { vhost: name }, { columns: "name" }))));
    const open = lists.reduce((sum, list) => sum + list.length, 0);
    return {
      text: (
        <>
          <p>
            The virtual host moves to the node <Name>{to}</Name>
            {slotVhosts.length > 1 && <> with all virtual hosts of its slot: {slotVhosts.map((name) => [<Name>{name}</Name>, " "])}</>}. {plural(open, "connection is", "connections are")} closed; clients can connect to any node again at once. Messages stay.
          </p>
        </>
      ),
      action: `Move and close ${plural(open, "connection")}`,
    };
  };
  const run = async (): Promise<string> => {
    await request("POST", "/api/amqpd/move_vhost", { vhost: vhost.name, node: to });
    return `The virtual host ${showInvisible(vhost.name)} is now on ${showInvisible(to)}.`;
  };
  if (!others.length) return <>–</>;
  return (
    <span class="actions">
      <select aria-label={`Node for ${showInvisible(vhost.name)}`} value={to} onChange={(event) => setTo(event.currentTarget.value)}>
        {others.map((node) => (
          <option key={node.name} value={node.name}>
            {showInvisible(node.name)}
          </option>
        ))}
      </select>
      <DangerButton label="Move" title={`Move the virtual host ${showInvisible(vhost.name)}?`} preview={preview} run={run} onDone={onDone} />
    </span>
  );
}

function RebalanceButton({ onDone }: { onDone: () => void }) {
  const preview = async (): Promise<Preview> => ({
    text: <p>Virtual hosts move from nodes with many to nodes with few. Connections of the moved ones are closed; clients can connect again at once. Messages stay.</p>,
    action: "Rebalance",
  });
  const run = async (): Promise<string> => {
    const answer = await request<{ moves: Record<string, string> }>("POST", "/api/amqpd/rebalance");
    return `${plural(Object.keys(answer.moves).length, "virtual host moves", "virtual hosts move")}.`;
  };
  return <DangerButton label="Rebalance" title="Rebalance the virtual hosts?" preview={preview} run={run} onDone={onDone} />;
}

function NodeCard({ node }: { node: Node }) {
  if (!node.running) {
    return (
      <Section title={node.name} aside={<NodeState node={node} />}>
        <p>The node does not answer. Other nodes take over its virtual hosts within seconds. Clients can connect to any node.</p>
      </Section>
    );
  }
  const version = node.applications?.find((each) => each.name === "amqpd")?.version;
  return (
    <Section title={node.name} aside={<NodeState node={node} />}>
      <Facts
        facts={[
          ["Uptime", formatDuration(node.uptime)],
          ["Version", version && `amqpd ${version}, ${node.platform ?? ""}`],
          ["Process", node.os_pid],
          ["Processors", node.processors],
          ["Memory", <UsedOfLimit used={node.mem_used} most={node.mem_limit} alarm={node.mem_alarm} word="limit" />],
          ["Disk free", <UsedOfLimit used={node.disk_free} most={node.disk_free_limit} alarm={node.disk_free_alarm} word="limit" />],
          ["Open files", `${formatCount(node.fd_used)} of ${formatCount(node.fd_total)}`],
          ["Sockets", formatCount(node.sockets_used)],
          ["Written", `${formatBytes(node.io_write_bytes_details?.rate)}/s`],
          ["Read", `${formatBytes(node.io_read_bytes_details?.rate)}/s`],
          ["Syncs", `${formatRate(node.io_sync_count_details?.rate)}, ${formatDuration(node.io_sync_avg_time)} on average`],
          ["Data directory", node.db_dir && <Name>{node.db_dir}</Name>],
        ]}
      />
      <h3>Memory by use</h3>
      <MemoryUse memory={node.memory ?? {}} />
    </Section>
  );
}

const MEMORY_USES: Record<string, string> = {
  connection_readers: "Incoming messages",
  binary: "Message bodies in queues",
  code: "Program code",
  other_proc: "Other: queues, indexes, connections, Python",
};

function MemoryUse({ memory }: { memory: Record<string, unknown> }) {
  const uses = Object.entries(memory).filter((each): each is [string, number] => typeof each[1] === "number" && (each[1] > 0 || each[0] in MEMORY_USES));
  const total = Math.max(1, uses.reduce((sum, [, size]) => sum + size, 0));
  return (
    <ul class="memory-uses">
      {uses
        .sort((a, b) => b[1] - a[1])
        .map(([name, size]) => (
          <li key={name}>
            <span>{MEMORY_USES[name] ?? name}</span>
            <span class="meter" aria-hidden="true">
              <i style={{ width: `${Math.round((100 * size) / total)}%` }} />
            </span>
            <span>
              {formatBytes(size)}, {Math.round((100 * size) / total)} %
            </span>
          </li>
        ))}
    </ul>
  );
}

function NodeState({ node }: { node: Node }) {
  if (!node.running) return <Badge kind="bad">down</Badge>;
  return node.being_drained ? <Badge kind="warn">draining: new connections are refused</Badge> : <Badge kind="good">running</Badge>;
}

function UsedOfLimit({ used, most, alarm, word }: { used: number | undefined; most: number | undefined; alarm: boolean | undefined; word: string }) {
  return (
    <>
      {formatBytes(used)}, {word} {formatBytes(most)} {alarm && <Badge kind="bad">alarm: publishers are blocked</Badge>}
    </>
  );
}
