// rascal: connections.
import { once } from "node:events";
import { consume, hello, notOffered, print, run, send, start } from "./common.mjs";

run({
  connect: () => hello(),
  "bad-password": () => hello(),
  "bad-vhost": () => hello(),
  tls: () => hello(),
  "client-certificate": () => hello(),
  heartbeat: () => hello("?heartbeat=1"),
  channels: notOffered("rascal opens channels itself, in pools"),
  async blocked() {
    const broker = await start({ exchanges: [""] });
    broker.on("blocked", (reason) => console.log(`${reason}\nready`)); // the runner ends the alarm
    const unblocked = once(broker, "unblocked");
    (await broker.publish("v/", "held", { routingKey: "nowhere", timeout: 0 })).on("error", () => {});
    await unblocked;
    console.log("unblocked");
  },
  async reconnect() {
    const broker = await start({ queues: ["kept"] });
    await send(broker, "kept", ["kept"]);
    await new Promise((done) =>
      consume(broker, "kept", (message) => {
        if (message.fields.redelivered) done(print([message])); // the broker connected and subscribed again by itself
        else console.log("ready"); // the runner kills the broker and starts it again
      }, { retry: { min: 100, max: 200, factor: 1 } }),
    );
  },
});
