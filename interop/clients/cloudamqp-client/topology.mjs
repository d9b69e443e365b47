// cloudamqp-client: queues, exchanges and bindings.
import { setTimeout as sleep } from "node:timers/promises";
import { hello, printCount, run, send } from "./common.mjs";

run({
  async declare(channel) {
    await channel.queueDeclare("declared");
    await channel.exchangeDeclare("declared", "topic");
    await channel.queueBind("declared", "declared", "#");
    await channel.basicPublish("declared", "key", "1");
    await channel.queueDeclare("declared", { passive: true });
    await channel.exchangeDeclare("declared", "topic", { passive: true });
    await printCount(channel, "declared");
    await channel.queueUnbind("declared", "declared", "#");
    await channel.exchangeDelete("declared");
    await channel.queueDelete("declared");
  },
  async missing(channel, connection) {
    await channel.queueDeclare("missing", { passive: true }).catch((error) => console.log(error.message));
    await hello(await connection.channel());
  },
  async inequivalent(channel) {
    await channel.queueDeclare("inequivalent", { durable: true });
    await channel.queueDeclare("inequivalent", { durable: false });
  },
  "float-argument": () => console.log("not offered: the client sends 10.0 as an integer"),
  async "queue-ttl"(channel) {
    await channel.queueDeclare("leased", {}, { "x-expires": 100 });
    for (;;) await channel.queueBind("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async policy(channel) {
    await channel.queueDeclare("limited");
    await send(channel, "limited", "1234");
    await printCount(channel, "limited");
  },
});
