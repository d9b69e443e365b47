// amqplib (promises): the scenarios of ../README.md.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.NODE_PATH ?? process.cwd()}/`);
const amqp = require("amqplib");

const { AMQP_URL: url, CA_FILE: ca, CERT_FILE: cert, KEY_FILE: key } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(key) }) };
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

function connect(query = "") {
  return amqp.connect(url + query, tls);
}

function send(channel, queue, bodies, options) {
  for (const body of bodies) channel.sendToQueue(queue, Buffer.from(body), options);
}

// The next `count` messages of a queue; the consumer is cancelled if it needs no acks.
async function receive(channel, queue, count, options = { noAck: true }) {
  const got = [];
  let done;
  const all = new Promise((resolve) => (done = resolve));
  const { consumerTag } = await channel.consume(queue, (message) => got.push(message) === count && done(), options);
  await all;
  if (options.noAck) await channel.cancel(consumerTag);
  return got;
}

const texts = (messages) => messages.map((message) => message.content.toString());

async function refused(code, text, call) {
  await assert.rejects(call, (error) => {
    assert.ok(error.message.includes(text) && error.message.includes(String(code)), error);
    return true;
  });
}

async function openChannel(connection) {
  const channel = await connection.createChannel();
  channel.on("error", () => {}); // the call that was refused is rejected as well
  return channel;
}

async function connects(channel) {
  await channel.assertQueue("hello");
  send(channel, "hello", ["Hello World!"]);
  assert.deepEqual(texts(await receive(channel, "hello", 1)), ["Hello World!"]);
}

async function patterns(channel, exchange, kind, bindings, published, expected) {
  await channel.assertExchange(exchange, kind);
  const { queue } = await channel.assertQueue("", { exclusive: true });
  for (const binding of bindings) await channel.bindQueue(queue, exchange, binding);
  for (const routingKey of published) channel.publish(exchange, routingKey, Buffer.from(routingKey));
  assert.deepEqual(texts(await receive(channel, queue, expected.length)), expected);
}

async function askFibonacci(channel, callback) {
  const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
  await channel.assertQueue("rpc_queue");
  await channel.consume(
    "rpc_queue",
    ({ content, properties: { replyTo, correlationId } }) =>
      send(channel, replyTo, [String(fibonacci(Number(content)))], { correlationId }),
    { noAck: true },
  );
  const reply = new Promise((resolve) => channel.consume(callback, resolve, { noAck: true }));
  send(channel, "rpc_queue", ["15"], { replyTo: callback, correlationId: "1" });
  const { content, properties } = await reply;
  assert.deepEqual([properties.correlationId, content.toString()], ["1", "610"]);
}

async function stream(channel, name, options, expected) {
  await channel.assertQueue(name, { arguments: { "x-queue-type": "stream" } });
  for (let n = 0; n < 10; n++) {
    send(channel, name, [String(n)], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  }
  await channel.prefetch(10);
  assert.deepEqual(texts(await receive(channel, name, expected.length, { arguments: options })), expected);
}

async function reasonOfDeath(channel, queue) {
  return (await receive(channel, queue, 1))[0].properties.headers["x-death"][0].reason;
}

// The scenarios that open their connection themselves.
const alone = {
  "bad-password": () => refused(403, "ACCESS_REFUSED", () => connect()),
  "bad-vhost": () => assert.rejects(() => connect(), /ConnectionClose/), // amqplib does not show the text
  async heartbeat() {
    const connection = await connect("?heartbeat=1");
    await sleep(4000);
    await connects(await connection.createChannel());
  },
};

const scenarios = {
  connect: connects,
  tls: connects,
  "client-certificate": connects,
  async declare(channel) {
    await channel.assertQueue("declared");
    await channel.assertExchange("declared", "topic");
    await channel.bindQueue("declared", "declared", "#");
    channel.publish("declared", "key", Buffer.from("1"));
    await channel.checkQueue("declared");
    await channel.checkExchange("declared");
    assert.equal((await channel.purgeQueue("declared")).messageCount, 1);
    await channel.unbindQueue("declared", "declared", "#");
    await channel.deleteExchange("declared");
    await channel.deleteQueue("declared");
  },
  async missing(channel, connection) {
    await refused(404, "NOT_FOUND - no queue 'missing'", () => channel.checkQueue("missing"));
    await connects(await connection.createChannel());
  },
  async inequivalent(channel) {
    await channel.assertQueue("inequivalent", { durable: true });
    await refused(406, "inequivalent arg 'durable'", () => channel.assertQueue("inequivalent", { durable: false }));
  },
  async "float-argument"(channel) {
    await channel.assertQueue("float", { maxLength: 10 });
    const options = { arguments: { "x-max-length": { "!": "double", value: 10 } } };
    await refused(406, "x-max-length", () => channel.assertQueue("float", options));
  },
  async "work-queue"(channel) {
    await channel.assertQueue("tasks", { durable: true });
    await channel.prefetch(1);
    const done = [];
    const workers = new Set();
    const finished = new Promise((resolve) => {
      const work = (message) => {
        workers.add(message.fields.consumerTag);
        channel.ack(message);
        if (done.push(message.content.toString()) === 10) resolve();
      };
      channel.consume("tasks", work);
      channel.consume("tasks", work);
    });
    send(channel, "tasks", "0123456789", { persistent: true });
    await finished;
    assert.deepEqual([done.sort().join(""), workers.size], ["0123456789", 2]);
  },
  async "publish-subscribe"(channel) {
    await channel.assertExchange("logs", "fanout");
    const queues = [await channel.assertQueue("", { exclusive: true }), await channel.assertQueue("", { exclusive: true })];
    for (const { queue } of queues) await channel.bindQueue(queue, "logs", "");
    channel.publish("logs", "", Buffer.from("log"));
    for (const { queue } of queues) assert.deepEqual(texts(await receive(channel, queue, 1)), ["log"]);
  },
  routing: (channel) =>
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], ["warning", "error"]),
  async topics(channel) {
    const keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"];
    await patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]]);
  },
  rpc: async (channel) => askFibonacci(channel, (await channel.assertQueue("", { exclusive: true })).queue),
  "direct-reply-to": (channel) => askFibonacci(channel, "amq.rabbitmq.reply-to"),
  async confirm(_channel, connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue("confirmed");
    send(channel, "confirmed", ["safe"], { persistent: true });
    await channel.waitForConfirms();
  },
  async "confirm-batch"(_channel, connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue("batch");
    for (let n = 0; n < 1000; n++) send(channel, "batch", [String(n)], { persistent: true });
    await channel.waitForConfirms();
    assert.equal((await channel.purgeQueue("batch")).messageCount, 1000);
  },
  async mandatory(channel) {
    channel.publish("", "nowhere", Buffer.from("lost"), { mandatory: true });
    const [message] = await once(channel, "return");
    assert.equal(message.fields.replyCode, 312);
  },
  async headers(channel) {
    const sent = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: Buffer.from([0, 255]) },
      ...{ byte: { "!": "byte", value: -8 }, short: { "!": "short", value: -16 }, float: { "!": "float", value: 2.5 } },
      ...{ time: { "!": "timestamp", value: 1767323045 }, decimal: { "!": "decimal", value: { digits: 314, places: 2 } } },
    };
    await channel.assertQueue("headers");
    send(channel, "headers", [""], { headers: sent });
    const got = (await receive(channel, "headers", 1))[0].properties.headers;
    assert.deepEqual(got, { ...sent, byte: -8, short: -16, float: 2.5 });
  },
  async bodies(channel) {
    await channel.assertQueue("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      send(channel, "bodies", [body]);
      assert.ok((await receive(channel, "bodies", 1))[0].content.equals(body), size);
    }
  },
  async channels(channel, connection) {
    await channel.assertQueue("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => connection.createChannel()));
    for (const each of opened) send(each, "channels", ["x"]);
    await receive(channel, "channels", 100);
  },
  async prefetch(channel) {
    await channel.assertQueue("prefetch");
    send(channel, "prefetch", "0123456789");
    await channel.prefetch(3);
    const got = [];
    await channel.consume("prefetch", (message) => got.push(message));
    while (got.length < 3) await sleep(5);
    assert.equal((await channel.checkQueue("prefetch")).messageCount, 7);
    channel.ack(got[2], true);
    while (got.length < 6) await sleep(5);
    assert.deepEqual(texts(got.slice(3)), ["3", "4", "5"]);
  },
  async requeue(channel) {
    await channel.assertQueue("requeue");
    send(channel, "requeue", "123");
    const three = async () => [await channel.get("requeue"), await channel.get("requeue"), await channel.get("requeue")];
    channel.nack((await three())[2], true, true);
    const got = await three();
    assert.deepEqual(texts(got), ["1", "2", "3"]);
    assert.ok(got.every((message) => message.fields.redelivered));
    channel.reject(got[0], false);
    channel.ack(got[2], true);
    assert.equal((await channel.purgeQueue("requeue")).messageCount, 0);
  },
  async cancel(channel) {
    await channel.assertQueue("cancel");
    const { consumerTag } = await channel.consume("cancel", () => assert.fail("delivered"), { noAck: true });
    await channel.cancel(consumerTag);
    send(channel, "cancel", ["stays"]);
    assert.equal((await channel.purgeQueue("cancel")).messageCount, 1);
  },
  async "broker-cancel"(channel, connection) {
    await channel.assertQueue("cancelled");
    let told;
    const cancelled = new Promise((resolve) => (told = resolve));
    await channel.consume("cancelled", told); // null instead of a message
    await (await connection.createChannel()).deleteQueue("cancelled");
    assert.equal(await cancelled, null);
  },
  async blocked(channel, connection) {
    const blocked = once(connection, "blocked");
    send(channel, "nowhere", ["held"]);
    assert.equal((await blocked)[0], "low on memory");
    const unblocked = once(connection, "unblocked");
    console.log("ready"); // the runner ends the alarm
    await unblocked;
  },
  async "dead-letter"(channel) {
    await channel.assertQueue("dead");
    await channel.assertQueue("rejecting", { deadLetterExchange: "", deadLetterRoutingKey: "dead" });
    send(channel, "rejecting", ["bad"]);
    channel.reject(await channel.get("rejecting"), false);
    assert.equal(await reasonOfDeath(channel, "dead"), "rejected");
  },
  async "message-ttl"(channel) {
    await channel.assertQueue("expired");
    await channel.assertQueue("ttl", { deadLetterExchange: "", deadLetterRoutingKey: "expired" });
    send(channel, "ttl", ["short"], { expiration: 50 });
    assert.equal(await reasonOfDeath(channel, "expired"), "expired");
  },
  async "queue-ttl"(channel) {
    await channel.assertQueue("leased", { expires: 100 });
    await refused(404, "NOT_FOUND", async () => {
      for (;;) {
        await channel.bindQueue("leased", "amq.fanout", ""); // a bind does not renew the lease
        await sleep(50);
      }
    });
  },
  async priority(channel) {
    await channel.assertQueue("priority", { maxPriority: 5 });
    for (const priority of [1, 5, 3]) send(channel, "priority", [String(priority)], { priority });
    assert.deepEqual(texts(await receive(channel, "priority", 3)), ["5", "3", "1"]);
  },
  async delayed(channel) {
    await channel.assertExchange("delayed", "x-delayed-message", { arguments: { "x-delayed-type": "fanout" } });
    await channel.assertQueue("delayed");
    await channel.bindQueue("delayed", "delayed", "");
    channel.publish("delayed", "", Buffer.from("late"), { headers: { "x-delay": 1000 } });
    channel.publish("delayed", "", Buffer.from("soon"), { headers: { "x-delay": 1 } });
    assert.deepEqual(texts(await receive(channel, "delayed", 2)), ["soon", "late"]);
  },
  "stream-offset": (channel) => stream(channel, "stream", { "x-stream-offset": 5 }, ["5", "6", "7", "8", "9"]),
  "stream-filter": (channel) =>
    stream(channel, "filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }, ["1", "3", "5", "7", "9"]),
  async policy(channel) {
    await channel.assertQueue("limited");
    send(channel, "limited", "1234");
    assert.equal((await channel.purgeQueue("limited")).messageCount, 2);
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
    let again;
    while (!again) again = await connect().catch(() => sleep(100));
    assert.deepEqual(texts(await receive(await again.createChannel(), "kept", 1)), ["kept"]);
  },
  async write(channel) {
    await channel.assertQueue("crossing", { durable: false });
    send(channel, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    await channel.close(); // sends what is buffered
  },
  async read(channel) {
    const [{ content, properties }] = await receive(channel, "crossing", 1);
    assert.ok(content.equals(bytes));
    assert.deepEqual(properties.headers, crossing);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
  },
};

const name = process.argv[2];
if (name === "version") {
  console.log(JSON.parse(readFileSync(`${process.env.NODE_PATH}/node_modules/amqplib/package.json`)).version);
} else if (name === "tx") {
  console.log("not offered: amqplib has no transactions");
} else if (alone[name]) {
  await alone[name]();
  console.log("pass");
  process.exit(0);
} else {
  const connection = await connect();
  await scenarios[name](await openChannel(connection), connection);
  await (name === "reconnect" || connection.close());
  console.log("pass");
  process.exit(0);
}
