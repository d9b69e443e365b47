// A group of Kafka's clients: its members and its offsets.
import { get } from "../api/client";
import { ErrorMessage, Facts, Loading, Name, PageTitle, Section } from "../components/elements";
import { formatCount, formatTime } from "../components/format";
import { DataTable } from "../components/table";
import type { PageProps } from "../shell/pages";
import { usePoll } from "../shell/poll";
import { GroupState } from "./kafka-groups";

export default function KafkaGroup({ names }: PageProps) {
  const path = { vhost: names[0]!, name: names[1]! };
  const { data, error } = usePoll((signal) => get("/api/amqpd/kafka/groups/{vhost}/{name}", path, {}, signal), names);
  return (
    <>
      <PageTitle kind="Kafka group" aside={data && <GroupState group={data} />}>
        {path.name}
      </PageTitle>
      <ErrorMessage error={error} />
      {!data && error === undefined && <Loading />}
      {data && (
        <>
          <Section title="Details">
            <Facts
              facts={[
                ["Virtual host", <Name>{data.vhost}</Name>],
                ["Type", data.type],
                ["Assignor", data.protocol ? <Name>{data.protocol}</Name> : "none"],
                ["Lag", formatCount(data.lag)],
              ]}
            />
          </Section>
          <Section title="Members">
            <DataTable
              noun="members"
              items={data.members}
              idOf={(member) => member.id}
              columns={[
                { title: "Member", cell: (member) => <Name>{member.id}</Name> },
                { title: "Client id", cell: (member) => <Name>{member.client_id}</Name> },
                { title: "Host", cell: (member) => <Name>{member.host}</Name> },
                { title: "Partitions", cell: (member) => Object.entries(member.assignment).map(([topic, partitions]) => <div key={topic}><Name>{topic}</Name> {partitions.join(", ")}</div>) },
              ]}
            />
          </Section>
          <Section title="Offsets">
            <DataTable
              noun="offsets"
              items={data.offsets}
              idOf={(each) => `${each.topic}\0${each.partition}`}
              columns={[
                { title: "Topic", cell: (each) => <Name>{each.topic}</Name> },
                { title: "Partition", number: true, cell: (each) => each.partition },
                { title: "Committed", number: true, cell: (each) => formatCount(each.offset) },
                { title: "End offset", number: true, cell: (each) => formatCount(each.end_offset) },
                { title: "Lag (records)", number: true, cell: (each) => formatCount(each.lag) },
                { title: "Committed at", cell: (each) => each.commit_ms !== null && formatTime(each.commit_ms) },
                { title: "Member", cell: (each) => each.member_id && <Name>{each.member_id}</Name> },
              ]}
            />
          </Section>
        </>
      )}
    </>
  );
}
