// rabbitmq-client: streams.
import { late, print, run } from "./common.mjs";

async function stream(queue, options) {
  const declared = { durable: true, arguments: { "x-queue-type": "stream" } };
  const filter = (n) => ({ headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  const messages = Array.from({ length: 10 }, (_, n) => [filter(n), `${n}`]);
  print((await late(queue, declared, messages, 5, { arguments: options, qos: { prefetchCount: 10 } })).slice(0, 5));
}

run({
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
});
