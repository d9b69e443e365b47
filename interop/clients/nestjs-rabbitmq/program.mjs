// @golevelup/nestjs-rabbitmq, over amqp-connection-manager: the scenarios of ../README.md. An application's module declares,
// decorated methods of a service receive, AmqpConnection publishes.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.NODE_PATH}/`);
require("reflect-metadata");
const { Module } = require("@nestjs/common");
const { NestFactory } = require("@nestjs/core");
const { AmqpConnection, Nack, RabbitMQModule, RabbitRPC, RabbitSubscribe } = require("@golevelup/nestjs-rabbitmq");

const { AMQP_URL: uri, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
const name = process.argv[2];
const notOffered = {
  declare: "the module declares; it has no passive declare, purge, unbind or delete",
  missing: "the module has no passive declare of a queue",
  tx: "amqplib has no transactions",
  channels: "the application has the channels of its configuration",
  "broker-cancel": "the module does not report it",
};

// The module logs errors, and waits for the broker. This program prints the first one and ends.
const logger = {
  ...{ log() {}, warn() {}, debug() {} },
  error(message, stack = "") {
    if (name === "reconnect") return;
    console.log(name === "bad-vhost" && /ConnectionClose/.test(stack) ? "pass" : `${message} ${stack}`.split("\n")[0]);
    process.exit(0);
  },
};

// Starts an application. handlers: decorator and function for each method of its service.
async function start(config, handlers = []) {
  class Service {}
  for (const [n, [decorate, handle]] of handlers.entries()) {
    const key = `handle${n}`;
    Object.defineProperty(Service.prototype, key, { value: handle, configurable: true, writable: true });
    decorate(Service.prototype, key, Object.getOwnPropertyDescriptor(Service.prototype, key));
  }
  const connectionManagerOptions = {
    heartbeatIntervalInSeconds: name === "heartbeat" ? 1 : 5,
    reconnectTimeInSeconds: 0.1,
    connectionOptions: tls,
  };
  const json = { deserializer: (content) => content.toString(), serializer: (body) => Buffer.from(body) }; // default: JSON
  const rabbit = RabbitMQModule.forRoot({ uri, logger, connectionManagerOptions, ...json, ...config });
  class App {}
  Module({ imports: [rabbit], providers: [Service] })(App);
  const app = await NestFactory.createApplicationContext(App, { logger: false, abortOnError: false });
  return app.get(AmqpConnection);
}

const queue = (name, options) => ({ name, options });
const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));

async function send(connection, queue, bodies, options) {
  for (const body of bodies) await connection.publish("", queue, body, options);
}

// The first messages of one more subscriber; what `answer` returns acks or nacks.
async function receive(connection, queue, count, options = {}, answer = () => {}) {
  const got = [];
  const handle = async (_body, message) => got.push(message) && answer(message);
  await connection.createSubscriber(handle, { queue, createQueueIfNotExists: false, ...options }, "handle");
  while (got.length < count) await sleep(5);
  return got.slice(0, count);
}

async function connects() {
  const connection = await start({ queues: [queue("hello")] });
  if (name === "heartbeat") await sleep(4000);
  await send(connection, "hello", ["Hello World!"]);
  print(await receive(connection, "hello", 1));
}

async function patterns(exchange, type, routingKey, keys, count) {
  const got = [];
  const subscribe = RabbitSubscribe({ exchange, routingKey, queue: exchange });
  const connection = await start({ exchanges: [{ name: exchange, type }] }, [[subscribe, async (key) => void got.push(key)]]);
  for (const key of keys) await connection.publish(exchange, key, key);
  while (got.length < count) await sleep(5);
  console.log(got.join("\n"));
}

const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
const answer = async (body) => `${fibonacci(Number(body))}`;

async function confirm(name, count) {
  const connection = await start({ queues: [queue(name)] });
  await Promise.all(Array.from({ length: count }, (_, n) => connection.publish("", name, `${n}`, { persistent: true })));
  console.log((await receive(connection, name, count)).length);
}

async function stream(name, consumed) {
  const connection = await start({ queues: [queue(name, { arguments: { "x-queue-type": "stream" } })] });
  for (let n = 0; n < 10; n++) await send(connection, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  print(await receive(connection, name, 5, { queueOptions: { consumerOptions: { arguments: consumed } } }));
}

async function deadLetter(source, target, options) {
  const dead = { deadLetterExchange: "", deadLetterRoutingKey: target };
  const connection = await start({ queues: [queue(target), queue(source, dead)] });
  await send(connection, source, ["bad"], options);
  if (!options) await receive(connection, source, 1, {}, () => new Nack());
  console.log((await receive(connection, target, 1))[0].properties.headers["x-death"][0].reason);
}

const scenarios = {
  connect: connects,
  "bad-password": connects,
  "bad-vhost": connects,
  tls: connects,
  "client-certificate": connects,
  heartbeat: connects,
  async inequivalent() {
    await start({ queues: [queue("inequivalent", { durable: true })] });
    await start({ queues: [queue("inequivalent", { durable: false })] });
  },
  async "float-argument"() {
    await start({ queues: [queue("float", { maxLength: 10 })] });
    await start({ queues: [queue("float", { arguments: { "x-max-length": { "!": "double", value: 10 } } })] });
  },
  async "work-queue"() {
    const done = [];
    const work = async (body, { fields }) => void done.push([body, fields.consumerTag]);
    const worker = RabbitSubscribe({ queue: "tasks" });
    const connection = await start({ prefetchCount: 1, queues: [queue("tasks")] }, [[worker, work], [worker, work]]);
    await send(connection, "tasks", "0123456789", { persistent: true });
    while (done.length < 10) await sleep(5);
    console.log(`${done.map(([task]) => task).sort().join("")}\n${new Set(done.map(([, worker]) => worker)).size}`);
  },
  async "publish-subscribe"() {
    const got = [];
    const subscribe = (queue) => [RabbitSubscribe({ exchange: "logs", routingKey: "", queue }), async (log) => void got.push(log)];
    const connection = await start({ exchanges: [{ name: "logs", type: "fanout" }] }, [subscribe("a"), subscribe("b")]);
    await connection.publish("logs", "", "log");
    while (got.length < 2) await sleep(5);
    console.log(got.join("\n"));
  },
  routing: () => patterns("direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: () =>
    patterns("topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  async rpc() {
    const server = [RabbitRPC({ queue: "rpc_queue", routingKey: "rpc_queue" }), answer];
    const connection = await start({ queues: [queue("replies")] }, [server]);
    await send(connection, "rpc_queue", ["15"], { replyTo: "replies", correlationId: "1" });
    const [{ content, properties }] = await receive(connection, "replies", 1);
    console.log(`${properties.correlationId} ${content}`);
  },
  async "direct-reply-to"() {
    const connection = await start({}, [[RabbitRPC({ queue: "rpc_queue", routingKey: "rpc_queue" }), answer]]);
    const reply = await connection.request({ exchange: "", routingKey: "rpc_queue", payload: "15", correlationId: "1" });
    console.log(`1 ${reply}`); // a reply with another correlation id is dropped
  },
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const connection = await start({});
    const returned = once(connection.channel, "return");
    await connection.publish("", "nowhere", "lost", { mandatory: true });
    console.log((await returned)[0].fields.replyCode);
  },
  async headers() {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, time: { "!": "timestamp", value: 1767323045 } },
    };
    const connection = await start({ queues: [queue("headers")] });
    await send(connection, "headers", [""], { headers });
    assert.deepEqual((await receive(connection, "headers", 1))[0].properties.headers, headers);
    console.log("pass");
  },
  async bodies() {
    const sizes = [0, 1, 131_064, 131_065, 1 << 20, 16 << 20];
    const connection = await start({ queues: [queue("bodies")] });
    for (const size of sizes) await send(connection, "bodies", [Buffer.alloc(size, "x")]);
    const got = await receive(connection, "bodies", sizes.length);
    for (const [n, { content }] of got.entries()) console.log(content.equals(Buffer.alloc(sizes[n], "x")) && content.length);
  },
  async prefetch() {
    const got = [];
    let release;
    const held = new Promise((resolve) => (release = resolve));
    const handle = (body) => got.push(body) && held; // the module acks when this promise is fulfilled
    const connection = await start({ prefetchCount: 3, queues: [queue("prefetch")] }, [[RabbitSubscribe({ queue: "prefetch" }), handle]]);
    await send(connection, "prefetch", "0123456789");
    while (got.length < 3) await sleep(5);
    console.log((await connection.managedChannel.checkQueue("prefetch")).messageCount);
    release();
    while (got.length < 6) await sleep(5);
    console.log(got.slice(3, 6).join("\n"));
  },
  async requeue() {
    const connection = await start({ prefetchCount: 1, queues: [queue("requeue")] });
    await send(connection, "requeue", "123");
    const answers = { 1: () => new Nack(false), 2: () => {}, 3: () => {} };
    const again = ({ content, fields }) => (fields.redelivered ? answers[content]() : new Nack(true));
    const got = await receive(connection, "requeue", 6, {}, again);
    for (const { content, fields } of got) if (fields.redelivered) console.log(`${content} ${fields.redelivered}`);
    await sleep(100);
    console.log((await connection.managedChannel.checkQueue("requeue")).messageCount);
  },
  async cancel() {
    const handle = async () => console.log("delivered");
    const connection = await start({ queues: [queue("cancel")] }, [[RabbitSubscribe({ queue: "cancel" }), handle]]);
    for (const tag of connection.consumerTags) await connection.cancelConsumer(tag);
    await send(connection, "cancel", ["stays"]);
    console.log((await connection.managedChannel.checkQueue("cancel")).messageCount);
  },
  async blocked() {
    const connection = await start({});
    connection.managedConnection.on("blocked", ({ reason }) => console.log(`${reason}\nready`)); // the runner ends the alarm
    await Promise.all([once(connection.managedConnection, "unblocked"), send(connection, "nowhere", ["held"])]);
    console.log("unblocked");
  },
  "dead-letter": () => deadLetter("rejecting", "dead"),
  "message-ttl": () => deadLetter("ttl", "expired", { expiration: 50 }),
  async "queue-ttl"() {
    const { managedChannel } = await start({ queues: [queue("leased", { expires: 100 })] });
    for (;;) await managedChannel.bindQueue("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async priority() {
    const connection = await start({ queues: [queue("priority", { maxPriority: 5 })] });
    for (const priority of [1, 5, 3]) await send(connection, "priority", [`${priority}`], { priority });
    print(await receive(connection, "priority", 3));
  },
  async delayed() {
    const exchanges = [{ name: "delayed", type: "x-delayed-message", options: { arguments: { "x-delayed-type": "fanout" } } }];
    const bound = { name: "delayed", exchange: "delayed", routingKey: "" };
    const connection = await start({ exchanges, queues: [bound] });
    await connection.publish("delayed", "", "late", { headers: { "x-delay": 1000 } });
    await connection.publish("delayed", "", "soon", { headers: { "x-delay": 1 } });
    print(await receive(connection, "delayed", 2));
  },
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
  async policy() {
    const connection = await start({ queues: [queue("limited")] });
    await send(connection, "limited", "1234");
    console.log((await connection.managedChannel.checkQueue("limited")).messageCount);
  },
  async reconnect() {
    await new Promise(async (done) => {
      const handle = async (body, { fields }) => {
        if (fields.redelivered) return done(console.log(body)); // the module connected and subscribed again by itself
        console.log("ready"); // the runner kills the broker and starts it again
        await new Promise(() => {});
      };
      const connection = await start({ queues: [queue("kept")] }, [[RabbitSubscribe({ queue: "kept" }), handle]]);
      await send(connection, "kept", ["kept"], { persistent: true });
    });
  },
  async write() {
    const connection = await start({ queues: [queue("crossing", { durable: false })] });
    await send(connection, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read() {
    const [{ content, properties }] = await receive(await start({}), "crossing", 1);
    assert.deepEqual([content, properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
};

if (name === "version") {
  console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/@golevelup/nestjs-rabbitmq/package.json`)).version);
} else if (notOffered[name]) {
  console.log(`not offered: ${notOffered[name]}`);
} else {
  await scenarios[name]().catch((error) => console.log(error.message));
}
process.exit(0);
