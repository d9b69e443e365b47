// nestjs-rabbitmq: the patterns of RabbitMQ's tutorials.
import { setTimeout as sleep } from "node:timers/promises";
import { queue, RabbitRPC, RabbitSubscribe, receive, run, send, start } from "./common.mjs";

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

run({
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
});
