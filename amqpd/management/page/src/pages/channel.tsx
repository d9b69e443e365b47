import { useState } from "preact/hooks";
import { get } from "../api/client";
import { Chart, Charts } from "../components/chart";
import { ChannelConsumers } from "../components/consumers";
import { ErrorMessage, exchangeName, Facts, Loading, Name, NameLink, PageTitle, Section } from "../components/elements";
import { formatCount, formatRate } from "../components/format";
import { type Counters, OBJECT_RANGES, type Range, useHistory } from "../components/samples";
import { DataTable } from "../components/table";
import type { PageProps } from "../shell/pages";
import { channelMode, ChannelState } from "./channels";

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
    (each) => Object.fromEntries(CURVES.map(({ name }) => [name, (each.message_stats as Counters)[`${name}_details`]])),
    names,
  );
  return (
    <>
      <PageTitle kind="Channel" aside={data && <ChannelState channel={data} />}>
        {names[0]!}
      </PageTitle>
      <ErrorMessage error={error} />
      {data && (
        <>
          <Section title="Details">
            <Facts
              facts={[
                ["Connection", <NameLink path={["connections", data.connection_details.name]}>{data.connection_details.name}</NameLink>],
                ["User", <Name>{data.user}</Name>],
                ["Virtual host", <Name>{data.vhost}</Name>],
                ["Mode", channelMode(data) || "no confirms, no transactions"],
                ["Prefetch per consumer", data.prefetch_count ? formatCount(data.prefetch_count) : "no limit"],
                ["Prefetch per channel", data.global_prefetch_count ? formatCount(data.global_prefetch_count) : "no limit"],
                ["Unacked", formatCount(data.messages_unacknowledged)],
                ["Unconfirmed", formatCount(data.messages_unconfirmed)],
                ["Uncommitted", data.transactional ? `${formatCount(data.messages_uncommitted)} messages, ${formatCount(data.acks_uncommitted)} acks` : undefined],
              ]}
            />
          </Section>
          <Charts title="Messages" range={range} ranges={OBJECT_RANGES} onRange={setRange}>
            <Chart title="Rates" points={points} curves={CURVES} />
          </Charts>
          <Section title="Consumers">
            <ChannelConsumers consumers={data.consumer_details ?? []} />
          </Section>
          <Section title="Publishes to">
            <DataTable
              noun="exchanges published to"
              items={data.publishes ?? []}
              idOf={(each) => each.exchange.name}
              columns={[
                { title: "Exchange", cell: (each) => <NameLink path={["exchanges", each.exchange.vhost, each.exchange.name || "amq.default"]}>{exchangeName(each.exchange.name)}</NameLink> },
                { title: "Published", number: true, cell: (each) => formatRate(each.stats.publish_details?.rate) },
              ]}
            />
          </Section>
          <Section title="Consumes from">
            <DataTable
              noun="queues consumed from"
              items={data.deliveries ?? []}
              idOf={(each) => each.queue.name}
              columns={[
                { title: "Queue", cell: (each) => <NameLink path={["queues", each.queue.vhost, each.queue.name]}>{each.queue.name}</NameLink> },
                { title: "Delivered", number: true, cell: (each) => formatRate(each.stats.deliver_get_details?.rate) },
                { title: "Acked", number: true, cell: (each) => formatRate(each.stats.ack_details?.rate) },
              ]}
            />
          </Section>
        </>
      )}
      {!data && !error && <Loading />}
    </>
  );
}
