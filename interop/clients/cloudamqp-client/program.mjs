// @cloudamqp/amqp-client: the scenarios of ../README.md. AMQPSession for requests and reconnecting, else AMQPClient.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const { AMQPClient, AMQPSession } = createRequire(`${process.env.NODE_PATH}/`)("@cloudamqp/amqp-client");
const { AMQP_URL: url, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: readFileSync(ca), ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

const print = (messages) => messages.forEach((message) => console.log(message.bodyString()));
const printCount = async (channel, queue) => console.log((await channel.queuePurge(queue)).messageCount);

async function send(channel, queue, bodies, properties) {
  for (const body of bodies) await channel.basicPublish("", queue, body, properties);
}

// The first messages of a queue; leaving the loop cancels the consumer.
async function receive(channel, queue, count, params = { noAck: true }) {
  const got = [];
  const consumer = await channel.basicConsume(queue, params);
  for await (const message of consumer.messages) if (got.push(message) === count) return got;
}

async function connects(channel) {
  await channel.queueDeclare("hello");
  await send(channel, "hello", ["Hello World!"]);
  print(await receive(channel, "hello", 1));
}

async function patterns(channel, exchange, type, bindings, keys, count) {
  await channel.exchangeDeclare(exchange, type);
  const { name } = await channel.queueDeclare("");
  for (const key of bindings) await channel.queueBind(name, exchange, key);
  for (const key of keys) await channel.basicPublish(exchange, key, key);
  print(await receive(channel, name, count));
}

const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));

async function confirm(channel, queue, count) {
  await channel.queueDeclare(queue);
  await channel.confirmSelect();
  const publish = (_, n) => channel.basicPublish("", queue, `${n}`, { deliveryMode: 2 });
  await Promise.all(Array.from({ length: count }, publish));
  await printCount(channel, queue);
}

async function stream(channel, name, args) {
  await channel.queueDeclare(name, {}, { "x-queue-type": "stream" });
  for (let n = 0; n < 10; n++) await send(channel, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  await channel.prefetch(10);
  print(await receive(channel, name, 5, { noAck: false, args }));
}

async function deadLetter(channel, queue, target, properties) {
  await channel.queueDeclare(target);
  await channel.queueDeclare(queue, {}, { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target });
  await send(channel, queue, ["bad"], properties);
  if (!properties) await (await channel.basicGet(queue, { noAck: false })).reject(false);
  console.log((await receive(channel, target, 1))[0].properties.headers["x-death"][0].reason);
}

const scenarios = {
  connect: connects,
  tls: connects,
  "client-certificate": connects,
  heartbeat: (channel) => sleep(4000).then(() => connects(channel)),
  async declare(channel) {
    await channel.queueDeclare("declared");
    await channel.exchangeDeclare("declared", "topic");
    await channel.queueBind("declared", "declared", "#");
    await channel.basicPublish("declared", "key", "1");
    await channel.queueDeclare("declared", { passive: true });
    await channel.exchangeDeclare("declared", "topic", { passive: true });
    await printCount(channel, "declared");
    await channel.queueUnbind("declared", "declared", "#");
    await channel.exchangeDelete("declared");
    await channel.queueDelete("declared");
  },
  async missing(channel, connection) {
    await channel.queueDeclare("missing", { passive: true }).catch((error) => console.log(error.message));
    await connects(await connection.channel());
  },
  async inequivalent(channel) {
    await channel.queueDeclare("inequivalent", { durable: true });
    await channel.queueDeclare("inequivalent", { durable: false });
  },
  "float-argument": () => console.log("not offered: the client sends 10.0 as an integer"),
  async "work-queue"(channel) {
    await channel.queueDeclare("tasks");
    await channel.prefetch(1);
    const done = [];
    const work = async (message) => {
      done.push([message.bodyString(), message.consumerTag]);
      await message.ack();
    };
    await channel.basicConsume("tasks", { noAck: false }, work);
    await channel.basicConsume("tasks", { noAck: false }, work);
    await send(channel, "tasks", "0123456789", { deliveryMode: 2 });
    while (done.length < 10) await sleep(5);
    console.log(`${done.map(([task]) => task).sort().join("")}\n${new Set(done.map(([, worker]) => worker)).size}`);
  },
  async "publish-subscribe"(channel) {
    await channel.exchangeDeclare("logs", "fanout");
    const queues = [await channel.queueDeclare(""), await channel.queueDeclare("")];
    for (const { name } of queues) await channel.queueBind(name, "logs", "");
    await channel.basicPublish("logs", "", "log");
    for (const { name } of queues) print(await receive(channel, name, 1));
  },
  routing: (channel) =>
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: (channel) =>
    patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  async rpc(channel) {
    await channel.queueDeclare("rpc_queue");
    await channel.basicConsume("rpc_queue", {}, ({ properties: { replyTo, correlationId }, ...request }) =>
      send(channel, replyTo, [`${fibonacci(Number(Buffer.from(request.body)))}`], { correlationId }));
    const { name } = await channel.queueDeclare("");
    await send(channel, "rpc_queue", ["15"], { replyTo: name, correlationId: "1" });
    const [reply] = await receive(channel, name, 1);
    console.log(reply.properties.correlationId, reply.bodyString());
  },
  async "direct-reply-to"() {
    const session = await AMQPSession.connect(url);
    await session.rpcServer("rpc_queue", (request) => `${fibonacci(Number(request.bodyString()))}`);
    const reply = await session.rpcCall("rpc_queue", "15");
    console.log(reply.properties.correlationId, reply.bodyString());
  },
  confirm: (channel) => confirm(channel, "confirmed", 1),
  "confirm-batch": (channel) => confirm(channel, "batch", 1000),
  async mandatory(channel) {
    const returned = new Promise((resolve) => (channel.onReturn = resolve));
    await channel.basicPublish("", "nowhere", "lost", {}, true);
    console.log((await returned).replyCode);
  },
  async tx(channel) {
    await channel.queueDeclare("tx");
    await channel.txSelect();
    await send(channel, "tx", ["no"]);
    await channel.txRollback();
    await send(channel, "tx", ["yes"]);
    await channel.txCommit();
    print(await receive(channel, "tx", 1));
  },
  async headers(channel) {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, float: 1.5, double: 2 ** 40 + 0.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: new Uint8Array([0, 255]) },
      time: new Date(1_767_323_045_000),
    };
    await channel.queueDeclare("headers");
    await send(channel, "headers", [""], { headers });
    const [message] = await receive(channel, "headers", 1);
    assert.deepEqual(message.properties.headers, headers);
    console.log("pass");
  },
  async bodies(channel) {
    await channel.queueDeclare("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await send(channel, "bodies", [body]);
      const message = await channel.basicGet("bodies");
      console.log(body.equals(message.body ?? Buffer.alloc(0)) && message.bodySize);
    }
  },
  async channels(channel, connection) {
    await channel.queueDeclare("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => connection.channel()));
    for (const each of opened) await send(each, "channels", ["x"]);
    console.log((await receive(channel, "channels", 100)).length);
  },
  async prefetch(channel) {
    await channel.queueDeclare("prefetch");
    await send(channel, "prefetch", "0123456789");
    await channel.prefetch(3);
    const got = [];
    await channel.basicConsume("prefetch", { noAck: false }, (message) => void got.push(message));
    while (got.length < 3) await sleep(5);
    console.log((await channel.queueDeclare("prefetch", { passive: true })).messageCount);
    await got[2].ack(true);
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue(channel) {
    const get = () => channel.basicGet("requeue", { noAck: false });
    await channel.queueDeclare("requeue");
    await send(channel, "requeue", "123");
    const taken = [await get(), await get(), await get()];
    await taken[2].nack(true, true);
    const got = [await get(), await get(), await get()];
    for (const message of got) console.log(message.bodyString(), message.redelivered);
    await got[0].reject(false);
    await got[2].ack(true);
    await printCount(channel, "requeue");
  },
  async cancel(channel) {
    await channel.queueDeclare("cancel");
    const consumer = await channel.basicConsume("cancel", {}, () => console.log("delivered"));
    await consumer.cancel();
    await send(channel, "cancel", ["stays"]);
    await printCount(channel, "cancel");
  },
  async "broker-cancel"(channel, connection) {
    await channel.queueDeclare("cancelled");
    const consumer = await channel.basicConsume("cancelled", {}, () => {});
    await (await connection.channel()).queueDelete("cancelled");
    await consumer.wait().catch(({ message }) => console.log(message === "Consumer cancelled by the server" && "cancelled"));
  },
  async blocked(channel, connection) {
    connection.onblocked = (reason) => console.log(`${reason}\nready`); // the runner ends the alarm
    const unblocked = new Promise((resolve) => (connection.onunblocked = resolve));
    await send(channel, "nowhere", ["held"]);
    await unblocked;
    console.log("unblocked");
  },
  "dead-letter": (channel) => deadLetter(channel, "rejecting", "dead"),
  "message-ttl": (channel) => deadLetter(channel, "ttl", "expired", { expiration: "50" }),
  async "queue-ttl"(channel) {
    await channel.queueDeclare("leased", {}, { "x-expires": 100 });
    for (;;) await channel.queueBind("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async priority(channel) {
    await channel.queueDeclare("priority", {}, { "x-max-priority": 5 });
    for (const priority of [1, 5, 3]) await send(channel, "priority", [`${priority}`], { priority });
    print(await receive(channel, "priority", 3));
  },
  async delayed(channel) {
    await channel.exchangeDeclare("delayed", "x-delayed-message", {}, { "x-delayed-type": "fanout" });
    await channel.queueDeclare("delayed");
    await channel.queueBind("delayed", "delayed", "");
    await channel.basicPublish("delayed", "", "late", { headers: { "x-delay": 1000 } });
    await channel.basicPublish("delayed", "", "soon", { headers: { "x-delay": 1 } });
    print(await receive(channel, "delayed", 2));
  },
  "stream-offset": (channel) => stream(channel, "stream", { "x-stream-offset": 5 }),
  "stream-filter": (channel) => stream(channel, "filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
  async policy(channel) {
    await channel.queueDeclare("limited");
    await send(channel, "limited", "1234");
    await printCount(channel, "limited");
  },
  async reconnect() {
    const session = await AMQPSession.connect(url, { reconnectInterval: 100 });
    const queue = await session.queue("kept");
    await queue.publish("kept");
    await new Promise((done) =>
      queue.subscribe({ manualAck: true }, (message) => {
        if (message.redelivered) done(print([message])); // the session connected and subscribed again by itself
        else console.log("ready"); // the runner kills the broker and starts it again
      }));
  },
  async write(channel) {
    await channel.queueDeclare("crossing", { durable: false });
    await send(channel, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read(channel) {
    const [{ body, properties }] = await receive(channel, "crossing", 1);
    assert.deepEqual([Buffer.from(body), properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
};

const name = process.argv[2];
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
