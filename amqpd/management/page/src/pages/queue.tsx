// One queue: what is in it, who takes it, and everything one may do to it.
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
  { name: "deliver", label: "Delivered, to be acked" },
  { name: "deliver_no_ack", label: "Delivered, without acks" },
  { name: "get", label: "Got" },
  { name: "ack", label: "Acked" },
  { name: "redeliver", label: "Redelivered" },
];

// Not who consumes it, which may be thousands.
const FIELDS = [
  "name,vhost,type,durable,auto_delete,exclusive,arguments,node,policy,operator_policy,effective_policy_definition,state,state_reason,degraded,lost_offsets,idle_since",
  "messages,messages_ready,messages_unacknowledged,messages_delayed_retry,messages_unmatched,messages_retained,retained_first_timestamp,message_bytes",
  "group_by,groups_locked,groups_waiting,consumers,consumer_utilisation,single_active_consumer_tag",
  ...DEPTHS.map(({ name }) => `${name}_details`),
  ...RATES.map(({ name }) => `message_stats.${name}_details`),
].join();

function counters(of: Queue): Counters {
  const whole = of as unknown as Counters;
  const stats = (of.message_stats ?? {}) as Counters;
  return {
    ...Object.fromEntries(DEPTHS.map(({ name }) => [name, whole[`${name}_details`]])),
    ...Object.fromEntries(RATES.map(({ name }) => [name, stats[`${name}_details`]])),
  };
}

export default function QueuePage({ names }: PageProps) {
  const of: QueueNames = { vhost: names[0]!, queue: names[1]! };
  const rights = useRights("queue", of.vhost, of.queue);
  const canPublish = useRights("exchange", of.vhost, "").write;
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points, refresh } = useHistory(range, (query, signal) => get("/api/queues/{vhost}/{queue}", { ...of }, { ...query, columns: FIELDS }, signal), counters, names);
  const stream = data?.type === "stream";
  const overview = (): Tab => ({
    id: "",
    title: "Overview",
    body: () => (
      <>
        <QueueFacts of={data!} />
        <Charts title="Messages" range={range} ranges={OBJECT_RANGES} onRange={setRange}>
          <Chart title="In the queue" unit="count" points={points} curves={DEPTHS} />
          <Chart title="Rates" points={points} curves={RATES} />
        </Charts>
      </>
    ),
  });
  const tabs = (): Tab[] => [
    overview(),
    ...(rights.read ? [{ id: "messages", title: "Messages", body: () => <MessagesTab of={of} stream={stream} /> }] : []),
    ...(canPublish ? [{ id: "publish", title: "Publish", body: () => <Section title="Publish a message to this queue"><PublishForm vhost={of.vhost} exchange="" queue={of.queue} /></Section> }] : []),
    { id: "consumers", title: `Consumers (${formatCount(data?.consumers)})`, body: () => <Section title="Consumers"><QueueConsumers of={of} stream={stream} /></Section> },
    ...(stream && rights.read ? [{ id: "places", title: "Places", body: () => <StreamOffsets of={of} queue={data} /> }] : []),
    { id: "bindings", title: "Bindings", body: () => <BindingsTab of={of} rights={rights} /> },
    ...(rights.read ? [{ id: "jobs", title: stream ? "Copy" : "Move, copy, delete", body: () => <Jobs of={of} queue={data!} rights={rights} /> }] : []),
  ];
  return (
    <>
      <PageTitle kind={stream ? "Stream" : "Queue"} aside={data && <QueueActions of={of} queue={data} rights={rights} onDone={() => void refresh()} />}>
        {of.queue}
      </PageTitle>
      <ErrorMessage error={error} />
      {data && <Tabs label="Parts of this queue" tabs={tabs()} />}
      {!data && !error && <Loading />}
    </>
  );
}

function QueueFacts({ of }: { of: Queue }) {
  return (
    <Section title="What it is" aside={<QueueState queue={of} />}>
      <Facts
        of={[
          ["Ready", formatCount(of.messages_ready)],
          ["Unacked", formatCount(of.messages_unacknowledged)],
          ["Bytes of messages", formatBytes(of.message_bytes)],
          ["Wait for their next try", of.messages_delayed_retry ? formatCount(of.messages_delayed_retry) : undefined],
          ["Match no filter", of.messages_unmatched ? formatCount(of.messages_unmatched) : undefined],
          ["Handled and still kept", typeof of.messages_retained === "number" ? `${formatCount(of.messages_retained)}, from ${formatTime(of.retained_first_timestamp)} on` : undefined],
          ["Groups", of.group_by ? `by ${of.group_by}: ${formatCount(of.groups_locked)} locked, ${formatCount(of.groups_waiting)} of them wait` : undefined],
          ["Consumers", `${formatCount(of.consumers)}${of.consumers ? `, which can take more ${Math.round((of.consumer_utilisation ?? 0) * 100)} % of the time` : ""}`],
          ["Single active consumer", of.single_active_consumer_tag ? <Name>{of.single_active_consumer_tag}</Name> : undefined],
          ["Lost", of.lost_offsets?.length ? of.lost_offsets.map(([a, b]) => `${a} to ${b}`).join(", ") : undefined],
          ["Virtual host", <Name>{of.vhost}</Name>],
          ["Type", of.type],
          ["After a restart", of.durable ? "there: durable" : "gone: transient"],
          ["Node", of.node],
          ["Policy", of.policy || "none"],
          ["Operator policy", of.operator_policy || undefined],
          ["Obeyed of policies", of.policy || of.operator_policy ? <KeyValues of={of.effective_policy_definition ?? {}} /> : undefined],
          ["Arguments", <KeyValues of={of.arguments} />],
        ]}
      />
    </Section>
  );
}

function MessagesTab({ of, stream }: { of: QueueNames; stream: boolean }) {
  return (
    <>
      <BrowseMessages of={of} stream={stream} />
      {!stream && <GetMessages of={of} />}
    </>
  );
}

function BindingsTab({ of, rights }: { of: QueueNames; rights: Rights }) {
  const [version, setVersion] = useState(0);
  const onChange = (): void => setVersion((before) => before + 1);
  return (
    <Section title="From which exchanges messages come">
      <BindingList path="/api/queues/{vhost}/{queue}/bindings" of={{ ...of }} end="source" version={version} onChange={onChange} canChange={rights.write} />
      {rights.write && <BindForm vhost={of.vhost} queue={of.queue} onChange={onChange} />}
    </Section>
  );
}

function QueueActions({ of, queue, rights, onDone }: { of: QueueNames; queue: Queue; rights: Rights; onDone: () => void }) {
  const empty = useRef(false);
  const unused = useRef(false);
  const now = () => get("/api/queues/{vhost}/{queue}", { ...of }, { columns: "messages,messages_ready,messages_unacknowledged,consumers" });
  return (
    <div class="buttons">
      {rights.read && queue.type !== "stream" && (
        <DangerButton
          label="Purge"
          title={`Purge ${of.queue}?`}
          look={async () => {
            const { messages_ready: ready = 0, messages_unacknowledged: unacked = 0 } = await now();
            return {
              nothingToDo: ready === 0,
              action: `Purge ${plural(ready, "message")}`,
              text: (
                <p>
                  {ready ? `${plural(ready, "ready message")} ${ready === 1 ? "is" : "are"} removed, and not dead-lettered: nobody gets them any more. That is the count of this moment: all that are ready when you confirm go. ` : "Nothing is ready, so there is nothing to purge. "}
                  {unacked ? `${plural(unacked, "message")} that consumers have unacked stay with them.` : ""}
                </p>
              ),
            };
          }}
          run={async () => {
            await remove("/api/queues/{vhost}/{queue}/contents", { ...of });
            return `${of.queue} is purged.`;
          }}
          onDone={onDone}
        />
      )}
      {rights.configure && (
        <DangerButton
          label="Delete"
          title={`Delete ${of.queue}?`}
          look={async () => {
            const { messages = 0, consumers = 0 } = await now();
            [empty.current, unused.current] = [messages === 0, consumers === 0];
            return {
              action: messages ? `Delete it with ${plural(messages, "message")}` : "Delete the queue",
              text: (
                <p>
                  The queue goes, and with it its bindings and {messages ? `all of its ${plural(messages, "message")}: they are not dead-lettered, and nobody gets them any more. That is the count of this moment: all that are in it when you confirm go` : "no message, as it is empty; if one comes before you confirm, it stays"}.
                  {consumers ? ` ${plural(consumers, "consumer")} ${consumers === 1 ? "is" : "are"} told that it is gone.` : ""}
                </p>
              ),
            };
          }}
          run={async () => {
            // What came since it was looked at is not deleted unseen.
            await remove("/api/queues/{vhost}/{queue}", { ...of }, { "if-empty": empty.current, "if-unused": unused.current });
            return `${of.queue} is deleted.`;
          }}
          onDone={() => navigate(["queues"])}
        />
      )}
    </div>
  );
}
