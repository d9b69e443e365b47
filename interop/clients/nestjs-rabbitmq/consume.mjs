// nestjs-rabbitmq: consuming.
import { setTimeout as sleep } from "node:timers/promises";
import { Nack, notOffered, print, queue, RabbitSubscribe, receive, run, send, start } from "./common.mjs";

async function deadLetter(source, target, options) {
  const dead = { deadLetterExchange: "", deadLetterRoutingKey: target };
  const connection = await start({ queues: [queue(target), queue(source, dead)] });
  await send(connection, source, ["bad"], options);
  if (!options) await receive(connection, source, 1, {}, () => new Nack());
  console.log((await receive(connection, target, 1))[0].properties.headers["x-death"][0].reason);
}

run({
  async prefetch() {
    const got = [];
    let release;
    const held = new Promise((resolve) => (release = resolve));
    const handle = (body) => got.push(body) && held; // the module acks when this promise is fulfilled
    const connection = await start({ prefetchCount: 3, queues: [queue("prefetch")] }, [[RabbitSubscribe({ queue: "prefetch" }), handle]]);
    await send(connection, "prefetch", "0123456789");
    while (got.length < 3) await sleep(5);
    console.log((await connection.managedChannel.checkQueue("prefetch")).messageCount);
    release();
    while (got.length < 6) await sleep(5);
    console.log(got.slice(3, 6).join("\n"));
  },
  async requeue() {
    const connection = await start({ prefetchCount: 1, queues: [queue("requeue")] });
    await send(connection, "requeue", "123");
    const answers = { 1: () => new Nack(false), 2: () => {}, 3: () => {} };
    const again = ({ content, fields }) => (fields.redelivered ? answers[content]() : new Nack(true));
    const got = await receive(connection, "requeue", 6, {}, again);
    for (const { content, fields } of got) if (fields.redelivered) console.log(`${content} ${fields.redelivered}`);
    await sleep(100);
    console.log((await connection.managedChannel.checkQueue("requeue")).messageCount);
  },
  async cancel() {
    const handle = async () => console.log("delivered");
    const connection = await start({ queues: [queue("cancel")] }, [[RabbitSubscribe({ queue: "cancel" }), handle]]);
    for (const tag of connection.consumerTags) await connection.cancelConsumer(tag);
    await send(connection, "cancel", ["stays"]);
    console.log((await connection.managedChannel.checkQueue("cancel")).messageCount);
  },
  "broker-cancel": notOffered("the module does not report it"),
  "dead-letter": () => deadLetter("rejecting", "dead"),
  "message-ttl": () => deadLetter("ttl", "expired", { expiration: 50 }),
  async priority() {
    const connection = await start({ queues: [queue("priority", { maxPriority: 5 })] });
    for (const priority of [1, 5, 3]) await send(connection, "priority", [`${priority}`], { priority });
    print(await receive(connection, "priority", 3));
  },
  async delayed() {
    const exchanges = [{ name: "delayed", type: "x-delayed-message", options: { arguments: { "x-delayed-type": "fanout" } } }];
    const bound = { name: "delayed", exchange: "delayed", routingKey: "" };
    const connection = await start({ exchanges, queues: [bound] });
    await connection.publish("delayed", "", "late", { headers: { "x-delay": 1000 } });
    await connection.publish("delayed", "", "soon", { headers: { "x-delay": 1 } });
    print(await receive(connection, "delayed", 2));
  },
});
