// amqplib: publishing.
import assert from "node:assert/strict";
import { once } from "node:events";
import { receive, run, send } from "./common.mjs";

const crossing = { text: "grüße", number: 42, yes: true, array: [1, "two"], table: { a: "b" } };
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

async function confirm(connection, queue, count) {
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(queue);
  for (let n = 0; n < count; n++) send(channel, queue, [`${n}`], { persistent: true });
  await channel.waitForConfirms();
  console.log((await channel.purgeQueue(queue)).messageCount);
}

run({
  confirm: (_channel, connection) => confirm(connection, "confirmed", 1),
  "confirm-batch": (_channel, connection) => confirm(connection, "batch", 1000),
  async mandatory(channel) {
    channel.publish("", "nowhere", Buffer.from("lost"), { mandatory: true });
    const [message] = await once(channel, "return");
    console.log(message.fields.replyCode);
  },
  tx: () => console.log("not offered: amqplib has no transactions"),
  async headers(channel) {
    const sent = {
      ...{ text: "grüße", yes: true, no: false, nothing: null, int: -5, long: 2 ** 40, double: 1.5 },
      ...{ array: [1, "two", { three: 3 }], table: { a: { b: "c" } }, bytes: Buffer.from([0, 255]) },
      ...{ byte: { "!": "byte", value: -8 }, short: { "!": "short", value: -16 }, float: { "!": "float", value: 2.5 } },
      ...{ time: { "!": "timestamp", value: 1767323045 }, decimal: { "!": "decimal", value: { digits: 314, places: 2 } } },
    };
    await channel.assertQueue("headers");
    send(channel, "headers", [""], { headers: sent });
    const [{ properties }] = await receive(channel, "headers", 1);
    assert.deepEqual(properties.headers, { ...sent, byte: -8, short: -16, float: 2.5 });
    console.log("pass");
  },
  async bodies(channel) {
    await channel.assertQueue("bodies");
    for (const size of [0, 1, 131_064, 131_065, 1 << 20, 16 << 20]) {
      const body = Buffer.alloc(size, "x");
      send(channel, "bodies", [body]);
      const message = await channel.get("bodies", { noAck: true });
      console.log(message.content.equals(body) && size);
    }
  },
  async write(channel) {
    await channel.assertQueue("crossing", { durable: false });
    send(channel, "crossing", [bytes], { contentType: "text/plain", messageId: "7", headers: crossing });
    await channel.close(); // sends what is buffered
    console.log("pass");
  },
  async read(channel) {
    const [{ content, properties }] = await receive(channel, "crossing", 1);
    assert.deepEqual([content, properties.headers], [bytes, crossing]);
    assert.deepEqual([properties.contentType, properties.messageId], ["text/plain", "7"]);
    console.log("pass");
  },
});
