// amqplib: connections.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { connect, hello, print, receive, run, send } from "./common.mjs";

run({
  connect: hello,
  tls: hello,
  "client-certificate": hello,
  heartbeat: (channel) => sleep(4000).then(() => hello(channel)),
  async channels(channel, connection) {
    await channel.assertQueue("channels");
    const opened = await Promise.all(Array.from({ length: 100 }, () => connection.createChannel()));
    for (const each of opened) send(each, "channels", ["x"]);
    console.log((await receive(channel, "channels", 100)).length);
  },
  async blocked(channel, connection) {
    connection.on("blocked", (reason) => console.log(`${reason}\nready`)); // the runner ends the alarm
    send(channel, "nowhere", ["held"]);
    await once(connection, "unblocked");
    console.log("unblocked");
  },
  async reconnect(_channel, connection) {
    const channel = await connection.createConfirmChannel();
    const closed = new Promise((resolve) => connection.on("close", resolve));
    connection.on("error", () => {});
    await channel.assertQueue("kept");
    send(channel, "kept", ["kept"], { persistent: true });
    await channel.waitForConfirms();
    await receive(channel, "kept", 1, {});
    console.log("ready"); // the runner kills the broker and starts it again
    await closed;
    const read = async () => {
      const again = await connect(); // a broker that starts may close it again
      return Promise.race([once(again, "close"), again.createChannel().then((channel) => receive(channel, "kept", 1))]);
    };
    let kept;
    while (!kept) kept = await read().catch(() => sleep(100));
    print(kept);
  },
});
