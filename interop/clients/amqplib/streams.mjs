// amqplib: streams.
import { print, receive, run, send } from "./common.mjs";

async function stream(channel, name, options) {
  await channel.assertQueue(name, { arguments: { "x-queue-type": "stream" } });
  for (let n = 0; n < 10; n++) send(channel, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  await channel.prefetch(10);
  print(await receive(channel, name, 5, { arguments: options }));
}

run({
  "stream-offset": (channel) => stream(channel, "stream", { "x-stream-offset": 5 }),
  "stream-filter": (channel) => stream(channel, "filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
});
