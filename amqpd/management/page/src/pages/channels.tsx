// All channels: what they publish, what they have in hand.
import type { components } from "../api/schema";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { formatCount, formatRate } from "../components/format";
import { PagedList } from "../components/paged-list";
import type { Column } from "../components/table";
import { selectedVhost } from "../shell/preferences";
import { hasTag, session } from "../shell/session";

type Channel = components["schemas"]["Channel"];

export function ChannelState({ of }: { of: Channel }) {
  if (of.state === "flow") return <Badge kind="warn" title="Its connection is held, as it sends faster than the broker can write">held</Badge>;
  if (of.state === "closing") return <Badge kind="warn">closing</Badge>;
  return of.idle_since ? <Badge title={`Since ${of.idle_since}`}>idle</Badge> : <Badge kind="good">running</Badge>;
}

export function channelMode(of: Channel): string {
  return of.transactional ? "transactions" : of.confirm ? "confirms" : "";
}

export const CHANNEL_COLUMNS: Column<Channel>[] = [
  { title: "Channel", sort: "name", cell: (of) => <NameLink path={["channels", of.name]}>{of.name}</NameLink> },
  { title: "State", sort: "state", cell: (of) => <ChannelState of={of} /> },
  { title: "Mode", cell: channelMode },
  { title: "Prefetch", sort: "prefetch_count", number: true, cell: (of) => (of.prefetch_count || of.global_prefetch_count ? formatCount(of.prefetch_count || of.global_prefetch_count) : "none") },
  { title: "Consumers", sort: "consumer_count", number: true, cell: (of) => formatCount(of.consumer_count) },
  { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (of) => formatCount(of.messages_unacknowledged) },
  { title: "Unconfirmed", sort: "messages_unconfirmed", number: true, cell: (of) => formatCount(of.messages_unconfirmed) },
  { title: "Published", sort: "message_stats.publish_details.rate", number: true, cell: (of) => formatRate(of.message_stats.publish_details?.rate) },
  { title: "Delivered", sort: "message_stats.deliver_get_details.rate", number: true, cell: (of) => formatRate(of.message_stats.deliver_get_details?.rate) },
  { title: "Acked", sort: "message_stats.ack_details.rate", number: true, cell: (of) => formatRate(of.message_stats.ack_details?.rate) },
];
const ALL: Column<Channel>[] = [
  ...CHANNEL_COLUMNS.slice(0, 1),
  { title: "User", sort: "user", cell: (of) => <Name>{of.user}</Name> },
  { title: "Virtual host", sort: "vhost", cell: (of) => <Name>{of.vhost}</Name> },
  ...CHANNEL_COLUMNS.slice(1),
];

export default function Channels() {
  const chosen = selectedVhost.value;
  return (
    <>
      <PageTitle>Channels</PageTitle>
      {!hasTag("monitoring") && <p class="soft">Those of user {session.value?.name}; all are for the user tag monitoring, or administrator.</p>}
      <PagedList<Channel> what="channels" path={chosen ? "/api/vhosts/{vhost}/channels" : "/api/channels"} names={{ vhost: chosen }} columns={ALL} idOf={(of) => of.name} />
    </>
  );
}
