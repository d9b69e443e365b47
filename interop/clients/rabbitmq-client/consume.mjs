// rabbitmq-client: consuming.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { consume, late, print, printCount, rabbit, run } from "./common.mjs";

async function deadLetter(queue, target, act) {
  await rabbit.queueDeclare(target);
  await rabbit.queueDeclare({ queue, arguments: { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target } });
  await act();
  const [message] = await consume({ queue: target }, 1, []);
  console.log(message.headers["x-death"][0].reason);
}

const three = async (channel, queue) => [await channel.basicGet(queue), await channel.basicGet(queue), await channel.basicGet(queue)];

run({
  async prefetch() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("prefetch");
    for (const body of "0123456789") await channel.basicPublish("prefetch", body);
    await channel.basicQos({ prefetchCount: 3 });
    const got = [];
    await channel.basicConsume({ queue: "prefetch" }, (message) => got.push(message));
    while (got.length < 3) await sleep(5);
    console.log((await channel.queueDeclare({ queue: "prefetch", passive: true })).messageCount);
    channel.basicAck({ deliveryTag: got[2].deliveryTag, multiple: true });
    while (got.length < 6) await sleep(5);
    print(got.slice(3));
  },
  async requeue() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("requeue");
    for (const body of "123") await channel.basicPublish("requeue", body);
    const [, , last] = await three(channel, "requeue");
    channel.basicNack({ deliveryTag: last.deliveryTag, multiple: true, requeue: true });
    const got = await three(channel, "requeue");
    for (const { body, redelivered } of got) console.log(body, redelivered);
    channel.basicNack({ deliveryTag: got[0].deliveryTag, requeue: false });
    channel.basicAck({ deliveryTag: got[2].deliveryTag, multiple: true });
    await printCount(channel, "requeue");
  },
  async cancel() {
    const consumer = rabbit.createConsumer({ queue: "cancel", noAck: true }, (message) => print([message]));
    await once(consumer, "ready");
    await consumer.close();
    await rabbit.createPublisher({ confirm: true }).send("cancel", "stays");
    await printCount(rabbit, "cancel");
  },
  async "broker-cancel"() {
    const consumer = rabbit.createConsumer({ queue: "cancelled" }, () => {});
    await once(consumer, "ready");
    const cancelled = once(consumer, "error");
    await rabbit.queueDelete("cancelled");
    const [error] = await cancelled;
    console.log(error.code === "CANCEL_FORCED" && "cancelled");
  },
  "dead-letter": () =>
    deadLetter("rejecting", "dead", async () => {
      const rejecting = { queue: "rejecting", queueOptions: { passive: true } };
      const consumer = rabbit.createConsumer(rejecting, () => 2); // ConsumerStatus.DROP
      await rabbit.createPublisher().send("rejecting", "bad");
      while (consumer.stats.dropped < 1) await sleep(5);
    }),
  "message-ttl": () =>
    deadLetter("ttl", "expired", () => rabbit.createPublisher().send({ routingKey: "ttl", expiration: "50" }, "short")),
  async priority() {
    const messages = [1, 5, 3].map((priority) => [{ priority }, `${priority}`]);
    print(await late("priority", { arguments: { "x-max-priority": 5 } }, messages, 3));
  },
  async delayed() {
    const exchange = "delayed";
    const exchanges = [{ exchange, type: "x-delayed-message", arguments: { "x-delayed-type": "fanout" } }];
    const delay = (body, ms) => [{ exchange, headers: { "x-delay": ms } }, body];
    print(await consume({ queue: "delayed", exchanges, queueBindings: [{ exchange }] }, 2, [delay("late", 1000), delay("soon", 1)]));
  },
});
