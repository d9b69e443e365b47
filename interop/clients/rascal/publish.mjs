// rascal: publishing.
import assert from "node:assert/strict";
import { once } from "node:events";
import { notOffered, publish, receive, run, send, start } from "./common.mjs";

const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

const without = ({ rascal, ...headers }) => headers; // rascal adds a header to each delivery

async function confirm(queue, count) {
  const broker = await start({ queues: [queue] });
  await Promise.all(Array.from({ length: count }, (_, n) => publish(broker, queue, `${n}`)));
  console.log((await receive(broker, queue, count)).length);
}

run({
  confirm: () => confirm("confirmed", 1),
  "confirm-batch": () => confirm("batch", 1000),
  async mandatory() {
    const broker = await start({ exchanges: [""] });
    const publication = await broker.publish("v/", "lost", "nowhere"); // mandatory by default
    const [message] = await once(publication, "return");
    console.log(message.fields.replyCode);
  },
  tx: notOffered("amqplib has no transactions"),
  async headers() {
    const headers = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, time: { "!": "timestamp", value: 1767323045 } },
    };
    const broker = await start({ queues: ["headers"] });
    await send(broker, "headers", [""], { headers });
    assert.deepEqual(without((await receive(broker, "headers", 1))[0].properties.headers), headers);
    console.log("pass");
  },
  async bodies() {
    const broker = await start({ queues: ["bodies"] });
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      await send(broker, "bodies", [body]);
      console.log((await receive(broker, "bodies", 1))[0].content.equals(body) && size);
    }
  },
  async write() {
    const broker = await start({ queues: { crossing: { options: { durable: false } } } });
    await send(broker, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    console.log("pass");
  },
  async read() {
    const broker = await start({ queues: { crossing: { assert: false } } });
    const [{ content, properties }] = await receive(broker, "crossing", 1);
    assert.deepEqual([content, without(properties.headers)], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
});
