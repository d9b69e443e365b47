// cloudamqp-client: the patterns of RabbitMQ's tutorials.
import { setTimeout as sleep } from "node:timers/promises";
import { AMQPSession, print, receive, run, send, url } from "./common.mjs";

async function patterns(channel, exchange, type, bindings, keys, count) {
  await channel.exchangeDeclare(exchange, type);
  const { name } = await channel.queueDeclare("");
  for (const key of bindings) await channel.queueBind(name, exchange, key);
  for (const key of keys) await channel.basicPublish(exchange, key, key);
  print(await receive(channel, name, count));
}

const fibonacci = (n) => (n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2));

run({
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
});
