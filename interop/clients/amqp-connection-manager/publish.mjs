// amqp-connection-manager: publishing.
import assert from "node:assert/strict";
import { notOffered, open, printCount, receive, run, send, withQueue } from "./common.mjs";

const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

async function confirm(queue, count) {
  const channel = await withQueue(queue);
  await send(channel, queue, Array.from({ length: count }, (_, n) => `${n}`), { persistent: true });
  await printCount(channel, queue);
}

run({
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const channel = await open(async (raw) => void raw.on("return", ({ fields }) => console.log(fields.replyCode)));
    await channel.sendToQueue("nowhere", "lost", { mandatory: true }); // the return comes before the confirm
  },
  tx: notOffered("amqplib has no transactions"),
  async headers() {
    const sent = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: Buffer.from([0, 255]) },
      time: { "!": "timestamp", value: 1767323045 },
    };
    const channel = await withQueue("headers");
    await send(channel, "headers", [""], { headers: sent });
    assert.deepEqual((await receive(channel, "headers", 1))[0].properties.headers, sent);
    console.log("pass");
  },
  async bodies() {
    const channel = await withQueue("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await send(channel, "bodies", [body]);
      console.log((await channel.get("bodies", { noAck: true })).content.equals(body) && size);
    }
  },
  async write() {
    const channel = await withQueue("crossing", { durable: false });
    await channel.sendToQueue("crossing", bytes, { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read() {
    const [{ content, properties }] = await receive(await open(), "crossing", 1);
    assert.deepEqual([content, properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
});
