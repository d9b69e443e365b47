// cloudamqp-client: connections.
import { setTimeout as sleep } from "node:timers/promises";
import { AMQPSession, hello, print, receive, run, send, url } from "./common.mjs";

run({
  connect: hello,
  tls: hello,
  "client-certificate": hello,
  heartbeat: (channel) => sleep(4000).then(() => hello(channel)),
  async channels(channel, connection) {
    await channel.queueDeclare("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => connection.channel()));
    for (const each of opened) await send(each, "channels", ["x"]);
    console.log((await receive(channel, "channels", 100)).length);
  },
  async blocked(channel, connection) {
    connection.onblocked = (reason) => console.log(`${reason}\nready`); // the runner ends the alarm
    const unblocked = new Promise((resolve) => (connection.onunblocked = resolve));
    await send(channel, "nowhere", ["held"]);
    await unblocked;
    console.log("unblocked");
  },
  async reconnect() {
    const session = await AMQPSession.connect(url, { reconnectInterval: 100 });
    const queue = await session.queue("kept");
    await queue.publish("kept");
    await new Promise((done) =>
      queue.subscribe({ manualAck: true }, (message) => {
        if (message.redelivered) done(print([message])); // the session connected and subscribed again by itself
        else console.log("ready"); // the runner kills the broker and starts it again
      }));
  },
});
