// amqp-connection-manager: the patterns of RabbitMQ's tutorials.
import { setTimeout as sleep } from "node:timers/promises";
import { open, print, receive, run, send, withQueue } from "./common.mjs";

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

run({
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
});
