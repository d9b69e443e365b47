// amqplib: queues, exchanges and bindings.
import { setTimeout as sleep } from "node:timers/promises";
import { hello, run, send } from "./common.mjs";

run({
  async declare(channel) {
    await channel.assertQueue("declared");
    await channel.assertExchange("declared", "topic");
    await channel.bindQueue("declared", "declared", "#");
    channel.publish("declared", "key", Buffer.from("1"));
    await channel.checkQueue("declared");
    await channel.checkExchange("declared");
    console.log((await channel.purgeQueue("declared")).messageCount);
    await channel.unbindQueue("declared", "declared", "#");
    await channel.deleteExchange("declared");
    await channel.deleteQueue("declared");
  },
  async missing(channel, connection) {
    await channel.checkQueue("missing").catch((error) => console.log(error.message));
    await hello(await connection.createChannel());
  },
  async inequivalent(channel) {
    await channel.assertQueue("inequivalent", { durable: true });
    await channel.assertQueue("inequivalent", { durable: false });
  },
  async "float-argument"(channel) {
    await channel.assertQueue("float", { maxLength: 10 });
    await channel.assertQueue("float", { arguments: { "x-max-length": { "!": "double", value: 10 } } });
  },
  async "queue-ttl"(channel) {
    await channel.assertQueue("leased", { expires: 100 });
    for (;;) await channel.bindQueue("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async policy(channel) {
    await channel.assertQueue("limited");
    send(channel, "limited", "1234");
    console.log((await channel.purgeQueue("limited")).messageCount);
  },
});
