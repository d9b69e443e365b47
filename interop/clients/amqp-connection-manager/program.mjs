// amqp-connection-manager, over amqplib: the scenarios of ../README.md. A publish waits for its confirm.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const amqp = createRequire(`${process.env.NODE_PATH}/`)("amqp-connection-manager");
const { AMQP_URL, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
const notOffered = {
  tx: "amqplib has no transactions",
  "broker-cancel": "the wrapper subscribes again and does not report it",
};
const connection = amqp.connect([AMQP_URL], {
  heartbeatIntervalInSeconds: process.argv[2] === "heartbeat" ? 1 : 5,
  reconnectTimeInSeconds: 0.1,
  connectionOptions: tls,
});

// A channel whose queues and exchanges are declared again after each reconnect.
async function open(setup = async () => {}) {
  const channel = connection.createChannel({ setup: (raw) => setup(raw.on("error", () => {})) });
  await channel.waitForConnect();
  return channel;
}

const withQueue = (queue, options) => open((channel) => channel.assertQueue(queue, options));
const send = (channel, queue, bodies, options) =>
  Promise.all([...bodies].map((body) => channel.sendToQueue(queue, body, options)));
const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));
const printCount = async (channel, queue) => console.log((await channel.purgeQueue(queue)).messageCount);

async function receive(channel, queue, count, options = { noAck: true }) {
  const got = [];
  await new Promise((done) => channel.consume(queue, (message) => got.push(message) === count && done(), options));
  return got;
}

async function connects() {
  const channel = await withQueue("hello");
  await send(channel, "hello", ["Hello World!"]);
  print(await receive(channel, "hello", 1));
}

async function patterns(exchange, kind, bindings, keys, count) {
  const channel = await open(async (channel) => {
    await channel.assertExchange(exchange, kind);
    await channel.assertQueue(exchange, { exclusive: true });
    for (const binding of bindings) await channel.bindQueue(exchange, exchange, binding);
  });
  for (const key of keys) await channel.publish(exchange, key, key);
  print(await receive(channel, exchange, count));
}

async function askFibonacci(replyTo) {
  const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
  const server = await withQueue("rpc_queue");
  const answer = ({ content, properties: { replyTo, correlationId } }) =>
    server.sendToQueue(replyTo, String(fibonacci(Number(content))), { correlationId });
  await server.consume("rpc_queue", answer, { noAck: true });
  const client = await (replyTo === "replies" ? withQueue(replyTo, { exclusive: true }) : open());
  const replies = [];
  await client.consume(replyTo, (reply) => replies.push(reply), { noAck: true });
  await send(client, "rpc_queue", ["15"], { replyTo, correlationId: "1" });
  while (!replies.length) await sleep(5);
  console.log(`${replies[0].properties.correlationId} ${replies[0].content}`);
}

async function stream(name, options) {
  const channel = await withQueue(name, { arguments: { "x-queue-type": "stream" } });
  for (let n = 0; n < 10; n++) await send(channel, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  print(await receive(channel, name, 5, { prefetch: 10, arguments: options }));
}

async function deadLetter(source, target, options) {
  const channel = await open(async (channel) => {
    await channel.assertQueue(target);
    await channel.assertQueue(source, { deadLetterExchange: "", deadLetterRoutingKey: target });
  });
  await send(channel, source, ["bad"], options);
  if (!options) channel.nack(await channel.get(source), false, false);
  console.log((await receive(channel, target, 1))[0].properties.headers["x-death"][0].reason);
}

async function confirm(queue, count) {
  const channel = await withQueue(queue);
  await send(channel, queue, Array.from({ length: count }, (_, n) => `${n}`), { persistent: true });
  await printCount(channel, queue);
}

const scenarios = {
  connect: connects,
  "bad-password": () => open(),
  "bad-vhost": () => open(),
  tls: connects,
  "client-certificate": connects,
  heartbeat: () => open().then(() => sleep(4000)).then(connects),
  async declare() {
    const channel = await withQueue("declared");
    await channel.assertExchange("declared", "topic");
    await channel.bindQueue("declared", "declared", "#");
    await channel.publish("declared", "key", "1");
    await channel.checkQueue("declared");
    await channel.checkExchange("declared");
    await printCount(channel, "declared");
    await channel.unbindQueue("declared", "declared", "#");
    await channel.deleteExchange("declared");
    await channel.deleteQueue("declared");
  },
  async missing() {
    await (await open()).checkQueue("missing").catch((error) => console.log(error.message));
    await connects();
  },
  inequivalent: async () => (await withQueue("inequivalent", { durable: true })).assertQueue("inequivalent", { durable: false }),
  async "float-argument"() {
    const channel = await withQueue("float", { maxLength: 10 });
    await channel.assertQueue("float", { arguments: { "x-max-length": { "!": "double", value: 10 } } });
  },
  async "work-queue"() {
    const channel = await withQueue("tasks");
    const done = [];
    const work = (message) => {
      done.push([message.content.toString(), message.fields.consumerTag]);
      channel.ack(message);
    };
    await channel.consume("tasks", work, { prefetch: 1 });
    await channel.consume("tasks", work, { prefetch: 1 });
    await send(channel, "tasks", "0123456789", { persistent: true });
    while (done.length < 10) await sleep(5);
    console.log(`${done.map(([task]) => task).sort().join("")}\n${new Set(done.map(([, worker]) => worker)).size}`);
  },
  async "publish-subscribe"() {
    const channel = await open(async (channel) => {
      await channel.assertExchange("logs", "fanout");
      for (const queue of ["a", "b"]) await channel.assertQueue(queue).then(() => channel.bindQueue(queue, "logs", ""));
    });
    await channel.publish("logs", "", "log");
    for (const queue of ["a", "b"]) print(await receive(channel, queue, 1));
  },
  routing: () => patterns("direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: () =>
    patterns("topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  rpc: () => askFibonacci("replies"),
  "direct-reply-to": () => askFibonacci("amq.rabbitmq.reply-to"),
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const channel = await open(async (raw) => void raw.on("return", ({ fields }) => console.log(fields.replyCode)));
    await channel.sendToQueue("nowhere", "lost", { mandatory: true }); // the return comes before the confirm
  },
  async headers() {
    const sent = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: Buffer.from([0, 255]) },
      time: { "!": "timestamp", value: 1767323045 },
    };
    const channel = await withQueue("headers");
    await send(channel, "headers", [""], { headers: sent });
    assert.deepEqual((await receive(channel, "headers", 1))[0].properties.headers, sent);
    console.log("pass");
  },
  async bodies() {
    const channel = await withQueue("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await send(channel, "bodies", [body]);
      console.log((await channel.get("bodies", { noAck: true })).content.equals(body) && size);
    }
  },
  async channels() {
    const channel = await withQueue("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => open()));
    for (const each of opened) await send(each, "channels", ["x"]);
    console.log((await receive(channel, "channels", 100)).length);
  },
  async prefetch() {
    const channel = await withQueue("prefetch");
    await send(channel, "prefetch", "0123456789");
    const got = [];
    await channel.consume("prefetch", (message) => got.push(message), { prefetch: 3 });
    while (got.length < 3) await sleep(5);
    console.log((await channel.checkQueue("prefetch")).messageCount);
    channel.ack(got[2], true);
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue() {
    const channel = await withQueue("requeue");
    const three = async () => [await channel.get("requeue"), await channel.get("requeue"), await channel.get("requeue")];
    await send(channel, "requeue", "123");
    channel.nack((await three())[2], true, true);
    const got = await three();
    for (const { content, fields } of got) console.log(`${content} ${fields.redelivered}`);
    channel.nack(got[0], false, false);
    channel.ack(got[2], true);
    await printCount(channel, "requeue");
  },
  async cancel() {
    const channel = await withQueue("cancel");
    const { consumerTag } = await channel.consume("cancel", () => console.log("delivered"), { noAck: true });
    await channel.cancel(consumerTag);
    await send(channel, "cancel", ["stays"]);
    await printCount(channel, "cancel");
  },
  async blocked() {
    connection.on("blocked", ({ reason }) => console.log(`${reason}\nready`)); // the runner ends the alarm
    const unblocked = once(connection, "unblocked");
    await Promise.all([unblocked, send(await open(), "nowhere", ["held"])]);
    console.log("unblocked");
  },
  "dead-letter": () => deadLetter("rejecting", "dead"),
  "message-ttl": () => deadLetter("ttl", "expired", { expiration: 50 }),
  async "queue-ttl"() {
    const channel = await withQueue("leased", { expires: 100 });
    for (;;) await channel.bindQueue("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async priority() {
    const channel = await withQueue("priority", { maxPriority: 5 });
    for (const priority of [1, 5, 3]) await send(channel, "priority", [`${priority}`], { priority });
    print(await receive(channel, "priority", 3));
  },
  async delayed() {
    const channel = await open(async (channel) => {
      await channel.assertExchange("delayed", "x-delayed-message", { arguments: { "x-delayed-type": "fanout" } });
      await channel.assertQueue("delayed");
      await channel.bindQueue("delayed", "delayed", "");
    });
    await channel.publish("delayed", "", "late", { headers: { "x-delay": 1000 } });
    await channel.publish("delayed", "", "soon", { headers: { "x-delay": 1 } });
    print(await receive(channel, "delayed", 2));
  },
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
  async policy() {
    const channel = await withQueue("limited");
    await send(channel, "limited", "1234");
    await printCount(channel, "limited");
  },
  async reconnect() {
    const channel = await withQueue("kept");
    await channel.sendToQueue("kept", "kept", { persistent: true });
    await new Promise((done) =>
      channel.consume("kept", (message) => {
        if (message.fields.redelivered) done(print([message])); // the wrapper connected and subscribed again by itself
        else console.log("ready"); // the runner kills the broker and starts it again
      }),
    );
  },
  async write() {
    const channel = await withQueue("crossing", { durable: false });
    await channel.sendToQueue("crossing", bytes, { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read() {
    const [{ content, properties }] = await receive(await open(), "crossing", 1);
    assert.deepEqual([content, properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
};

const name = process.argv[2];
if (name === "version") {
  console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/amqp-connection-manager/package.json`)).version);
} else if (notOffered[name]) {
  console.log(`not offered: ${notOffered[name]}`);
} else {
  connection.on("connectFailed", ({ err }) => {
    if (name === "reconnect") return;
    console.log(name === "bad-vhost" && /ConnectionClose/.test(err.message) ? "pass" : err.message); // as in amqplib
    process.exit(0);
  });
  await scenarios[name]().catch((error) => console.log(error.message));
  if (name !== "reconnect") await connection.close();
}
process.exit(0);
