// Groups of Kafka's clients, with their state and lag.
import type { components } from "../api/schema";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { formatCount } from "../components/format";
import { listUrl, PagedList } from "../components/paged-list";
import type { Column } from "../components/table";
import { selectedVhost } from "../shell/preferences";

type Group = components["schemas"]["KafkaGroup"];

const COLUMNS: Column<Group>[] = [
  { title: "Group", sort: "name", cell: (group) => <NameLink path={["kafka-groups", group.vhost, group.name]}>{group.name}</NameLink> },
  { title: "Virtual host", sort: "vhost", cell: (group) => <Name>{group.vhost}</Name> },
  { title: "Type", sort: "type", cell: (group) => group.type },
  { title: "State", sort: "state", cell: (group) => <GroupState group={group} /> },
  { title: "Members", sort: "member_count", number: true, cell: (group) => formatCount(group.member_count) },
  { title: "Lag (records)", sort: "lag", number: true, cell: (group) => formatCount(group.lag) },
];

const listRequest = () => ({ path: selectedVhost.value ? "/api/amqpd/kafka/groups/{vhost}" : "/api/amqpd/kafka/groups", names: { vhost: selectedVhost.value } });

export const firstUrl = (): string => listUrl(listRequest());

export default function KafkaGroups() {
  return (
    <>
      <PageTitle>Kafka groups</PageTitle>
      <PagedList<Group> noun="groups" {...listRequest()} columns={COLUMNS} idOf={(group) => `${group.vhost}\0${group.name}`} />
    </>
  );
}

export function GroupState({ group }: { group: Group }) {
  const kind = group.state === "Stable" ? "good" : group.state.endsWith("Rebalance") ? "warn" : "";
  return <Badge kind={kind}>{group.state}</Badge>;
}
