// rascal: queues, exchanges and bindings.
import assert from "node:assert/strict";
import { hello, notOffered, receive, run, send, start } from "./common.mjs";

run({
  declare: notOffered("rascal declares by its configuration: it has no unbind, and a purge returns no count"),
  async missing() {
    await start({ queues: { missing: { assert: false, check: true } } }).catch((error) => console.log(error.message));
    await hello();
  },
  async inequivalent() {
    await start({ queues: { inequivalent: { options: { durable: true } } } });
    await start({ queues: { inequivalent: { options: { durable: false } } } });
  },
  async "float-argument"() {
    await start({ queues: { float: { options: { maxLength: 10 } } } });
    await start({ queues: { float: { options: { arguments: { "x-max-length": { "!": "double", value: 10 } } } } } });
  },
  async "queue-ttl"() {
    await start({ queues: { leased: { options: { expires: 100 } } } });
    const bound = { exchanges: { "amq.fanout": { assert: false } }, queues: { leased: { assert: false } } };
    for (;;) await start({ ...bound, bindings: ["amq.fanout -> leased"] }); // a bind does not renew the lease
  },
  async policy() {
    const broker = await start({ queues: ["limited"] });
    await send(broker, "limited", "1234");
    const got = await receive(broker, "limited", 2);
    assert.equal(got.map(({ content }) => content).join(""), "34");
    console.log(got.length);
  },
});
