// rabbitmq-client: connections.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { consume, hello, print, rabbit, run } from "./common.mjs";

run({
  connect: hello,
  tls: hello,
  "client-certificate": hello,
  heartbeat: () => sleep(4000).then(hello),
  async channels() {
    await rabbit.queueDeclare("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => rabbit.acquire()));
    for (const channel of opened) await channel.basicPublish("channels", "x");
    console.log((await consume({ queue: "channels" }, 100, [])).length);
  },
  async blocked() {
    rabbit.on("connection.blocked", (reason) => console.log(`${reason}\nready`)); // the runner ends the alarm
    await rabbit.createPublisher().send("nowhere", "held");
    await once(rabbit, "connection.unblocked");
    console.log("unblocked");
  },
  async reconnect() {
    const [queue, durable] = ["kept", true];
    const lost = once(rabbit, "error");
    await rabbit.createPublisher({ confirm: true, queues: [{ queue, durable }] }).send({ routingKey: queue, durable }, "kept");
    await new Promise((done) => {
      const consumer = rabbit.createConsumer({ queue, queueOptions: { durable } }, async (message) => {
        if (message.redelivered) return done(print([message])); // the consumer connected again by itself
        console.log("ready"); // the runner kills the broker and starts it again
        await lost;
      });
      consumer.on("error", () => {}); // the ack of the lost channel
    });
  },
});
