// rascal: consuming.
import assert from "node:assert/strict";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { consume, print, publish, receive, run, send, start } from "./common.mjs";

async function deadLetter(source, target, options) {
  const dead = { deadLetterExchange: "", deadLetterRoutingKey: target };
  const broker = await start({ queues: { [target]: {}, [source]: { options: dead } } });
  await send(broker, source, ["bad"], options);
  if (!options) await consume(broker, source, (_message, _content, ackOrNack) => ackOrNack(new Error(), { strategy: "nack" }));
  console.log((await receive(broker, target, 1))[0].properties.headers["x-death"][0].reason);
}

run({
  async prefetch() {
    const broker = await start({ queues: ["prefetch"] });
    await send(broker, "prefetch", "0123456789");
    const got = [];
    await consume(broker, "prefetch", (...delivery) => got.push(delivery), { prefetch: 3 });
    while (got.length < 3) await sleep(5);
    await sleep(200);
    assert.equal(got.length, 3); // rascal does not show how many are left in the queue
    for (const [, , ackOrNack] of [...got]) ackOrNack();
    while (got.length < 6) await sleep(5);
    assert.equal(got.map(([, content]) => content).join(""), "012345");
    console.log("pass");
  },
  async requeue() {
    const broker = await start({ queues: ["requeue"] });
    await send(broker, "requeue", "123");
    const got = [];
    await consume(broker, "requeue", (...delivery) => got.push(delivery), { prefetch: 3 });
    while (got.length < 3) await sleep(5);
    got[2][2](new Error(), { strategy: "nack", all: true, requeue: true });
    while (got.length < 6) await sleep(5);
    assert.deepEqual(got.slice(3).map(([{ fields }, content]) => content + fields.redelivered), ["1true", "2true", "3true"]);
    got[3][2](new Error(), { strategy: "nack" });
    got[4][2]();
    got[5][2]();
    await send(broker, "requeue", "4");
    while (got.length < 7) await sleep(5);
    assert.equal(got[6][1], "4"); // 1 is gone
    console.log("pass");
  },
  async cancel() {
    const broker = await start({ queues: ["cancel"] });
    const subscription = await consume(broker, "cancel", () => console.log("delivered"));
    await subscription.cancel();
    await send(broker, "cancel", ["stays"]);
    console.log((await receive(broker, "cancel", 1)).length);
  },
  async "broker-cancel"() {
    const broker = await start({ queues: ["cancelled"] });
    const subscription = await consume(broker, "cancelled", () => {});
    const cancelled = once(subscription, "cancelled");
    await (await start({ queues: ["cancelled"] })).nuke(); // deletes what its configuration names
    console.log(/cancelled by the broker/.test((await cancelled)[0].message) && "cancelled");
  },
  "dead-letter": () => deadLetter("rejecting", "dead"),
  "message-ttl": () => deadLetter("ttl", "expired", { expiration: 50 }),
  async priority() {
    const broker = await start({ queues: { priority: { options: { maxPriority: 5 } } } });
    for (const priority of [1, 5, 3]) await send(broker, "priority", [`${priority}`], { priority });
    print(await receive(broker, "priority", 3));
  },
  async delayed() {
    const exchange = { type: "x-delayed-message", options: { arguments: { "x-delayed-type": "fanout" } } };
    const broker = await start({ exchanges: { delay: exchange }, queues: ["delayed"], bindings: ["delay -> delayed"] });
    const delay = (body, ms) => publish(broker, "delay", body, { options: { headers: { "x-delay": ms } } });
    await delay("late", 1000);
    await delay("soon", 1);
    print(await receive(broker, "delayed", 2));
  },
});
