// rabbitmq-client: the patterns of RabbitMQ's tutorials.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { consume, print, rabbit, run } from "./common.mjs";

async function patterns(exchange, type, bindings, keys, count) {
  const queueBindings = bindings.map((routingKey) => ({ exchange, routingKey }));
  const props = { queueOptions: { exclusive: true }, exchanges: [{ exchange, type }], queueBindings };
  print(await consume(props, count, keys.map((routingKey) => [{ exchange, routingKey }, routingKey])));
}

const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
const answer = (request, reply) => reply(`${fibonacci(Number(request.body))}`);

run({
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
});
