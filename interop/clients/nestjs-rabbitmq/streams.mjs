// nestjs-rabbitmq: streams.
import { name, print, queue, receive, run, send, start } from "./common.mjs";

async function stream(name, consumed) {
  const connection = await start({ queues: [queue(name, { arguments: { "x-queue-type": "stream" } })] });
  for (let n = 0; n < 10; n++) await send(connection, name, [`${n}`], { headers: { "x-stream-filter-value": n % 2 ? "odd" : "even" } });
  print(await receive(connection, name, 5, { queueOptions: { consumerOptions: { arguments: consumed } } }));
}

run({
  "stream-offset": () => stream("stream", { "x-stream-offset": 5 }),
  "stream-filter": () => stream("filtered", { "x-stream-offset": "first", "x-stream-filter": "odd" }),
});
