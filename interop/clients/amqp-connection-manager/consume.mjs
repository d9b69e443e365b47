// amqp-connection-manager: consuming.
import { setTimeout as sleep } from "node:timers/promises";
import { notOffered, open, print, printCount, receive, run, send, withQueue } from "./common.mjs";

async function deadLetter(source, target, options) {
  const channel = await open(async (channel) => {
    await channel.assertQueue(target);
    await channel.assertQueue(source, { deadLetterExchange: "", deadLetterRoutingKey: target });
  });
  await send(channel, source, ["bad"], options);
  if (!options) channel.nack(await channel.get(source), false, false);
  console.log((await receive(channel, target, 1))[0].properties.headers["x-death"][0].reason);
}

run({
  async prefetch() {
    const channel = await withQueue("prefetch");
    await send(channel, "prefetch", "0123456789");
    const got = [];
    await channel.consume("prefetch", (message) => got.push(message), { prefetch: 3 });
    while (got.length < 3) await sleep(5);
    console.log((await channel.checkQueue("prefetch")).messageCount);
    channel.ack(got[2], true);
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue() {
    const channel = await withQueue("requeue");
    const three = async () => [await channel.get("requeue"), await channel.get("requeue"), await channel.get("requeue")];
    await send(channel, "requeue", "123");
    channel.nack((await three())[2], true, true);
    const got = await three();
    for (const { content, fields } of got) console.log(`${content} ${fields.redelivered}`);
    channel.nack(got[0], false, false);
    channel.ack(got[2], true);
    await printCount(channel, "requeue");
  },
  async cancel() {
    const channel = await withQueue("cancel");
    const { consumerTag } = await channel.consume("cancel", () => console.log("delivered"), { noAck: true });
    await channel.cancel(consumerTag);
    await send(channel, "cancel", ["stays"]);
    await printCount(channel, "cancel");
  },
  "broker-cancel": notOffered("the wrapper subscribes again and does not report it"),
  "dead-letter": () => deadLetter("rejecting", "dead"),
  "message-ttl": () => deadLetter("ttl", "expired", { expiration: 50 }),
  async priority() {
    const channel = await withQueue("priority", { maxPriority: 5 });
    for (const priority of [1, 5, 3]) await send(channel, "priority", [`${priority}`], { priority });
    print(await receive(channel, "priority", 3));
  },
  async delayed() {
    const channel = await open(async (channel) => {
      await channel.assertExchange("delayed", "x-delayed-message", { arguments: { "x-delayed-type": "fanout" } });
      await channel.assertQueue("delayed");
      await channel.bindQueue("delayed", "delayed", "");
    });
    await channel.publish("delayed", "", "late", { headers: { "x-delay": 1000 } });
    await channel.publish("delayed", "", "soon", { headers: { "x-delay": 1 } });
    print(await receive(channel, "delayed", 2));
  },
});
