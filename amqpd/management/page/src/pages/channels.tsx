import type { components } from "../api/schema";
import { Badge, Name, NameLink, PageTitle } from "../components/elements";
import { formatCount, formatRate } from "../components/format";
import { PagedList } from "../components/paged-list";
import type { Column } from "../components/table";
import { selectedVhost } from "../shell/preferences";
import { hasTag, session } from "../shell/session";

type Channel = components["schemas"]["Channel"];

export function ChannelState({ channel }: { channel: Channel }) {
  if (channel.state === "flow") return <Badge kind="warn" title="The broker does not read from its connection now">flow</Badge>;
  if (channel.state === "closing") return <Badge kind="warn">closing</Badge>;
  return channel.idle_since ? <Badge title={`Since ${channel.idle_since}`}>idle</Badge> : <Badge kind="good">running</Badge>;
}

export function channelMode(channel: Channel): string {
  return channel.transactional ? "transactions" : channel.confirm ? "confirms" : "";
}

export const CHANNEL_COLUMNS: Column<Channel>[] = [
  { title: "Channel", sort: "name", cell: (channel) => <NameLink path={["channels", channel.name]}>{channel.name}</NameLink> },
  { title: "State", sort: "state", cell: (channel) => <ChannelState channel={channel} /> },
  { title: "Mode", cell: channelMode },
  { title: "Prefetch", sort: "prefetch_count", number: true, cell: (channel) => (channel.prefetch_count || channel.global_prefetch_count ? formatCount(channel.prefetch_count || channel.global_prefetch_count) : "none") },
  { title: "Consumers", sort: "consumer_count", number: true, cell: (channel) => formatCount(channel.consumer_count) },
  { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (channel) => formatCount(channel.messages_unacknowledged) },
  { title: "Unconfirmed", sort: "messages_unconfirmed", number: true, cell: (channel) => formatCount(channel.messages_unconfirmed) },
  { title: "Published", sort: "message_stats.publish_details.rate", number: true, cell: (channel) => formatRate(channel.message_stats.publish_details?.rate) },
  { title: "Delivered", sort: "message_stats.deliver_get_details.rate", number: true, cell: (channel) => formatRate(channel.message_stats.deliver_get_details?.rate) },
  { title: "Acked", sort: "message_stats.ack_details.rate", number: true, cell: (channel) => formatRate(channel.message_stats.ack_details?.rate) },
];
const ALL: Column<Channel>[] = [
  ...CHANNEL_COLUMNS.slice(0, 1),
  { title: "User", sort: "user", cell: (channel) => <Name>{channel.user}</Name> },
  { title: "Virtual host", sort: "vhost", cell: (channel) => <Name>{channel.vhost}</Name> },
  ...CHANNEL_COLUMNS.slice(1),
];

export default function Channels() {
  const chosen = selectedVhost.value;
  return (
    <>
      <PageTitle>Channels</PageTitle>
      {!hasTag("monitoring") && <p class="muted">Channels of user {session.value?.name}. The list of all channels needs the user tag monitoring or administrator.</p>}
      <PagedList<Channel> noun="channels" path={chosen ? "/api/vhosts/{vhost}/channels" : "/api/channels"} names={{ vhost: chosen }} columns={ALL} idOf={(channel) => channel.name} />
    </>
  );
}
