// cloudamqp-client: publishing.
import assert from "node:assert/strict";
import { print, printCount, receive, run, send } from "./common.mjs";

const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

async function confirm(channel, queue, count) {
  await channel.queueDeclare(queue);
  await channel.confirmSelect();
  const publish = (_, n) => channel.basicPublish("", queue, `${n}`, { deliveryMode: 2 });
  await Promise.all(Array.from({ length: count }, publish));
  await printCount(channel, queue);
}

run({
  confirm: (channel) => confirm(channel, "confirmed", 1),
  "confirm-batch": (channel) => confirm(channel, "batch", 1000),
  async mandatory(channel) {
    const returned = new Promise((resolve) => (channel.onReturn = resolve));
    await channel.basicPublish("", "nowhere", "lost", {}, true);
    console.log((await returned).replyCode);
  },
  async tx(channel) {
    await channel.queueDeclare("tx");
    await channel.txSelect();
    await send(channel, "tx", ["no"]);
    await channel.txRollback();
    await send(channel, "tx", ["yes"]);
    await channel.txCommit();
    print(await receive(channel, "tx", 1));
  },
  async headers(channel) {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, float: 1.5, double: 2 ** 40 + 0.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: new Uint8Array([0, 255]) },
      time: new Date(1_767_323_045_000),
    };
    await channel.queueDeclare("headers");
    await send(channel, "headers", [""], { headers });
    const [message] = await receive(channel, "headers", 1);
    assert.deepEqual(message.properties.headers, headers);
    console.log("pass");
  },
  async bodies(channel) {
    await channel.queueDeclare("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await send(channel, "bodies", [body]);
      const message = await channel.basicGet("bodies");
      console.log(body.equals(message.body ?? Buffer.alloc(0)) && message.bodySize);
    }
  },
  async write(channel) {
    await channel.queueDeclare("crossing", { durable: false });
    await send(channel, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read(channel) {
    const [{ body, properties }] = await receive(channel, "crossing", 1);
    assert.deepEqual([Buffer.from(body), properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
});
