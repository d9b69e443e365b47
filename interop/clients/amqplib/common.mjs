// amqplib (promises): what the programs of this folder share.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const amqp = createRequire(`${process.env.NODE_PATH}/`)("amqplib");
const { AMQP_URL, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
export const connect = (query = "") => amqp.connect(AMQP_URL + query, tls);

export function send(channel, queue, bodies, options) {
  for (const body of bodies) channel.sendToQueue(queue, Buffer.from(body), options);
}

export async function receive(channel, queue, count, options = { noAck: true }) {
  const got = [];
  await new Promise((done) => channel.consume(queue, (message) => got.push(message) === count && done(), options));
  return got;
}

export const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));

export async function hello(channel) {
  await channel.assertQueue("hello");
  send(channel, "hello", ["Hello World!"]);
  print(await receive(channel, "hello", 1));
}

// Does the scenario of the command line; what the broker refuses is printed.
export async function run(scenarios, name = process.argv[2]) {
  if (name === "version") {
    console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/amqplib/package.json`)).version);
    process.exit(0);
  }
  try {
    const connection = await connect(name === "heartbeat" ? "?heartbeat=1" : "");
    const channel = await connection.createChannel();
    channel.on("error", () => {}); // the call that was refused is rejected as well
    await scenarios[name](channel, connection);
    if (name !== "reconnect") await connection.close();
  } catch (error) {
    if (name === "bad-vhost") console.log(/ConnectionClose/.test(error.message) && "pass"); // amqplib does not show the text
    else console.log(error.message);
  }
  process.exit(0);
}
