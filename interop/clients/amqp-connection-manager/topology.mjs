// amqp-connection-manager: queues, exchanges and bindings.
import { setTimeout as sleep } from "node:timers/promises";
import { hello, open, printCount, run, send, withQueue } from "./common.mjs";

run({
  async declare() {
    const channel = await withQueue("declared");
    await channel.assertExchange("declared", "topic");
    await channel.bindQueue("declared", "declared", "#");
    await channel.publish("declared", "key", "1");
    await channel.checkQueue("declared");
    await channel.checkExchange("declared");
    await printCount(channel, "declared");
    await channel.unbindQueue("declared", "declared", "#");
    await channel.deleteExchange("declared");
    await channel.deleteQueue("declared");
  },
  async missing() {
    await (await open()).checkQueue("missing").catch((error) => console.log(error.message));
    await hello();
  },
  inequivalent: async () => (await withQueue("inequivalent", { durable: true })).assertQueue("inequivalent", { durable: false }),
  async "float-argument"() {
    const channel = await withQueue("float", { maxLength: 10 });
    await channel.assertQueue("float", { arguments: { "x-max-length": { "!": "double", value: 10 } } });
  },
  async "queue-ttl"() {
    const channel = await withQueue("leased", { expires: 100 });
    for (;;) await channel.bindQueue("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async policy() {
    const channel = await withQueue("limited");
    await send(channel, "limited", "1234");
    await printCount(channel, "limited");
  },
});
