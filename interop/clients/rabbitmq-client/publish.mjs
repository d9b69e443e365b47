// rabbitmq-client: publishing.
import assert from "node:assert/strict";
import { once } from "node:events";
import { consume, print, printCount, rabbit, run } from "./common.mjs";

const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

async function confirm(queue, count) {
  const publisher = rabbit.createPublisher({ confirm: true, queues: [{ queue, durable: true }] });
  const send = (_, n) => publisher.send({ routingKey: queue, durable: true }, `${n}`);
  await Promise.all(Array.from({ length: count }, send));
  await printCount(rabbit, queue);
}

run({
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const publisher = rabbit.createPublisher();
    const returned = once(publisher, "basic.return");
    await publisher.send({ routingKey: "nowhere", mandatory: true }, "lost");
    console.log((await returned)[0].replyCode);
  },
  async tx() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("tx");
    await channel.txSelect();
    await channel.basicPublish("tx", "no");
    await channel.txRollback();
    await channel.basicPublish("tx", "yes");
    await channel.txCommit();
    print(await consume({ queue: "tx" }, 1, []));
  },
  async headers() {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, byte: -5, short: 300, int: -70_000, long: 2 ** 40 },
      ...{ double: 1.5, array: [1, "two", { three: 3 }], table: { a: { b: "c" } } },
    };
    const [message] = await consume({ queue: "headers" }, 1, [[{ routingKey: "headers", headers }, ""]]);
    assert.deepEqual(message.headers, headers);
    console.log("pass");
  },
  async bodies() {
    const channel = await rabbit.acquire();
    await channel.queueDeclare("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await channel.basicPublish("bodies", body);
      console.log((await channel.basicGet({ queue: "bodies", noAck: true })).body.equals(body) && size);
    }
  },
  async write() {
    const publisher = rabbit.createPublisher({ confirm: true, queues: [{ queue: "crossing" }] });
    const properties = { contentType: "text/plain", messageId: "7", headers: crossing };
    await publisher.send({ routingKey: "crossing", ...properties }, bytes);
    console.log("pass");
  },
  async read() {
    const [message] = await consume({ queue: "crossing" }, 1, []);
    assert.deepEqual([message.headers, message.contentType, message.messageId], [crossing, "text/plain", "7"]);
    assert.equal(message.body, bytes.toString()); // text/plain arrives as a string
    console.log("pass");
  },
});
