// A queue: its figures, messages, consumers, bindings and jobs; purging and deleting it.
import { useRef, useState } from "preact/hooks";
import type { components } from "../api/schema";
import { get, remove } from "../api/client";
import { BindForm, BindingList } from "../components/bindings";
import { Chart, Charts } from "../components/chart";
import { QueueConsumers } from "../components/consumers";
import { DangerButton } from "../components/dialog";
import { ErrorMessage, Facts, KeyValues, Loading, Name, PageTitle, Section, type Tab, Tabs } from "../components/elements";
import { formatBytes, formatCount, formatTime, plural } from "../components/format";
import { PublishForm } from "../components/publish";
import { type Counters, OBJECT_RANGES, type Range, useHistory } from "../components/samples";
import { QueueState } from "../components/states";
import { BrowseMessages, type QueueNames } from "../queue/browse";
import { GetMessages } from "../queue/get";
import { Jobs } from "../queue/jobs";
import { StreamOffsets } from "../queue/offsets";
import type { PageProps } from "../shell/pages";
import { navigate } from "../shell/router";
import { type Rights, useRights } from "../shell/session";

type Queue = components["schemas"]["Queue"];

const DEPTHS = [
  { name: "messages_ready", label: "Ready" },
  { name: "messages_unacknowledged", label: "Unacked" },
  { name: "messages", label: "Total" },
];
const RATES = [
  { name: "publish", label: "Published" },
  { name: "deliver", label: "Delivered, manual ack" },
  { name: "deliver_no_ack", label: "Delivered, automatic ack" },
  { name: "get", label: "Get" },
  { name: "ack", label: "Acked" },
  { name: "redeliver", label: "Redelivered" },
];

// Without the consumers, of which there may be thousands.
const FIELDS = [
  "name,vhost,type,durable,auto_delete,exclusive,arguments,node,policy,operator_policy,effective_policy_definition,state,state_reason,degraded,lost_offsets,idle_since",
  "messages,messages_ready,messages_unacknowledged,messages_delayed_retry,messages_unmatched,messages_retained,retained_first_timestamp,message_bytes",
  "group_by,groups_locked,groups_waiting,consumers,consumer_utilisation,single_active_consumer_tag",
  ...DEPTHS.map(({ name }) => `${name}_details`),
  ...RATES.map(({ name }) => `message_stats.${name}_details`),
].join();

function counters(queue: Queue): Counters {
  const details = queue as unknown as Counters;
  const stats = (queue.message_stats ?? {}) as Counters;
  return {
    ...Object.fromEntries(DEPTHS.map(({ name }) => [name, details[`${name}_details`]])),
    ...Object.fromEntries(RATES.map(({ name }) => [name, stats[`${name}_details`]])),
  };
}

export default function QueuePage({ names }: PageProps) {
  const queueNames: QueueNames = { vhost: names[0]!, queue: names[1]! };
  const rights = useRights("queue", queueNames.vhost, queueNames.queue);
  const canPublish = useRights("exchange", queueNames.vhost, "").write;
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points, refresh } = useHistory(range, (query, signal) => get("/api/queues/{vhost}/{queue}", { ...queueNames }, { ...query, columns: FIELDS }, signal), counters, names);
  const stream = data?.type === "stream";
  const overview = (): Tab => ({
    id: "",
    title: "Overview",
    body: () => (
      <>
        <QueueFacts queue={data!} />
        <Charts title="Messages" range={range} ranges={OBJECT_RANGES} onRange={setRange}>
          <Chart title="In the queue" unit="count" points={points} curves={DEPTHS} />
          <Chart title="Rates" points={points} curves={RATES} />
        </Charts>
      </>
    ),
  });
  const tabs = (): Tab[] => [
    overview(),
    ...(rights.read ? [{ id: "messages", title: "Messages", body: () => <MessagesTab queueNames={queueNames} stream={stream} /> }] : []),
    ...(canPublish ? [{ id: "publish", title: "Publish", body: () => <Section title="Publish a message to this queue"><PublishForm vhost={queueNames.vhost} exchange="" queue={queueNames.queue} /></Section> }] : []),
    { id: "consumers", title: `Consumers (${formatCount(data?.consumers)})`, body: () => <Section title="Consumers"><QueueConsumers queueNames={queueNames} stream={stream} /></Section> },
    ...(stream && rights.read ? [{ id: "offsets", title: "Offsets", body: () => <StreamOffsets queueNames={queueNames} queue={data} /> }] : []),
    { id: "bindings", title: "Bindings", body: () => <BindingsTab queueNames={queueNames} rights={rights} /> },
    ...(rights.read ? [{ id: "jobs", title: stream ? "Copy" : "Move, copy, delete", body: () => <Jobs queueNames={queueNames} queue={data!} rights={rights} /> }] : []),
  ];
  return (
    <>
      <PageTitle kind={stream ? "Stream" : "Queue"} aside={data && <QueueActions queueNames={queueNames} queue={data} rights={rights} onDone={() => void refresh()} />}>
        {queueNames.queue}
      </PageTitle>
      <ErrorMessage error={error} />
      {data && <Tabs label="Parts of this queue" tabs={tabs()} />}
      {!data && !error && <Loading />}
    </>
  );
}

function QueueFacts({ queue }: { queue: Queue }) {
  return (
    <Section title="Details" aside={<QueueState queue={queue} />}>
      <Facts
        facts={[
          ["Ready", formatCount(queue.messages_ready)],
          ["Unacked", formatCount(queue.messages_unacknowledged)],
          ["Message bytes", formatBytes(queue.message_bytes)],
          ["Waiting for a retry", queue.messages_delayed_retry ? formatCount(queue.messages_delayed_retry) : undefined],
          ["Matching no filter", queue.messages_unmatched ? formatCount(queue.messages_unmatched) : undefined],
          ["Acknowledged, still retained", typeof queue.messages_retained === "number" ? `${formatCount(queue.messages_retained)}, since ${formatTime(queue.retained_first_timestamp)}` : undefined],
          ["Groups", queue.group_by ? `by ${queue.group_by}: ${formatCount(queue.groups_locked)} locked, ${formatCount(queue.groups_waiting)} of these waiting` : undefined],
          ["Consumers", `${formatCount(queue.consumers)}${queue.consumers ? `, capacity ${Math.round((queue.consumer_utilisation ?? 0) * 100)} %` : ""}`],
          ["Single active consumer", queue.single_active_consumer_tag ? <Name>{queue.single_active_consumer_tag}</Name> : undefined],
          ["Lost offsets", queue.lost_offsets?.length ? queue.lost_offsets.map(([a, b]) => `${a} to ${b}`).join(", ") : undefined],
          ["Virtual host", <Name>{queue.vhost}</Name>],
          ["Type", queue.type],
          ["Durability", queue.durable ? "durable" : "transient"],
          ["Node", queue.node],
          ["Policy", queue.policy || "none"],
          ["Operator policy", queue.operator_policy || undefined],
          ["Effective policy definition", queue.policy || queue.operator_policy ? <KeyValues values={queue.effective_policy_definition ?? {}} /> : undefined],
          ["Arguments", <KeyValues values={queue.arguments} />],
        ]}
      />
    </Section>
  );
}

function MessagesTab({ queueNames, stream }: { queueNames: QueueNames; stream: boolean }) {
  return (
    <>
      <BrowseMessages queueNames={queueNames} stream={stream} />
      {!stream && <GetMessages queueNames={queueNames} />}
    </>
  );
}

function BindingsTab({ queueNames, rights }: { queueNames: QueueNames; rights: Rights }) {
  const [version, setVersion] = useState(0);
  const onChange = (): void => setVersion((before) => before + 1);
  return (
    <Section title="Bindings to this queue">
      <BindingList path="/api/queues/{vhost}/{queue}/bindings" pathNames={{ ...queueNames }} end="source" version={version} onChange={onChange} canChange={rights.write} />
      {rights.write && <BindForm vhost={queueNames.vhost} queue={queueNames.queue} onChange={onChange} />}
    </Section>
  );
}

function QueueActions({ queueNames, queue, rights, onDone }: { queueNames: QueueNames; queue: Queue; rights: Rights; onDone: () => void }) {
  const wasEmpty = useRef(false);
  const wasUnused = useRef(false);
  const fetchCounts = () => get("/api/queues/{vhost}/{queue}", { ...queueNames }, { columns: "messages,messages_ready,messages_unacknowledged,consumers" });
  return (
    <div class="buttons">
      {rights.read && queue.type !== "stream" && (
        <DangerButton
          label="Purge"
          title={`Purge ${queueNames.queue}?`}
          preview={async () => {
            const { messages_ready: ready = 0, messages_unacknowledged: unacked = 0 } = await fetchCounts();
            return {
              nothingToDo: ready === 0,
              action: `Purge ${plural(ready, "message")}`,
              text: (
                <p>
                  {ready ? `Purge deletes ${plural(ready, "ready message")} without dead-lettering. It deletes all messages that are ready when you confirm, also new ones. ` : "There are no ready messages to purge. "}
                  {unacked ? `${plural(unacked, "unacked message stays", "unacked messages stay")} with the consumers.` : ""}
                </p>
              ),
            };
          }}
          run={async () => {
            await remove("/api/queues/{vhost}/{queue}/contents", { ...queueNames });
            return `${queueNames.queue} was purged.`;
          }}
          onDone={onDone}
        />
      )}
      {rights.configure && (
        <DangerButton
          label="Delete"
          title={`Delete ${queueNames.queue}?`}
          preview={async () => {
            const { messages = 0, consumers = 0 } = await fetchCounts();
            [wasEmpty.current, wasUnused.current] = [messages === 0, consumers === 0];
            return {
              action: messages ? `Delete with ${plural(messages, "message")}` : "Delete the queue",
              text: (
                <p>
                  {messages ? `The queue is deleted with its bindings and ${plural(messages, "message")}, without dead-lettering. All messages that are in it when you confirm are deleted, also new ones.` : "The empty queue is deleted with its bindings. If a message arrives before you confirm, the queue stays."}
                  {consumers ? ` The broker cancels ${plural(consumers, "consumer")}.` : ""}
                </p>
              ),
            };
          }}
          run={async () => {
            // A message that arrived after the preview is not deleted.
            await remove("/api/queues/{vhost}/{queue}", { ...queueNames }, { "if-empty": wasEmpty.current, "if-unused": wasUnused.current });
            return `${queueNames.queue} was deleted.`;
          }}
          onDone={() => navigate(["queues"])}
        />
      )}
    </div>
  );
}
