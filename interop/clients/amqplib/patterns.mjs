// amqplib: the patterns of RabbitMQ's tutorials.
import { setTimeout as sleep } from "node:timers/promises";
import { print, receive, run, send } from "./common.mjs";

async function patterns(channel, exchange, kind, bindings, published, count) {
  await channel.assertExchange(exchange, kind);
  const { queue } = await channel.assertQueue("", { exclusive: true });
  for (const binding of bindings) await channel.bindQueue(queue, exchange, binding);
  for (const key of published) channel.publish(exchange, key, Buffer.from(key));
  print(await receive(channel, queue, count));
}

async function askFibonacci(channel, replyTo) {
  const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));
  const answer = ({ content, properties: { replyTo, correlationId } }) =>
    send(channel, replyTo, [String(fibonacci(Number(content)))], { correlationId });
  await channel.assertQueue("rpc_queue");
  await channel.consume("rpc_queue", answer, { noAck: true });
  const reply = receive(channel, replyTo, 1);
  send(channel, "rpc_queue", ["15"], { replyTo, correlationId: "1" });
  const [{ content, properties }] = await reply;
  console.log(properties.correlationId, content.toString());
}

run({
  async "work-queue"(channel) {
    await channel.assertQueue("tasks", { durable: true });
    await channel.prefetch(1);
    const done = [];
    const workers = new Set();
    const work = (message) => {
      workers.add(message.fields.consumerTag);
      done.push(message.content.toString());
      channel.ack(message);
    };
    await Promise.all([channel.consume("tasks", work), channel.consume("tasks", work)]);
    send(channel, "tasks", "0123456789", { persistent: true });
    while (done.length < 10) await sleep(5);
    console.log(`${done.sort().join("")}\n${workers.size}`);
  },
  async "publish-subscribe"(channel) {
    await channel.assertExchange("logs", "fanout");
    const queues = [await channel.assertQueue("", { exclusive: true }), await channel.assertQueue("", { exclusive: true })];
    for (const { queue } of queues) await channel.bindQueue(queue, "logs", "");
    channel.publish("logs", "", Buffer.from("log"));
    for (const { queue } of queues) print(await receive(channel, queue, 1));
  },
  routing: (channel) =>
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], 2),
  topics: (channel) =>
    patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], ["kern.critical", "cron.info", "kern.a.b", "cron.critical"], 3),
  rpc: async (channel) => askFibonacci(channel, (await channel.assertQueue("", { exclusive: true })).queue),
  "direct-reply-to": (channel) => askFibonacci(channel, "amq.rabbitmq.reply-to"),
});
