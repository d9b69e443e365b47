// nestjs-rabbitmq: publishing.
import assert from "node:assert/strict";
import { once } from "node:events";
import { name, notOffered, queue, receive, run, send, start } from "./common.mjs";

const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

async function confirm(name, count) {
  const connection = await start({ queues: [queue(name)] });
  await Promise.all(Array.from({ length: count }, (_, n) => connection.publish("", name, `${n}`, { persistent: true })));
  console.log((await receive(connection, name, count)).length);
}

run({
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const connection = await start({});
    const returned = once(connection.channel, "return");
    await connection.publish("", "nowhere", "lost", { mandatory: true });
    console.log((await returned)[0].fields.replyCode);
  },
  tx: notOffered("amqplib has no transactions"),
  async headers() {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, time: { "!": "timestamp", value: 1767323045 } },
    };
    const connection = await start({ queues: [queue("headers")] });
    await send(connection, "headers", [""], { headers });
    assert.deepEqual((await receive(connection, "headers", 1))[0].properties.headers, headers);
    console.log("pass");
  },
  async bodies() {
    const sizes = [0, 1, 131_064, 131_065, 1 << 20, 16 << 20];
    const connection = await start({ queues: [queue("bodies")] });
    for (const size of sizes) await send(connection, "bodies", [Buffer.alloc(size, "x")]);
    const got = await receive(connection, "bodies", sizes.length);
    for (const [n, { content }] of got.entries()) console.log(content.equals(Buffer.alloc(sizes[n], "x")) && content.length);
  },
  async write() {
    const connection = await start({ queues: [queue("crossing", { durable: false })] });
    await send(connection, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read() {
    const [{ content, properties }] = await receive(await start({}), "crossing", 1);
    assert.deepEqual([content, properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
});
