// Tables of the consumers of a queue or a channel; for a stream with their offsets.
import type { components } from "../api/schema";
import { Badge, KeyValues, Name, NameLink } from "./elements";
import { formatCount } from "./format";
import { PagedList } from "./paged-list";
import { type Column, DataTable } from "./table";

type Consumer = components["schemas"]["Consumer"];

const TAG: Column<Consumer> = { title: "Consumer tag", cell: (each) => <Name>{each.consumer_tag}</Name> };
const QUEUE: Column<Consumer> = { title: "Queue", cell: (each) => <NameLink path={["queues", each.queue.vhost, each.queue.name]}>{each.queue.name}</NameLink> };
const CHANNEL: Column<Consumer> = { title: "Channel", cell: (each) => each.channel_details && <NameLink path={["channels", each.channel_details.name]}>{each.channel_details.name}</NameLink> };
const USER: Column<Consumer> = { title: "User", cell: (each) => each.channel_details && <Name>{each.channel_details.user}</Name> };
const STREAM: Column<Consumer>[] = [
  { title: "Offset", number: true, cell: (each) => formatCount(each.stream?.offset) },
  { title: "Lag", number: true, cell: (each) => formatCount(each.stream?.lag) },
  { title: "Consumer name", cell: (each) => each.stream?.name && <Name>{each.stream.name}</Name> },
];

function columns(first: Column<Consumer>[], stream: boolean): Column<Consumer>[] {
  return [
    TAG,
    ...first,
    { title: "State", cell: (each) => <Activity consumer={each} /> },
    { title: "Acks", cell: (each) => (each.ack_required ? "yes" : "no: a sent message is removed at once") },
    { title: "Prefetch", number: true, cell: (each) => (each.prefetch_count ? formatCount(each.prefetch_count) : "none") },
    ...(stream ? STREAM : []),
    { title: "Arguments", cell: (each) => <KeyValues values={each.arguments} none="" /> },
  ];
}

const idOf = (each: Consumer): string => `${each.channel_details?.name}\0${each.consumer_tag}`;

export function ChannelConsumers({ consumers }: { consumers: Consumer[] }) {
  return <DataTable noun="consumers" items={consumers} columns={columns([QUEUE], consumers.some((each) => each.stream))} idOf={idOf} />;
}

/** A paged list, because a queue may have thousands of consumers. */
export function QueueConsumers({ queueNames, stream }: { queueNames: { vhost: string; queue: string }; stream: boolean }) {
  return <PagedList<Consumer> noun="consumers" path="/api/queues/{vhost}/{queue}/consumers" names={queueNames} searchable="many" searchLabel="consumer tag" columns={columns([CHANNEL, USER], stream)} idOf={idOf} />;
}

function Activity({ consumer }: { consumer: Consumer }) {
  return (
    <>
      {consumer.activity_status === "waiting" ? <Badge title="Another consumer is the single active consumer">waiting</Badge> : <Badge kind="good">active</Badge>}
      {consumer.exclusive && <Badge>exclusive</Badge>}
      {consumer.groups_held !== undefined && <Badge title="Message groups of which this consumer has unacked messages">{formatCount(consumer.groups_held)} groups</Badge>}
    </>
  );
}
