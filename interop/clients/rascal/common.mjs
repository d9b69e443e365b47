// rascal, over amqplib: what the programs of this folder share. Its configuration declares everything; it publishes with confirms.
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const rascal = createRequire(`${process.env.NODE_PATH}/`)("rascal");
const { AMQP_URL, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };

// Connects and declares. Publications and subscriptions of a queue or exchange are called v/NAME.
export async function start(parts, query = "") {
  const connection = { url: AMQP_URL + query, socketOptions: tls ?? {}, retry: { min: 100, max: 200, factor: 1 } };
  const broker = await rascal.BrokerAsPromised.create(rascal.withDefaultConfig({ vhosts: { v: { connection, ...parts } } }));
  return broker.on("error", () => {}); // a lost connection; the broker connects again
}

export async function publish(broker, target, body, overrides) {
  const publication = await broker.publish(`v/${target}`, body, { timeout: 0, ...overrides }); // default: 10 s
  await new Promise((resolve, reject) => publication.on("success", resolve).on("error", reject));
}

export async function send(broker, queue, bodies, options) {
  for (const body of bodies) await publish(broker, queue, body, { options });
}

export async function consume(broker, queue, onMessage, overrides) {
  const subscription = await broker.subscribe(`v/${queue}`, overrides);
  subscription.on("error", () => {}).on("message", onMessage);
  await once(subscription, "subscribed");
  return subscription;
}

// The first messages of a queue, acked.
export async function receive(broker, queue, count, overrides) {
  const got = [];
  const add = (message, _content, ackOrNack) => got.push(message) && ackOrNack();
  const subscription = await consume(broker, queue, add, overrides);
  while (got.length < count) await sleep(5);
  await subscription.cancel();
  return got;
}

export const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));

export async function hello(query) {
  const broker = await start({ queues: ["hello"] }, query);
  if (query) await sleep(4000);
  await send(broker, "hello", ["Hello World!"]);
  print(await receive(broker, "hello", 1));
}

export const notOffered = (reason) => async () => console.log(`not offered: ${reason}`);

// Does the scenario of the command line; what the broker refuses is printed.
export async function run(scenarios, name = process.argv[2]) {
  const version = async () => console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/rascal/package.json`)).version);
  await { ...scenarios, version }[name]().catch(({ message }) =>
    console.log(name === "bad-vhost" && /ConnectionClose/.test(message) ? "pass" : message)); // as in amqplib
  process.exit(0);
}
