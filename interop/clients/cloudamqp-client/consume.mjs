// cloudamqp-client: consuming.
import { setTimeout as sleep } from "node:timers/promises";
import { print, printCount, receive, run, send } from "./common.mjs";

async function deadLetter(channel, queue, target, properties) {
  await channel.queueDeclare(target);
  await channel.queueDeclare(queue, {}, { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target });
  await send(channel, queue, ["bad"], properties);
  if (!properties) await (await channel.basicGet(queue, { noAck: false })).reject(false);
  console.log((await receive(channel, target, 1))[0].properties.headers["x-death"][0].reason);
}

run({
  async prefetch(channel) {
    await channel.queueDeclare("prefetch");
    await send(channel, "prefetch", "0123456789");
    await channel.prefetch(3);
    const got = [];
    await channel.basicConsume("prefetch", { noAck: false }, (message) => void got.push(message));
    while (got.length < 3) await sleep(5);
    console.log((await channel.queueDeclare("prefetch", { passive: true })).messageCount);
    await got[2].ack(true);
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue(channel) {
    const get = () => channel.basicGet("requeue", { noAck: false });
    await channel.queueDeclare("requeue");
    await send(channel, "requeue", "123");
    const taken = [await get(), await get(), await get()];
    await taken[2].nack(true, true);
    const got = [await get(), await get(), await get()];
    for (const message of got) console.log(message.bodyString(), message.redelivered);
    await got[0].reject(false);
    await got[2].ack(true);
    await printCount(channel, "requeue");
  },
  async cancel(channel) {
    await channel.queueDeclare("cancel");
    const consumer = await channel.basicConsume("cancel", {}, () => console.log("delivered"));
    await consumer.cancel();
    await send(channel, "cancel", ["stays"]);
    await printCount(channel, "cancel");
  },
  async "broker-cancel"(channel, connection) {
    await channel.queueDeclare("cancelled");
    const consumer = await channel.basicConsume("cancelled", {}, () => {});
    await (await connection.channel()).queueDelete("cancelled");
    await consumer.wait().catch(({ message }) => console.log(message === "Consumer cancelled by the server" && "cancelled"));
  },
  "dead-letter": (channel) => deadLetter(channel, "rejecting", "dead"),
  "message-ttl": (channel) => deadLetter(channel, "ttl", "expired", { expiration: "50" }),
  async priority(channel) {
    await channel.queueDeclare("priority", {}, { "x-max-priority": 5 });
    for (const priority of [1, 5, 3]) await send(channel, "priority", [`${priority}`], { priority });
    print(await receive(channel, "priority", 3));
  },
  async delayed(channel) {
    await channel.exchangeDeclare("delayed", "x-delayed-message", {}, { "x-delayed-type": "fanout" });
    await channel.queueDeclare("delayed");
    await channel.queueBind("delayed", "delayed", "");
    await channel.basicPublish("delayed", "", "late", { headers: { "x-delay": 1000 } });
    await channel.basicPublish("delayed", "", "soon", { headers: { "x-delay": 1 } });
    print(await receive(channel, "delayed", 2));
  },
});
