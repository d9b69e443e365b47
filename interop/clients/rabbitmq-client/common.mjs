// rabbitmq-client: what the programs of this folder share. Consumer, Publisher and RPCClient where they fit, else a Channel.
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const { Connection } = createRequire(`${process.env.NODE_PATH}/`)("rabbitmq-client");
const { AMQP_URL: url, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const name = process.argv[2];
const tls = ca && { ca: readFileSync(ca), ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const heartbeat = name === "heartbeat" ? 1 : 60;
export const rabbit = new Connection({ url, tls, heartbeat, frameMax: 131_072, retryLow: 100 });

const numbers = { ACCESS_REFUSED: 403, NOT_FOUND: 404, PRECONDITION_FAILED: 406, NOT_ALLOWED: 530 };
export const print = (messages) => messages.forEach(({ body }) => console.log(body));
export const printError = (error) => console.log(numbers[error.code], error.message); // code is the name of the number
export const printCount = async (channel, queue) => console.log((await channel.queuePurge(queue)).messageCount);

// Starts a consumer, sends, and returns the first `count` messages.
export async function consume(props, count, messages, publisher = rabbit.createPublisher()) {
  const got = [];
  const consumer = rabbit.createConsumer(props, (message) => void got.push(message));
  await once(consumer, "ready");
  for (const [envelope, body] of messages) await publisher.send(envelope, body);
  while (got.length < count) await sleep(5);
  await Promise.all([publisher.close(), consumer.close()]);
  return got;
}

// Declares a queue, sends to it, and returns what a consumer that starts then receives.
export async function late(queue, declared, messages, count, props) {
  const channel = await rabbit.acquire();
  await channel.queueDeclare({ queue, ...declared });
  for (const [envelope, body] of messages) await channel.basicPublish({ routingKey: queue, ...envelope }, body);
  return consume({ queue, queueOptions: { passive: true }, ...props }, count, []);
}

export const hello = async () => print(await consume({ queue: "hello" }, 1, [["hello", "Hello World!"]]));

// Does the scenario of the command line; what the broker refuses is printed.
export async function run(scenarios) {
  rabbit.on("error", (error) => name === "reconnect" || printError(error) || process.exit(0));
  if (name === "version") {
    console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/rabbitmq-client/package.json`)).version);
  } else {
    await rabbit.onConnect();
    await scenarios[name]().catch(printError);
  }
  process.exit(0);
}
