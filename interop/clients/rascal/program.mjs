// rascal, over amqplib: the scenarios of ../README.md. Its configuration declares everything; it publishes with confirms.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const rascal = createRequire(`${process.env.NODE_PATH}/`)("rascal");
const { AMQP_URL, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
const name = process.argv[2];
const notOffered = {
  declare: "rascal declares by its configuration: it has no unbind, and a purge returns no count",
  "direct-reply-to": "rascal publishes and consumes on different channels",
  tx: "amqplib has no transactions",
  channels: "rascal opens channels itself, in pools",
};

// Connects and declares. Publications and subscriptions of a queue or exchange are called v/NAME.
async function start(parts, query = "") {
  const connection = { url: AMQP_URL + query, socketOptions: tls ?? {}, retry: { min: 100, max: 200, factor: 1 } };
  const broker = await rascal.BrokerAsPromised.create(rascal.withDefaultConfig({ vhosts: { v: { connection, ...parts } } }));
  return broker.on("error", () => {}); // a lost connection; the broker connects again
}

async function publish(broker, target, body, overrides) {
  const publication = await broker.publish(`v/${target}`, body, overrides);
  await new Promise((resolve, reject) => publication.on("success", resolve).on("error", reject));
}

async function send(broker, queue, bodies, options) {
  for (const body of bodies) await publish(broker, queue, body, { options });
}

async function consume(broker, queue, onMessage, overrides) {
  const subscription = await broker.subscribe(`v/${queue}`, overrides);
  subscription.on("error", () => {}).on("message", onMessage);
  await once(subscription, "subscribed");
  return subscription;
}

// The first messages of a queue, acked.
async function receive(broker, queue, count, overrides) {
  const got = [];
  const add = (message, _content, ackOrNack) => got.push(message) && ackOrNack();
  const subscription = await consume(broker, queue, add, overrides);
  while (got.length < count) await sleep(5);
  await subscription.cancel();
  return got;
}

const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));
const without = ({ rascal, ...headers }) => headers; // rascal adds a header to each delivery

async function connects(query) {
  const broker = await start({ queues: ["hello"] }, query);
  if (query) await sleep(4000);
  await send(broker, "hello", ["Hello World!"]);
  print(await receive(broker, "hello", 1));
}

async function patterns(exchange, type, bindingKeys, keys, count) {
  const bindings = { all: { source: exchange, destination: "q", bindingKeys } };
  const broker = await start({ exchanges: { [exchange]: { type } }, queues: { q: { options: { exclusive: true } } }, bindings });
  for (const key of keys) await publish(broker, exchange, key, key);
  print(await receive(broker, "q", count));
}

async function confirm(queue, count) {
  const broker = await start({ queues: [queue] });
  await Promise.all(Array.from({ length: count }, (_, n) => publish(broker, queue, `${n}`)));
  console.log((await receive(broker, queue, count)).length);
}

async function stream(queue, options) {
  const broker = await start({ queues: { [queue]: { options: { arguments: { "x-queue-type": "stream" } } } } });
  for (let n = 0; n < 10; n++) await send(broker, queue, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  print((await receive(broker, queue, 5, { prefetch: 10, options: { arguments: options } })).slice(0, 5));
}

async function deadLetter(source, target, options) {
  const dead = { deadLetterExchange: "", deadLetterRoutingKey: target };
  const broker = await start({ queues: { [target]: {}, [source]: { options: dead } } });
  await send(broker, source, ["bad"], options);
  if (!options) await consume(broker, source, (_message, _content, ackOrNack) => ackOrNack(new Error(), { strategy: "nack" }));
  console.log((await receive(broker, target, 1))[0].properties.headers["x-death"][0].reason);
}

const scenarios = {
  connect: () => connects(),
  "bad-password": () => connects(),
  "bad-vhost": () => connects(),
  tls: () => connects(),
  "client-certificate": () => connects(),
  heartbeat: () => connects("?heartbeat=1"),
  async missing() {
    await start({ queues: { missing: { assert: false, check: true } } }).catch((error) => console.log(error.message));
    await connects();
  },
  async inequivalent() {
    await start({ queues: { inequivalent: { options: { durable: true } } } });
    await start({ queues: { inequivalent: { options: { durable: false } } } });
  },
  async "float-argument"() {
    await start({ queues: { float: { options: { maxLength: 10 } } } });
    await start({ queues: { float: { options: { arguments: { "x-max-length": { "!": "double", value: 10 } } } } } });
  },
  async "work-queue"() {
    const subscriptions = { a: { queue: "tasks", prefetch: 1 }, b: { queue: "tasks", prefetch: 1 } };
    const broker = await start({ queues: ["tasks"], subscriptions });
    const done = [];
    for (const worker of ["a", "b"]) {
      const subscription = await broker.subscribe(worker);
      subscription.on("message", (_message, content, ackOrNack) => done.push([content, worker]) && ackOrNack());
      await once(subscription, "subscribed");
    }
    await send(broker, "tasks", "0123456789");
    while (done.length < 10) await sleep(5);
    console.log(`${done.map(([task]) => task).sort().join("")}\n${new Set(done.map(([, worker]) => worker)).size}`);
  },
  async "publish-subscribe"() {
    const bindings = ["logs -> a", "logs -> b"];
    const broker = await start({ exchanges: { logs: { type: "fanout" } }, queues: ["a", "b"], bindings });
    await publish(broker, "logs", "log");
    for (const queue of ["a", "b"]) print(await receive(broker, queue, 1));
  },
  routing: () => patterns("direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: () =>
    patterns("topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  async rpc() {
    const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
    const broker = await start({ exchanges: [""], queues: ["rpc_queue", "replies"] });
    await consume(broker, "rpc_queue", ({ properties: { replyTo, correlationId } }, content, ackOrNack) => {
      ackOrNack();
      publish(broker, "", `${fibonacci(Number(content))}`, { routingKey: replyTo, options: { correlationId } });
    });
    await send(broker, "rpc_queue", ["15"], { replyTo: "replies", correlationId: "1" });
    const [reply] = await receive(broker, "replies", 1);
    console.log(`${reply.properties.correlationId} ${reply.content}`);
  },
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const broker = await start({ exchanges: [""] });
    const publication = await broker.publish("v/", "lost", "nowhere"); // mandatory by default
    const [message] = await once(publication, "return");
    console.log(message.fields.replyCode);
  },
  async headers() {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, time: { "!": "timestamp", value: 1767323045 } },
    };
    const broker = await start({ queues: ["headers"] });
    await send(broker, "headers", [""], { headers });
    assert.deepEqual(without((await receive(broker, "headers", 1))[0].properties.headers), headers);
    console.log("pass");
  },
  async bodies() {
    const broker = await start({ queues: ["bodies"] });
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await send(broker, "bodies", [body]);
      console.log((await receive(broker, "bodies", 1))[0].content.equals(body) && size);
    }
  },
  async prefetch() {
    const broker = await start({ queues: ["prefetch"] });
    await send(broker, "prefetch", "0123456789");
    const got = [];
    await consume(broker, "prefetch", (...delivery) => got.push(delivery), { prefetch: 3 });
    while (got.length < 3) await sleep(5);
    await sleep(200);
    assert.equal(got.length, 3); // rascal does not show how many are left in the queue
    for (const [, , ackOrNack] of [...got]) ackOrNack();
    while (got.length < 6) await sleep(5);
    assert.equal(got.map(([, content]) => content).join(""), "012345");
    console.log("pass");
  },
  async requeue() {
    const broker = await start({ queues: ["requeue"] });
    await send(broker, "requeue", "123");
    const got = [];
    await consume(broker, "requeue", (...delivery) => got.push(delivery), { prefetch: 3 });
    while (got.length < 3) await sleep(5);
    got[2][2](new Error(), { strategy: "nack", all: true, requeue: true });
    while (got.length < 6) await sleep(5);
    assert.deepEqual(got.slice(3).map(([{ fields }, content]) => content + fields.redelivered), ["1true", "2true", "3true"]);
    got[3][2](new Error(), { strategy: "nack" });
    got[4][2]();
    got[5][2]();
    await send(broker, "requeue", "4");
    while (got.length < 7) await sleep(5);
    assert.equal(got[6][1], "4"); // 1 is gone
    console.log("pass");
  },
  async cancel() {
    const broker = await start({ queues: ["cancel"] });
    const subscription = await consume(broker, "cancel", () => console.log("delivered"));
    await subscription.cancel();
    await send(broker, "cancel", ["stays"]);
    console.log((await receive(broker, "cancel", 1)).length);
  },
  async "broker-cancel"() {
    const broker = await start({ queues: ["cancelled"] });
    const subscription = await consume(broker, "cancelled", () => {});
    const cancelled = once(subscription, "cancelled");
    await (await start({ queues: ["cancelled"] })).nuke(); // deletes what its configuration names
    console.log(/cancelled by the broker/.test((await cancelled)[0].message) && "cancelled");
  },
  async blocked() {
    const broker = await start({ exchanges: [""] });
    broker.on("blocked", (reason) => console.log(`${reason}\nready`)); // the runner ends the alarm
    const unblocked = once(broker, "unblocked");
    (await broker.publish("v/", "held", { routingKey: "nowhere", timeout: 0 })).on("error", () => {});
    await unblocked;
    console.log("unblocked");
  },
  "dead-letter": () => deadLetter("rejecting", "dead"),
  "message-ttl": () => deadLetter("ttl", "expired", { expiration: 50 }),
  async "queue-ttl"() {
    await start({ queues: { leased: { options: { expires: 100 } } } });
    const bound = { exchanges: { "amq.fanout": { assert: false } }, queues: { leased: { assert: false } } };
    for (;;) await start({ ...bound, bindings: ["amq.fanout -> leased"] }); // a bind does not renew the lease
  },
  async priority() {
    const broker = await start({ queues: { priority: { options: { maxPriority: 5 } } } });
    for (const priority of [1, 5, 3]) await send(broker, "priority", [`${priority}`], { priority });
    print(await receive(broker, "priority", 3));
  },
  async delayed() {
    const exchange = { type: "x-delayed-message", options: { arguments: { "x-delayed-type": "fanout" } } };
    const broker = await start({ exchanges: { delay: exchange }, queues: ["delayed"], bindings: ["delay -> delayed"] });
    const delay = (body, ms) => publish(broker, "delay", body, { options: { headers: { "x-delay": ms } } });
    await delay("late", 1000);
    await delay("soon", 1);
    print(await receive(broker, "delayed", 2));
  },
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
  async policy() {
    const broker = await start({ queues: ["limited"] });
    await send(broker, "limited", "1234");
    const got = await receive(broker, "limited", 2);
    assert.equal(got.map(({ content }) => content).join(""), "34");
    console.log(got.length);
  },
  async reconnect() {
    const broker = await start({ queues: ["kept"] });
    await send(broker, "kept", ["kept"]);
    await new Promise((done) =>
      consume(broker, "kept", (message) => {
        if (message.fields.redelivered) done(print([message])); // the broker connected and subscribed again by itself
        else console.log("ready"); // the runner kills the broker and starts it again
      }, { retry: { min: 100, max: 200, factor: 1 } }),
    );
  },
  async write() {
    const broker = await start({ queues: { crossing: { options: { durable: false } } } });
    await send(broker, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read() {
    const broker = await start({ queues: { crossing: { assert: false } } });
    const [{ content, properties }] = await receive(broker, "crossing", 1);
    assert.deepEqual([content, without(properties.headers)], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
};

if (name === "version") {
  console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/rascal/package.json`)).version);
} else if (notOffered[name]) {
  console.log(`not offered: ${notOffered[name]}`);
} else {
  await scenarios[name]().catch(({ message }) =>
    console.log(name === "bad-vhost" && /ConnectionClose/.test(message) ? "pass" : message)); // as in amqplib
}
process.exit(0);
