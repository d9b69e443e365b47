// The topology of the API's answer. Objects get ids of their names, because indexes change between answers and a
// drawn object must stay in place.
import type { LayoutNode, Link } from "./layout";

export interface Exchange {
  id: string;
  vhost: string;
  name: string;
  type: string;
  bindings: number;
  messages_delayed: number;
  in_rate: number;
  out_rate: number;
}
export interface Queue {
  id: string;
  vhost: string;
  name: string;
  type: string;
  messages: number;
  messages_ready: number;
  messages_unacknowledged: number;
  consumers: number;
  in_rate: number;
  out_rate: number;
}
export type LinkKind = "binding" | "default" | "dead_letter" | "alternate";
export interface TopologyLink extends Link {
  kind: LinkKind;
  count: number;
  keys: string[];
  rate: number | null;
  estimated: boolean;
}
export interface Client {
  queue?: string;
  exchange?: string;
  connection: string;
  user: string;
  count: number;
}
export interface Answer {
  missing_nodes?: string[];
  totals: { exchanges: number; queues: number };
  exchanges: Exchange[];
  queues: Queue[];
  links: TopologyLink[];
  consumers: Client[];
  publishers: Client[];
}

export interface Topology extends Answer {
  exchangeOf: Map<string, Exchange>;
  queueOf: Map<string, Queue>;
  linksFrom: Map<string, TopologyLink[]>;
  linksTo: Map<string, TopologyLink[]>;
  clientsOf: Map<string, Client[]>;
  /** Equal for two answers with the same objects and links: then the layout is reused. */
  shape: string;
  messagesMax: number;
  /** Each box names its virtual host. */
  severalVhosts: boolean;
}

export function toTopology(answer: Answer): Topology {
  const key = new Map<string, string>();
  for (const each of answer.exchanges) key.set(each.id, `exchange ${each.vhost}\n${each.name}`);
  for (const each of answer.queues) key.set(each.id, `queue ${each.vhost}\n${each.name}`);
  const exchanges = answer.exchanges.map((each) => ({ ...each, id: key.get(each.id)! }));
  const queues = answer.queues.map((each) => ({ ...each, id: key.get(each.id)! }));
  const links = answer.links.map((each) => ({ ...each, source: key.get(each.source)!, destination: key.get(each.destination)! }));
  const consumers = answer.consumers.map((each) => ({ ...each, queue: key.get(each.queue!)! }));
  const publishers = answer.publishers.map((each) => ({ ...each, exchange: key.get(each.exchange!)! }));
  const linksFrom = new Map<string, TopologyLink[]>();
  const linksTo = new Map<string, TopologyLink[]>();
  for (const link of links) {
    add(linksFrom, link.source, link);
    add(linksTo, link.destination, link);
  }
  const clientsOf = new Map<string, Client[]>();
  for (const client of consumers) add<Client>(clientsOf, client.queue, client);
  for (const client of publishers) add<Client>(clientsOf, client.exchange, client);
  const shape = JSON.stringify([
    [...exchanges, ...queues].map((each) => each.id).sort(),
    links.map((each) => `${each.kind} ${each.source} ${each.destination}`).sort(),
  ]);
  return {
    totals: answer.totals,
    exchanges,
    queues,
    links,
    consumers,
    publishers,
    exchangeOf: new Map(exchanges.map((each) => [each.id, each])),
    queueOf: new Map(queues.map((each) => [each.id, each])),
    linksFrom,
    linksTo,
    clientsOf,
    shape,
    messagesMax: queues.reduce((most, each) => Math.max(most, each.messages), 0),
    severalVhosts: new Set([...answer.exchanges, ...answer.queues].map((each) => each.vhost)).size > 1,
  };
}

function add<T>(into: Map<string, T[]>, key: string, value: T): void {
  const there = into.get(key);
  if (there) there.push(value);
  else into.set(key, [value]);
}

export function layoutNodes(model: Topology): LayoutNode[] {
  const exchanges = model.exchanges.map((each) => ({ id: each.id, name: each.name, weight: each.in_rate }));
  return [...exchanges, ...model.queues.map((each) => ({ id: each.id, name: each.name, weight: each.in_rate + each.out_rate + each.messages }))];
}

/** Return whether a queue gets more messages than it delivers. Streams keep their messages on purpose. */
export function isGrowing(queue: Queue): boolean {
  return queue.type !== "stream" && queue.messages_ready > 0 && queue.in_rate > queue.out_rate * 1.05 + 0.1;
}

export const LINK_TEXT: Record<LinkKind, string> = {
  binding: "binding",
  default: "default exchange",
  dead_letter: "dead letters",
  alternate: "alternate exchange",
};
