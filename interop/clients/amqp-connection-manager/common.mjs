// amqp-connection-manager, over amqplib: what the programs of this folder share. A publish waits for its confirm.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const amqp = createRequire(`${process.env.NODE_PATH}/`)("amqp-connection-manager");
const { AMQP_URL, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const name = process.argv[2];
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
export const connection = amqp.connect([AMQP_URL], {
  heartbeatIntervalInSeconds: name === "heartbeat" ? 1 : 5,
  reconnectTimeInSeconds: 0.1,
  connectionOptions: tls,
});

// A channel whose queues and exchanges are declared again after each reconnect.
export async function open(setup = async () => {}) {
  const channel = connection.createChannel({ setup: (raw) => setup(raw.on("error", () => {})) });
  await channel.waitForConnect();
  return channel;
}

export const withQueue = (queue, options) => open((channel) => channel.assertQueue(queue, options));
export const send = (channel, queue, bodies, options) =>
  Promise.all([...bodies].map((body) => channel.sendToQueue(queue, body, options)));
export const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));
export const printCount = async (channel, queue) => console.log((await channel.purgeQueue(queue)).messageCount);

export async function receive(channel, queue, count, options = { noAck: true }) {
  const got = [];
  await new Promise((done) => channel.consume(queue, (message) => got.push(message) === count && done(), options));
  return got;
}

export async function hello() {
  const channel = await withQueue("hello");
  await send(channel, "hello", ["Hello World!"]);
  print(await receive(channel, "hello", 1));
}

export const notOffered = (reason) => async () => console.log(`not offered: ${reason}`);

// Does the scenario of the command line; what the broker refuses is printed.
export async function run(scenarios) {
  connection.on("connectFailed", ({ err }) => {
    if (name === "reconnect") return;
    console.log(name === "bad-vhost" && /ConnectionClose/.test(err.message) ? "pass" : err.message); // as in amqplib
    process.exit(0);
  });
  if (name === "version") {
    console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/amqp-connection-manager/package.json`)).version);
  } else {
    await scenarios[name]().catch((error) => console.log(error.message));
    if (name !== "reconnect") await connection.close();
  }
  process.exit(0);
}
