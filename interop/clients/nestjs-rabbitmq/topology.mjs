// nestjs-rabbitmq: queues, exchanges and bindings.
import { setTimeout as sleep } from "node:timers/promises";
import { notOffered, queue, run, send, start } from "./common.mjs";

run({
  declare: notOffered("the module declares; it has no passive declare, purge, unbind or delete"),
  missing: notOffered("the module has no passive declare of a queue"),
  async inequivalent() {
    await start({ queues: [queue("inequivalent", { durable: true })] });
    await start({ queues: [queue("inequivalent", { durable: false })] });
  },
  async "float-argument"() {
    await start({ queues: [queue("float", { maxLength: 10 })] });
    await start({ queues: [queue("float", { arguments: { "x-max-length": { "!": "double", value: 10 } } })] });
  },
  async "queue-ttl"() {
    const { managedChannel } = await start({ queues: [queue("leased", { expires: 100 })] });
    for (;;) await managedChannel.bindQueue("leased", "amq.fanout", "").then(() => sleep(50)); // a bind does not renew the lease
  },
  async policy() {
    const connection = await start({ queues: [queue("limited")] });
    await send(connection, "limited", "1234");
    console.log((await connection.managedChannel.checkQueue("limited")).messageCount);
  },
});
