// rascal: streams.
import { print, receive, run, send, start } from "./common.mjs";

async function stream(queue, options) {
  const broker = await start({ queues: { [queue]: { options: { arguments: { "x-queue-type": "stream" } } } } });
  for (let n = 0; n < 10; n++) await send(broker, queue, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  print((await receive(broker, queue, 5, { prefetch: 10, options: { arguments: options } })).slice(0, 5));
}

run({
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
});
