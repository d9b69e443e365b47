// Consumers, of a queue or of a channel; those of a stream with the place where each is.
import type { components } from "../api/schema";
import { Rows, type Column } from "./list";
import { count } from "./numbers";
import { Badge, Name, Table, To } from "./text";

type Consumer = components["schemas"]["Consumer"];

export function Consumers({ of, of_queue }: { of: Consumer[]; of_queue: boolean }) {
  const streams = of.some((each) => each.stream);
  const columns: Column<Consumer>[] = [
    { title: "Consumer tag", cell: (each) => <Name>{each.consumer_tag}</Name> },
    of_queue
      ? { title: "Channel", cell: (each) => each.channel_details && <To path={["channels", each.channel_details.name]}>{each.channel_details.name}</To> }
      : { title: "Queue", cell: (each) => <To path={["queues", each.queue.vhost, each.queue.name]}>{each.queue.name}</To> },
    ...(of_queue ? [{ title: "User", cell: (each: Consumer) => each.channel_details && <Name>{each.channel_details.user}</Name> }] : []),
    { title: "State", cell: (each) => <Activity of={each} /> },
    { title: "Acks", cell: (each) => (each.ack_required ? "yes" : "no: a message is gone once it is sent") },
    { title: "Prefetch", number: true, cell: (each) => (each.prefetch_count ? count(each.prefetch_count) : "none") },
    ...(streams
      ? [
          { title: "At offset", number: true, cell: (each: Consumer) => count(each.stream?.offset) },
          { title: "Behind", number: true, cell: (each: Consumer) => count(each.stream?.lag) },
          { title: "Its name", cell: (each: Consumer) => each.stream?.name && <Name>{each.stream.name}</Name> },
        ]
      : []),
    { title: "Arguments", cell: (each) => <Table of={each.arguments} none="" /> },
  ];
  return <Rows what="consumers" items={of} columns={columns} idOf={(each) => `${each.channel_details?.name}\0${each.consumer_tag}`} />;
}

function Activity({ of }: { of: Consumer }) {
  return (
    <>
      {of.activity_status === "waiting" ? <Badge title="Another one is the single active consumer">waiting</Badge> : <Badge kind="good">active</Badge>}
      {of.exclusive && <Badge>exclusive</Badge>}
      {of.groups_held !== undefined && <Badge title="Groups of which it has unacked messages">{count(of.groups_held)} groups</Badge>}
    </>
  );
}
