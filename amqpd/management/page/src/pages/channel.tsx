// One channel: where it publishes, from which queues it consumes.
import { useState } from "preact/hooks";
import { get } from "../api/client";
import { Chart, Charts } from "../components/chart";
import { Consumers } from "../components/consumers";
import { SHORT, useHistory, type Counters, type Range } from "../components/samples";
import { Rows } from "../components/paged-list";
import { count, rate } from "../components/format";
import { exchangeName, Facts, Failure, Name, Section, Title, To, Waiting } from "../components/elements";
import type { PageProps } from "../shell/pages";
import { ChannelState, mode } from "./channels";

const CURVES = [
  { name: "publish", label: "Published" },
  { name: "confirm", label: "Confirmed" },
  { name: "deliver_get", label: "Delivered" },
  { name: "ack", label: "Acked" },
  { name: "redeliver", label: "Redelivered" },
];

export default function ChannelPage({ names }: PageProps) {
  const [range, setRange] = useState<Range>("10 min");
  const { data, error, points } = useHistory(
    range,
    (query, signal) => get("/api/channels/{channel}", { channel: names[0]! }, query, signal),
    (of) => Object.fromEntries(CURVES.map(({ name }) => [name, (of.message_stats as Counters)[`${name}_details`]])),
    names,
  );
  return (
    <>
      <Title kind="Channel" aside={data && <ChannelState of={data} />}>
        {names[0]!}
      </Title>
      <Failure error={error} />
      {data && (
        <>
          <Section title="What it is">
            <Facts
              of={[
                ["Connection", <To path={["connections", data.connection_details.name]}>{data.connection_details.name}</To>],
                ["User", <Name>{data.user}</Name>],
                ["Virtual host", <Name>{data.vhost}</Name>],
                ["Mode", mode(data) || "neither confirms nor transactions"],
                ["Prefetch, each consumer", data.prefetch_count ? count(data.prefetch_count) : "no limit"],
                ["Prefetch, all together", data.global_prefetch_count ? count(data.global_prefetch_count) : "no limit"],
                ["Unacked", count(data.messages_unacknowledged)],
                ["Not yet confirmed", count(data.messages_unconfirmed)],
                ["Not yet committed", data.transactional ? `${count(data.messages_uncommitted)} messages, ${count(data.acks_uncommitted)} acks` : undefined],
              ]}
            />
          </Section>
          <Charts title="Messages" range={range} ranges={SHORT} onRange={setRange}>
            <Chart title="Rates" points={points} curves={CURVES} />
          </Charts>
          <Section title="Consumers">
            <Consumers of={data.consumer_details ?? []} />
          </Section>
          <Section title="Publishes to">
            <Rows
              what="exchanges published to"
              items={data.publishes ?? []}
              idOf={(of) => of.exchange.name}
              columns={[
                { title: "Exchange", cell: (of) => <To path={["exchanges", of.exchange.vhost, of.exchange.name || "amq.default"]}>{exchangeName(of.exchange.name)}</To> },
                { title: "Published", number: true, cell: (of) => rate(of.stats.publish_details?.rate) },
              ]}
            />
          </Section>
          <Section title="Gets from">
            <Rows
              what="queues consumed from"
              items={data.deliveries ?? []}
              idOf={(of) => of.queue.name}
              columns={[
                { title: "Queue", cell: (of) => <To path={["queues", of.queue.vhost, of.queue.name]}>{of.queue.name}</To> },
                { title: "Delivered", number: true, cell: (of) => rate(of.stats.deliver_get_details?.rate) },
                { title: "Acked", number: true, cell: (of) => rate(of.stats.ack_details?.rate) },
              ]}
            />
          </Section>
        </>
      )}
      {!data && !error && <Waiting />}
    </>
  );
}
