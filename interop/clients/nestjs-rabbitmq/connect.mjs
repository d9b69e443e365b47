// nestjs-rabbitmq: connections.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { name, notOffered, print, queue, RabbitSubscribe, receive, run, send, start } from "./common.mjs";

async function connects() {
  const connection = await start({ queues: [queue("hello")] });
  if (name === "heartbeat") await sleep(4000);
  await send(connection, "hello", ["Hello World!"]);
  print(await receive(connection, "hello", 1));
}

run({
  connect: connects,
  "bad-password": connects,
  "bad-vhost": connects,
  tls: connects,
  "client-certificate": connects,
  heartbeat: connects,
  channels: notOffered("the application has the channels of its configuration"),
  async blocked() {
    const connection = await start({});
    connection.managedConnection.on("blocked", ({ reason }) => console.log(`${reason}\nready`)); // the runner ends the alarm
    await Promise.all([once(connection.managedConnection, "unblocked"), send(connection, "nowhere", ["held"])]);
    console.log("unblocked");
  },
  async reconnect() {
    let confirm, finish;
    const confirmed = new Promise((resolve) => (confirm = resolve));
    const finished = new Promise((resolve) => (finish = resolve));
    const handle = async (body, { fields }) => {
      if (fields.redelivered) return finish(console.log(body)); // the module connected and subscribed again by itself
      await confirmed; // a publish without its confirm fails when the connection is lost
      console.log("ready"); // the runner kills the broker and starts it again
      await new Promise(() => {});
    };
    const connection = await start({ queues: [queue("kept")] }, [[RabbitSubscribe({ queue: "kept" }), handle]]);
    confirm(await send(connection, "kept", ["kept"], { persistent: true }));
    await finished;
  },
});
