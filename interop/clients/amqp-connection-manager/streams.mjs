// amqp-connection-manager: streams.
import { print, receive, run, send, withQueue } from "./common.mjs";

async function stream(name, options) {
  const channel = await withQueue(name, { arguments: { "x-queue-type": "stream" } });
  for (let n = 0; n < 10; n++) await send(channel, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  print(await receive(channel, name, 5, { prefetch: 10, arguments: options }));
}

run({
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
});
