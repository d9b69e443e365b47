// amqplib (promises): the scenarios of ../README.md.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const amqp = createRequire(`${process.env.NODE_PATH}/`)("amqplib");
const { AMQP_URL, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const connect = (query = "") => amqp.connect(AMQP_URL + query, tls);
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

function send(channel, queue, bodies, options) {
  for (const body of bodies) channel.sendToQueue(queue, Buffer.from(body), options);
}

async function receive(channel, queue, count, options = { noAck: true }) {
  const got = [];
  await new Promise((done) => channel.consume(queue, (message) => got.push(message) === count && done(), options));
  return got;
}

function print(messages) {
  for (const message of messages) console.log(message.content.toString());
}

async function connects(channel) {
  await channel.assertQueue("hello");
  send(channel, "hello", ["Hello World!"]);
  print(await receive(channel, "hello", 1));
}

async function patterns(channel, exchange, kind, bindings, published, count) {
  await channel.assertExchange(exchange, kind);
  const { queue } = await channel.assertQueue("", { exclusive: true });
  for (const binding of bindings) await channel.bindQueue(queue, exchange, binding);
  for (const key of published) channel.publish(exchange, key, Buffer.from(key));
  print(await receive(channel, queue, count));
}

async function askFibonacci(channel, replyTo) {
  const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
  const answer = ({ content, properties: { replyTo, correlationId } }) =>
    send(channel, replyTo, [String(fibonacci(Number(content)))], { correlationId });
  await channel.assertQueue("rpc_queue");
  await channel.consume("rpc_queue", answer, { noAck: true });
  const reply = receive(channel, replyTo, 1);
  send(channel, "rpc_queue", ["15"], { replyTo, correlationId: "1" });
  const [{ content, properties }] = await reply;
  console.log(properties.correlationId, content.toString());
}

async function stream(channel, name, options) {
  await channel.assertQueue(name, { arguments: { "x-queue-type": "stream" } });
  for (let n = 0; n < 10; n++) send(channel, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  await channel.prefetch(10);
  print(await receive(channel, name, 5, { arguments: options }));
}

async function deadLetter(channel, source, target, options) {
  await channel.assertQueue(target);
  await channel.assertQueue(source, { deadLetterExchange: "", deadLetterRoutingKey: target });
  send(channel, source, ["bad"], options);
  if (!options) channel.reject(await channel.get(source), false);
  console.log((await receive(channel, target, 1))[0].properties.headers["x-death"][0].reason);
}

const scenarios = {
  connect: connects,
  tls: connects,
  "client-certificate": connects,
  heartbeat: (channel) => sleep(4000).then(() => connects(channel)),
  async declare(channel) {
    await channel.assertQueue("declared");
    await channel.assertExchange("declared", "topic");
    await channel.bindQueue("declared", "declared", "#");
    channel.publish("declared", "key", Buffer.from("1"));
    await channel.checkQueue("declared");
    await channel.checkExchange("declared");
    console.log((await channel.purgeQueue("declared")).messageCount);
    await channel.unbindQueue("declared", "declared", "#");
    await channel.deleteExchange("declared");
    await channel.deleteQueue("declared");
  },
  async missing(channel, connection) {
    await channel.checkQueue("missing").catch((error) => console.log(error.message));
    await connects(await connection.createChannel());
  },
  async inequivalent(channel) {
    await channel.assertQueue("inequivalent", { durable: true });
    await channel.assertQueue("inequivalent", { durable: false });
  },
  async "float-argument"(channel) {
    await channel.assertQueue("float", { maxLength: 10 });
    await channel.assertQueue("float", { arguments: { "x-max-length": { "!": "double", value: 10 } } });
  },
  async "work-queue"(channel) {
    await channel.assertQueue("tasks", { durable: true });
    await channel.prefetch(1);
    const done = [];
    const workers = new Set();
    const work = (message) => {
      workers.add(message.fields.consumerTag);
      done.push(message.content.toString());
      channel.ack(message);
    };
    await Promise.all([channel.consume("tasks", work), channel.consume("tasks", work)]);
    send(channel, "tasks", "0123456789", { persistent: true });
    while (done.length < 10) await sleep(5);
    console.log(`${done.sort().join("")}\n${workers.size}`);
  },
  async "publish-subscribe"(channel) {
    await channel.assertExchange("logs", "fanout");
    const queues = [await channel.assertQueue("", { exclusive: true }), await channel.assertQueue("", { exclusive: true })];
    for (const { queue } of queues) await channel.bindQueue(queue, "logs", "");
    channel.publish("logs", "", Buffer.from("log"));
    for (const { queue } of queues) print(await receive(channel, queue, 1));
  },
  routing: (channel) =>
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: (channel) =>
    patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  rpc: async (channel) => askFibonacci(channel, (await channel.assertQueue("", { exclusive: true })).queue),
  "direct-reply-to": (channel) => askFibonacci(channel, "amq.rabbitmq.reply-to"),
  async confirm(_channel, connection, queue = "confirmed", count = 1) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(queue);
    for (let n = 0; n < count; n++) send(channel, queue, [`${n}`], { persistent: true });
    await channel.waitForConfirms();
    console.log((await channel.purgeQueue(queue)).messageCount);
  },
  "confirm-batch": (channel, connection) => scenarios.confirm(channel, connection, "batch", 1000),
  async mandatory(channel) {
    channel.publish("", "nowhere", Buffer.from("lost"), { mandatory: true });
    const [message] = await once(channel, "return");
    console.log(message.fields.replyCode);
  },
  tx: () => console.log("not offered: amqplib has no transactions"),
  async headers(channel) {
    const sent = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: Buffer.from([0, 255]) },
      ...{ byte: { "!": "byte", value: -8 }, short: { "!": "short", value: -16 }, float: { "!": "float", value: 2.5 } },
      ...{ time: { "!": "timestamp", value: 1767323045 }, decimal: { "!": "decimal", value: { digits: 314, places: 2 } } },
    };
    await channel.assertQueue("headers");
    send(channel, "headers", [""], { headers: sent });
    const [{ properties }] = await receive(channel, "headers", 1);
    assert.deepEqual(properties.headers, { ...sent, byte: -8, short: -16, float: 2.5 });
    console.log("pass");
  },
  async bodies(channel) {
    await channel.assertQueue("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      send(channel, "bodies", [body]);
      const message = await channel.get("bodies", { noAck: true });
      console.log(message.content.equals(body) && size);
    }
  },
  async channels(channel, connection) {
    await channel.assertQueue("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => connection.createChannel()));
    for (const each of opened) send(each, "channels", ["x"]);
    console.log((await receive(channel, "channels", 100)).length);
  },
  async prefetch(channel) {
    await channel.assertQueue("prefetch");
    send(channel, "prefetch", "0123456789");
    await channel.prefetch(3);
    const got = [];
    await channel.consume("prefetch", (message) => got.push(message));
    while (got.length < 3) await sleep(5);
    console.log((await channel.checkQueue("prefetch")).messageCount);
    channel.ack(got[2], true);
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue(channel) {
    await channel.assertQueue("requeue");
    send(channel, "requeue", "123");
    const three = async () => [await channel.get("requeue"), await channel.get("requeue"), await channel.get("requeue")];
    channel.nack((await three())[2], true, true);
    const got = await three();
    for (const { content, fields } of got) console.log(`${content} ${fields.redelivered}`);
    channel.reject(got[0], false);
    channel.ack(got[2], true);
    console.log((await channel.purgeQueue("requeue")).messageCount);
  },
  async cancel(channel) {
    await channel.assertQueue("cancel");
    const { consumerTag } = await channel.consume("cancel", () => console.log("delivered"), { noAck: true });
    await channel.cancel(consumerTag);
    send(channel, "cancel", ["stays"]);
    console.log((await channel.purgeQueue("cancel")).messageCount);
  },
  async "broker-cancel"(channel, connection) {
    await channel.assertQueue("cancelled");
    const message = receive(channel, "cancelled", 1); // null instead of a message
    await (await connection.createChannel()).deleteQueue("cancelled");
    console.log((await message)[0] ?? "cancelled");
  },
  async blocked(channel, connection) {
    connection.on("blocked", (reason) => console.log(`${reason}\nready`)); // the runner ends the alarm
    send(channel, "nowhere", ["held"]);
    await once(connection, "unblocked");
    console.log("unblocked");
  },
  "dead-letter": (channel) => deadLetter(channel, "rejecting", "dead"),
  "message-ttl": (channel) => deadLetter(channel, "ttl", "expired", { expiration: 50 }),
  async "queue-ttl"(channel) {
    await channel.assertQueue("leased", { expires: 100 });
    for (;;) await channel.bindQueue("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async priority(channel) {
    await channel.assertQueue("priority", { maxPriority: 5 });
    for (const priority of [1, 5, 3]) send(channel, "priority", [`${priority}`], { priority });
    print(await receive(channel, "priority", 3));
  },
  async delayed(channel) {
    await channel.assertExchange("delayed", "x-delayed-message", { arguments: { "x-delayed-type": "fanout" } });
    await channel.assertQueue("delayed");
    await channel.bindQueue("delayed", "delayed", "");
    channel.publish("delayed", "", Buffer.from("late"), { headers: { "x-delay": 1000 } });
    channel.publish("delayed", "", Buffer.from("soon"), { headers: { "x-delay": 1 } });
    print(await receive(channel, "delayed", 2));
  },
  "stream-offset": (channel) => stream(channel, "stream", { "x-stream-offset": 5 }),
  "stream-filter": (channel) => stream(channel, "filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
  async policy(channel) {
    await channel.assertQueue("limited");
    send(channel, "limited", "1234");
    console.log((await channel.purgeQueue("limited")).messageCount);
  },
  async reconnect(_channel, connection) {
    const channel = await connection.createConfirmChannel();
    const closed = new Promise((resolve) => connection.on("close", resolve));
    connection.on("error", () => {});
    await channel.assertQueue("kept");
    send(channel, "kept", ["kept"], { persistent: true });
    await channel.waitForConfirms();
    await receive(channel, "kept", 1, {});
    console.log("ready"); // the runner kills the broker and starts it again
    await closed;
    const read = async () => {
      const again = await connect(); // a broker that starts may close it again
      return Promise.race([once(again, "close"), again.createChannel().then((channel) => receive(channel, "kept", 1))]);
    };
    let kept;
    while (!kept) kept = await read().catch(() => sleep(100));
    print(kept);
  },
  async write(channel) {
    await channel.assertQueue("crossing", { durable: false });
    send(channel, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    await channel.close(); // sends what is buffered
    console.log("pass");
  },
  async read(channel) {
    const [{ content, properties }] = await receive(channel, "crossing", 1);
    assert.deepEqual([content, properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
};

const name = process.argv[2];
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
