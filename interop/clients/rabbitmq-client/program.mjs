// rabbitmq-client: the scenarios of ../README.md. Consumer, Publisher and RPCClient where they fit, else a Channel.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const { Connection } = createRequire(`${process.env.NODE_PATH}/`)("rabbitmq-client");
const { AMQP_URL: url, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: readFileSync(ca), ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
const numbers = { ACCESS_REFUSED: 403, NOT_FOUND: 404, PRECONDITION_FAILED: 406, NOT_ALLOWED: 530 };
const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
let rabbit;

const print = (messages) => messages.forEach(({ body }) => console.log(body));
const printError = (error) => console.log(numbers[error.code], error.message); // code is the name of the number
const printCount = async (channel, queue) => console.log((await channel.queuePurge(queue)).messageCount);

// Starts a consumer, sends, and returns the first `count` messages.
async function consume(props, count, messages, publisher = rabbit.createPublisher()) {
  const got = [];
  const consumer = rabbit.createConsumer(props, (message) => void got.push(message));
  await once(consumer, "ready");
  for (const [envelope, body] of messages) await publisher.send(envelope, body);
  while (got.length < count) await sleep(5);
  await Promise.all([publisher.close(), consumer.close()]);
  return got;
}

async function connects() {
  print(await consume({ queue: "hello" }, 1, [["hello", "Hello World!"]]));
}

async function patterns(exchange, type, bindings, keys, count) {
  const queueBindings = bindings.map((routingKey) => ({ exchange, routingKey }));
  const props = { queueOptions: { exclusive: true }, exchanges: [{ exchange, type }], queueBindings };
  print(await consume(props, count, keys.map((routingKey) => [{ exchange, routingKey }, routingKey])));
}

// Declares a queue, sends to it, and returns what a consumer that starts then receives.
async function late(queue, declared, messages, count, props) {
  const channel = await rabbit.acquire();
  await channel.queueDeclare({ queue, ...declared });
  for (const [envelope, body] of messages) await channel.basicPublish({ routingKey: queue, ...envelope }, body);
  return consume({ queue, queueOptions: { passive: true }, ...props }, count, []);
}

async function stream(queue, options) {
  const declared = { durable: true, arguments: { "x-queue-type": "stream" } };
  const filter = (n) => ({ headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  const messages = Array.from({ length: 10 }, (_, n) => [filter(n), `${n}`]);
  print((await late(queue, declared, messages, 5, { arguments: options, qos: { prefetchCount: 10 } })).slice(0, 5));
}

async function deadLetter(queue, target, act) {
  await rabbit.queueDeclare(target);
  await rabbit.queueDeclare({ queue, arguments: { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target } });
  await act();
  const [message] = await consume({ queue: target }, 1, []);
  console.log(message.headers["x-death"][0].reason);
}

const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
const answer = (request, reply) => reply(`${fibonacci(Number(request.body))}`);
const three = async (channel, queue) => [await channel.basicGet(queue), await channel.basicGet(queue), await channel.basicGet(queue)];

const scenarios = {
  connect: connects,
  tls: connects,
  "client-certificate": connects,
  heartbeat: () => sleep(4000).then(connects),
  async declare() {
    const [queue, exchange, routingKey] = ["declared", "declared", "#"];
    await rabbit.queueDeclare({ queue, durable: true });
    await rabbit.exchangeDeclare({ exchange, type: "topic", durable: true });
    await rabbit.queueBind({ queue, exchange, routingKey });
    await rabbit.createPublisher({ confirm: true }).send({ exchange, routingKey: "key" }, "1");
    await rabbit.queueDeclare({ queue, passive: true });
    await rabbit.exchangeDeclare({ exchange, passive: true });
    await printCount(rabbit, queue);
    await rabbit.queueUnbind({ queue, exchange, routingKey });
    await rabbit.exchangeDelete({ exchange });
    await rabbit.queueDelete(queue);
  },
  async missing() {
    await rabbit.queueDeclare({ queue: "missing", passive: true }).catch(printError);
    await connects();
  },
  async inequivalent() {
    await rabbit.queueDeclare({ queue: "inequivalent", durable: true });
    await rabbit.queueDeclare({ queue: "inequivalent", durable: false });
  },
  "float-argument": () => console.log("not offered: rabbitmq-client sends 10.0 as an integer"),
  async "work-queue"() {
    const done = [];
    const work = (worker) => (message) => void done.push([message.body, worker]);
    const props = { queue: "tasks", queueOptions: { durable: true }, qos: { prefetchCount: 1 } };
    const workers = [rabbit.createConsumer(props, work("a")), rabbit.createConsumer(props, work("b"))];
    await Promise.all(workers.map((worker) => once(worker, "ready")));
    for (const task of "0123456789") await rabbit.createPublisher().send({ routingKey: "tasks", durable: true }, task);
    while (done.length < 10) await sleep(5);
    console.log(`${done.map(([task]) => task).sort().join("")}\n${new Set(done.map(([, worker]) => worker)).size}`);
  },
  async "publish-subscribe"() {
    const [exchanges, queueBindings] = [[{ exchange: "logs", type: "fanout" }], [{ exchange: "logs" }]];
    const props = { queueOptions: { exclusive: true }, exchanges, queueBindings };
    const consumers = [rabbit.createConsumer(props, (m) => print([m])), rabbit.createConsumer(props, (m) => print([m]))];
    await Promise.all(consumers.map((consumer) => once(consumer, "ready")));
    await rabbit.createPublisher().send({ exchange: "logs" }, "log");
    while (consumers.some((consumer) => consumer.stats.acknowledged < 1)) await sleep(5);
  },
  routing: () => patterns("direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: () =>
    patterns("topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  async rpc() {
    await once(rabbit.createConsumer({ queue: "rpc_queue" }, answer), "ready");
    const request = [{ routingKey: "rpc_queue", replyTo: "replies", correlationId: "1" }, "15"];
    const [reply] = await consume({ queue: "replies", queueOptions: { exclusive: true } }, 1, [request]);
    console.log(reply.correlationId, reply.body);
  },
  async "direct-reply-to"() {
    await once(rabbit.createConsumer({ queue: "rpc_queue" }, answer), "ready");
    const reply = await rabbit.createRPCClient().send("rpc_queue", "15");
    console.log(reply.correlationId, reply.body);
  },
  async confirm(queue = "confirmed", count = 1) {
    const publisher = rabbit.createPublisher({ confirm: true, queues: [{ queue, durable: true }] });
    const send = (_, n) => publisher.send({ routingKey: queue, durable: true }, `${n}`);
    await Promise.all(Array.from({ length: count }, send));
    await printCount(rabbit, queue);
  },
  "confirm-batch": () => scenarios.confirm("batch", 1000),
  async mandatory() {
    const publisher = rabbit.createPublisher();
    const returned = once(publisher, "basic.return");
    await publisher.send({ routingKey: "nowhere", mandatory: true }, "lost");
    console.log((await returned)[0].replyCode);
  },
  async tx() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("tx");
    await channel.txSelect();
    await channel.basicPublish("tx", "no");
    await channel.txRollback();
    await channel.basicPublish("tx", "yes");
    await channel.txCommit();
    print(await consume({ queue: "tx" }, 1, []));
  },
  async headers() {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, byte: -5, short: 300, int: -70_000, long: 2 ** 40 },
      ...{ double: 1.5, array: [1, "two", { three: 3 }], table: { a: { b: "c" } } },
    };
    const [message] = await consume({ queue: "headers" }, 1, [[{ routingKey: "headers", headers }, ""]]);
    assert.deepEqual(message.headers, headers);
    console.log("pass");
  },
  async bodies() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await channel.basicPublish("bodies", body);
      console.log((await channel.basicGet({ queue: "bodies", noAck: true })).body.equals(body) && size);
    }
  },
  async channels() {
    await rabbit.queueDeclare("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => rabbit.acquire()));
    for (const channel of opened) await channel.basicPublish("channels", "x");
    console.log((await consume({ queue: "channels" }, 100, [])).length);
  },
  async prefetch() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("prefetch");
    for (const body of "0123456789") await channel.basicPublish("prefetch", body);
    await channel.basicQos({ prefetchCount: 3 });
    const got = [];
    await channel.basicConsume({ queue: "prefetch" }, (message) => got.push(message));
    while (got.length < 3) await sleep(5);
    console.log((await channel.queueDeclare({ queue: "prefetch", passive: true })).messageCount);
    channel.basicAck({ deliveryTag: got[2].deliveryTag, multiple: true });
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("requeue");
    for (const body of "123") await channel.basicPublish("requeue", body);
    const [, , last] = await three(channel, "requeue");
    channel.basicNack({ deliveryTag: last.deliveryTag, multiple: true, requeue: true });
    const got = await three(channel, "requeue");
    for (const { body, redelivered } of got) console.log(body, redelivered);
    channel.basicNack({ deliveryTag: got[0].deliveryTag, requeue: false });
    channel.basicAck({ deliveryTag: got[2].deliveryTag, multiple: true });
    await printCount(channel, "requeue");
  },
  async cancel() {
    const consumer = rabbit.createConsumer({ queue: "cancel", noAck: true }, (message) => print([message]));
    await once(consumer, "ready");
    await consumer.close();
    await rabbit.createPublisher({ confirm: true }).send("cancel", "stays");
    await printCount(rabbit, "cancel");
  },
  async "broker-cancel"() {
    const consumer = rabbit.createConsumer({ queue: "cancelled" }, () => {});
    await once(consumer, "ready");
    const cancelled = once(consumer, "error");
    await rabbit.queueDelete("cancelled");
    const [error] = await cancelled;
    console.log(error.code === "CANCEL_FORCED" && "cancelled");
  },
  async blocked() {
    rabbit.on("connection.blocked", (reason) => console.log(`${reason}\nready`)); // the runner ends the alarm
    await rabbit.createPublisher().send("nowhere", "held");
    await once(rabbit, "connection.unblocked");
    console.log("unblocked");
  },
  "dead-letter": () =>
    deadLetter("rejecting", "dead", async () => {
      const rejecting = { queue: "rejecting", queueOptions: { passive: true } };
      const consumer = rabbit.createConsumer(rejecting, () => 2); // ConsumerStatus.DROP
      await rabbit.createPublisher().send("rejecting", "bad");
      while (consumer.stats.dropped < 1) await sleep(5);
    }),
  "message-ttl": () =>
    deadLetter("ttl", "expired", () => rabbit.createPublisher().send({ routingKey: "ttl", expiration: "50" }, "short")),
  async "queue-ttl"() {
    await rabbit.queueDeclare({ queue: "leased", arguments: { "x-expires": 100 } });
    for (;;) await rabbit.queueBind({ queue: "leased", exchange: "amq.fanout" }).then(() => sleep(50)); // no renewal
  },
  async priority() {
    const messages = [1, 5, 3].map((priority) => [{ priority }, `${priority}`]);
    print(await late("priority", { arguments: { "x-max-priority": 5 } }, messages, 3));
  },
  async delayed() {
    const exchange = "delayed";
    const exchanges = [{ exchange, type: "x-delayed-message", arguments: { "x-delayed-type": "fanout" } }];
    const delay = (body, ms) => [{ exchange, headers: { "x-delay": ms } }, body];
    print(await consume({ queue: "delayed", exchanges, queueBindings: [{ exchange }] }, 2, [delay("late", 1000), delay("soon", 1)]));
  },
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
  async policy() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("limited");
    for (const body of "1234") await channel.basicPublish("limited", body);
    await printCount(channel, "limited");
  },
  async reconnect() {
    const [queue, durable] = ["kept", true];
    const lost = once(rabbit, "error");
    await rabbit.createPublisher({ confirm: true, queues: [{ queue, durable }] }).send({ routingKey: queue, durable }, "kept");
    await new Promise((done) => {
      const consumer = rabbit.createConsumer({ queue, queueOptions: { durable } }, async (message) => {
        if (message.redelivered) return done(print([message])); // the consumer connected again by itself
        console.log("ready"); // the runner kills the broker and starts it again
        await lost;
      });
      consumer.on("error", () => {}); // the ack of the lost channel
    });
  },
  async write() {
    const publisher = rabbit.createPublisher({ confirm: true, queues: [{ queue: "crossing" }] });
    const properties = { contentType: "text/plain", messageId: "7", headers: crossing };
    await publisher.send({ routingKey: "crossing", ...properties }, bytes);
    console.log("pass");
  },
  async read() {
    const [message] = await consume({ queue: "crossing" }, 1, []);
    assert.deepEqual([message.headers, message.contentType, message.messageId], [crossing, "text/plain", "7"]);
    assert.equal(message.body, bytes.toString()); // text/plain arrives as a string
    console.log("pass");
  },
};

const name = process.argv[2];
if (name === "version") {
  console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/rabbitmq-client/package.json`)).version);
  process.exit(0);
}
const heartbeat = name === "heartbeat" ? 1 : 60;
rabbit = new Connection({ url, tls, heartbeat, frameMax: 131_072, retryLow: 100 });
rabbit.on("error", (error) => name === "reconnect" || printError(error) || process.exit(0));
await rabbit.onConnect();
try {
  await scenarios[name]();
} catch (error) {
  printError(error);
}
process.exit(0);
