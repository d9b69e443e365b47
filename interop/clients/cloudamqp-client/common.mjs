// @cloudamqp/amqp-client: what the programs of this folder share. AMQPSession for requests and reconnecting, else AMQPClient.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

export const { AMQPClient, AMQPSession } = createRequire(`${process.env.NODE_PATH}/`)("@cloudamqp/amqp-client");
export const { AMQP_URL: url, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: readFileSync(ca), ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };

export const print = (messages) => messages.forEach((message) => console.log(message.bodyString()));
export const printCount = async (channel, queue) => console.log((await channel.queuePurge(queue)).messageCount);

export async function send(channel, queue, bodies, properties) {
  for (const body of bodies) await channel.basicPublish("", queue, body, properties);
}

// The first messages of a queue; leaving the loop cancels the consumer.
export async function receive(channel, queue, count, params = { noAck: true }) {
  const got = [];
  const consumer = await channel.basicConsume(queue, params);
  for await (const message of consumer.messages) if (got.push(message) === count) return got;
}

export async function hello(channel) {
  await channel.queueDeclare("hello");
  await send(channel, "hello", ["Hello World!"]);
  print(await receive(channel, "hello", 1));
}

// Does the scenario of the command line; what the broker refuses is printed.
export async function run(scenarios, name = process.argv[2]) {
  if (name === "version") {
    console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/@cloudamqp/amqp-client/package.json`)).version);
    process.exit(0);
  }
  try {
    const client = new AMQPClient(`${url}?frameMax=131072${name === "heartbeat" ? "&heartbeat=1" : ""}`, tls);
    const connection = await client.connect();
    await scenarios[name](await connection.channel(), connection);
    if (name !== "reconnect") await connection.close();
  } catch (error) {
    console.log(error.message);
  }
  process.exit(0);
}
