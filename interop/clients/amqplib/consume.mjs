// amqplib: consuming.
import { setTimeout as sleep } from "node:timers/promises";
import { print, receive, run, send } from "./common.mjs";

async function deadLetter(channel, source, target, options) {
  await channel.assertQueue(target);
  await channel.assertQueue(source, { deadLetterExchange: "", deadLetterRoutingKey: target });
  send(channel, source, ["bad"], options);
  if (!options) channel.reject(await channel.get(source), false);
  console.log((await receive(channel, target, 1))[0].properties.headers["x-death"][0].reason);
}

run({
  async prefetch(channel) {
    await channel.assertQueue("prefetch");
    send(channel, "prefetch", "0123456789");
    await channel.prefetch(3);
    const got = [];
    await channel.consume("prefetch", (message) => got.push(message));
    while (got.length < 3) await sleep(5);
    console.log((await channel.checkQueue("prefetch")).messageCount);
    channel.ack(got[2], true);
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue(channel) {
    await channel.assertQueue("requeue");
    send(channel, "requeue", "123");
    const three = async () => [await channel.get("requeue"), await channel.get("requeue"), await channel.get("requeue")];
    channel.nack((await three())[2], true, true);
    const got = await three();
    for (const { content, fields } of got) console.log(`${content} ${fields.redelivered}`);
    channel.reject(got[0], false);
    channel.ack(got[2], true);
    console.log((await channel.purgeQueue("requeue")).messageCount);
  },
  async cancel(channel) {
    await channel.assertQueue("cancel");
    const { consumerTag } = await channel.consume("cancel", () => console.log("delivered"), { noAck: true });
    await channel.cancel(consumerTag);
    send(channel, "cancel", ["stays"]);
    console.log((await channel.purgeQueue("cancel")).messageCount);
  },
  async "broker-cancel"(channel, connection) {
    await channel.assertQueue("cancelled");
    const message = receive(channel, "cancelled", 1); // null instead of a message
    await (await connection.createChannel()).deleteQueue("cancelled");
    console.log((await message)[0] ?? "cancelled");
  },
  "dead-letter": (channel) => deadLetter(channel, "rejecting", "dead"),
  "message-ttl": (channel) => deadLetter(channel, "ttl", "expired", { expiration: 50 }),
  async priority(channel) {
    await channel.assertQueue("priority", { maxPriority: 5 });
    for (const priority of [1, 5, 3]) send(channel, "priority", [`${priority}`], { priority });
    print(await receive(channel, "priority", 3));
  },
  async delayed(channel) {
    await channel.assertExchange("delayed", "x-delayed-message", { arguments: { "x-delayed-type": "fanout" } });
    await channel.assertQueue("delayed");
    await channel.bindQueue("delayed", "delayed", "");
    channel.publish("delayed", "", Buffer.from("late"), { headers: { "x-delay": 1000 } });
    channel.publish("delayed", "", Buffer.from("soon"), { headers: { "x-delay": 1 } });
    print(await receive(channel, "delayed", 2));
  },
});
