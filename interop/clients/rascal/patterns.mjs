// rascal: the patterns of RabbitMQ's tutorials.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { consume, notOffered, print, publish, receive, run, send, start } from "./common.mjs";

async function patterns(exchange, type, bindingKeys, keys, count) {
  const bindings = { all: { source: exchange, destination: "q", bindingKeys } };
  const broker = await start({ exchanges: { [exchange]: { type } }, queues: { q: { options: { exclusive: true } } }, bindings });
  for (const key of keys) await publish(broker, exchange, key, key);
  print(await receive(broker, "q", count));
}

run({
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
  "direct-reply-to": notOffered("rascal publishes and consumes on different channels"),
});
