// amqp-connection-manager: connections.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { connection, hello, open, print, receive, run, send, withQueue } from "./common.mjs";

run({
  connect: hello,
  "bad-password": () => open(),
  "bad-vhost": () => open(),
  tls: hello,
  "client-certificate": hello,
  heartbeat: () => open().then(() => sleep(4000)).then(hello),
  async channels() {
    const channel = await withQueue("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => open()));
    for (const each of opened) await send(each, "channels", ["x"]);
    console.log((await receive(channel, "channels", 100)).length);
  },
  async blocked() {
    connection.on("blocked", ({ reason }) => console.log(`${reason}\nready`)); // the runner ends the alarm
    const unblocked = once(connection, "unblocked");
    await Promise.all([unblocked, send(await open(), "nowhere", ["held"])]);
    console.log("unblocked");
  },
  async reconnect() {
    const channel = await withQueue("kept");
    await channel.sendToQueue("kept", "kept", { persistent: true });
    await new Promise((done) =>
      channel.consume("kept", (message) => {
        if (message.fields.redelivered) done(print([message])); // the wrapper connected and subscribed again by itself
        else console.log("ready"); // the runner kills the broker and starts it again
      }),
    );
  },
});
