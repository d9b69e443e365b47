// The API's answer, with names instead of places in lists: those change from one answer to the next, and what is drawn
// should stay where it is.
import type { Link, Thing } from "./layout";

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
export type Kind = "binding" | "default" | "dead_letter" | "alternate";
export interface Leads extends Link {
  kind: Kind;
  count: number;
  keys: string[];
  rate: number | null;
  estimated: boolean;
}
export interface Peer {
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
  links: Leads[];
  consumers: Peer[];
  publishers: Peer[];
}

export interface Model extends Answer {
  exchangeOf: Map<string, Exchange>;
  queueOf: Map<string, Queue>;
  from: Map<string, Leads[]>;
  to: Map<string, Leads[]>;
  peersOf: Map<string, Peer[]>;
  /** The same as long as the same things are linked in the same way. */
  shape: string;
  messagesMax: number;
  /** There is more than one in it, so each thing says which it is in. */
  severalVhosts: boolean;
}

export function model(answer: Answer): Model {
  const key = new Map<string, string>();
  for (const each of answer.exchanges) key.set(each.id, `exchange ${each.vhost}\n${each.name}`);
  for (const each of answer.queues) key.set(each.id, `queue ${each.vhost}\n${each.name}`);
  const exchanges = answer.exchanges.map((each) => ({ ...each, id: key.get(each.id)! }));
  const queues = answer.queues.map((each) => ({ ...each, id: key.get(each.id)! }));
  const links = answer.links.map((each) => ({ ...each, source: key.get(each.source)!, destination: key.get(each.destination)! }));
  const consumers = answer.consumers.map((each) => ({ ...each, queue: key.get(each.queue!)! }));
  const publishers = answer.publishers.map((each) => ({ ...each, exchange: key.get(each.exchange!)! }));
  const from = new Map<string, Leads[]>();
  const to = new Map<string, Leads[]>();
  for (const link of links) {
    add(from, link.source, link);
    add(to, link.destination, link);
  }
  const peersOf = new Map<string, Peer[]>();
  for (const peer of consumers) add<Peer>(peersOf, peer.queue, peer);
  for (const peer of publishers) add<Peer>(peersOf, peer.exchange, peer);
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
    from,
    to,
    peersOf,
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

export function things(model: Model): Thing[] {
  const exchanges = model.exchanges.map((each) => ({ id: each.id, name: each.name, weight: each.in_rate }));
  return [...exchanges, ...model.queues.map((each) => ({ id: each.id, name: each.name, weight: each.in_rate + each.out_rate + each.messages }))];
}

/** Messages gather in it: more come than go. Streams are there to keep them. */
export function pilesUp(queue: Queue): boolean {
  return queue.type !== "stream" && queue.messages_ready > 0 && queue.in_rate > queue.out_rate * 1.05 + 0.1;
}

export const WORDS: Record<Kind, string> = {
  binding: "binding",
  default: "by its name, through the default exchange",
  dead_letter: "dead letters",
  alternate: "what has no route (alternate exchange)",
};
