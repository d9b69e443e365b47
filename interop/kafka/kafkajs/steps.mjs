// kafkajs: the steps of ../README.md, without zstd, which it does not have.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.NODE_PATH ?? process.cwd()}/`);
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require("kafkajs");
const LZ4 = require("kafkajs-lz4");
const Snappy = require("kafkajs-snappy");

CompressionCodecs[CompressionTypes.Snappy] = Snappy;
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec;
const CODECS = [CompressionTypes.None, CompressionTypes.GZIP, CompressionTypes.Snappy, CompressionTypes.LZ4];
const EACH = 200;
const TIME_MS = 1_700_000_000_000;

const { version } = require("kafkajs/package.json");
const [address, , records = "10000"] = process.argv.slice(2);
if (address === "version") {
  console.log(version);
  process.exit();
}
const { STEPS_CA: ca, STEPS_USER: username, STEPS_PASSWORD: password, STEPS_CROSSING: crossing } = process.env;
const login = ca ? { ssl: { ca: readFileSync(ca) }, sasl: { mechanism: "plain", username, password } } : {};
const kafka = new Kafka({ clientId: "steps", brokers: [address], logLevel: logLevel.NOTHING, ...login });
const admin = kafka.admin();
const topic = `kafkajs-${Date.now()}`;
const group = `group-${topic}`;
const failures = [];
let sent = 0;

function check(condition, text) {
  if (!condition) throw new Error(text);
}

async function step(name, run) {
  let ok = true;
  let detail;
  try {
    detail = await run();
  } catch (error) {
    ok = false;
    detail = String(error.stack);
    failures.push(name);
  }
  console.log(JSON.stringify({ step: name, ok, detail }));
}

async function until(what, condition) {
  const end = Date.now() + 60_000;
  while (!(await condition())) {
    check(Date.now() < end, `not within 60 s: ${what}`);
    await sleep(50);
  }
}

async function send(compression) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = Array.from({ length: EACH }, (_, i) => ({
    key: "key",
    value: `value ${sent + i}`,
    timestamp: String(TIME_MS + sent + i),
  }));
  const [answer] = await producer.send({ topic, acks: -1, compression, messages });
  check(answer.baseOffset === String(sent), `base offset ${answer.baseOffset}, sent ${sent}`);
  await producer.disconnect();
  sent += EACH;
}

// A member of a group; `partitions` are its current ones, `onMessage` is called in order.
async function join(name, from, onMessage) {
  const consumer = kafka.consumer({ groupId: name, heartbeatInterval: 500, sessionTimeout: 10_000, maxWaitTimeInMs: 200 });
  const member = { consumer, partitions: 0 };
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    member.partitions = Object.values(payload.memberAssignment).flat().length;
  });
  await consumer.connect();
  await consumer.subscribe({ topic: from, fromBeginning: true });
  await consumer.run({ autoCommitThreshold: 100, eachMessage: async ({ message }) => onMessage(message, consumer) });
  return member;
}

async function consumed(name, from, count, onStart = () => {}) {
  const got = [];
  const member = await join(name, from, (message) => got.push(message));
  onStart(member.consumer);
  await until(`${count} records`, () => got.length >= count);
  await member.consumer.disconnect();
  return got;
}

async function rebalance() {
  const got = [];
  let members = [];
  const add = async () => {
    members.push(await join(group, topic, (message) => got.push(message.offset)));
  };
  const balanced = async () => {
    const { groups } = await admin.describeGroups([group]);
    const partitions = members.reduce((sum, member) => sum + member.partitions, 0);
    return partitions === 1 && groups[0].state === "Stable" && groups[0].members.length === members.length;
  };
  await add();
  await until("one member", balanced);
  await add();
  await until("two members", balanced);
  await until("all records", () => got.length >= sent);
  const owner = members.find((member) => member.partitions === 1);
  members = members.filter((member) => member !== owner);
  await owner.consumer.disconnect();
  await until("the other member has the partition", balanced);
  await add();
  await until("two members again", balanced);
  await send(CompressionTypes.None);
  await until("the records sent meanwhile", () => got.length >= sent);
  for (const member of members) await member.consumer.disconnect();
  check(got.every((offset, i) => Number(offset) === i) && got.length === sent, `${got.length} records`);
  return `3 members, ${got.length} records`;
}

async function resume() {
  await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: "321" }] });
  const [first] = await consumed(group, topic, 1);
  check(first.offset === "321", `begins at ${first.offset}`);
  return "from 321";
}

async function seek() {
  const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, TIME_MS + 777);
  check(offset === "777", `offset ${offset}`);
  const got = await consumed(`${group}-seek`, topic, 1, (consumer) => consumer.seek({ topic, partition: 0, offset }));
  const first = got.find((message) => message.offset === offset) ?? got[0];
  check(Number(first.timestamp) === TIME_MS + 777, `timestamp ${first.timestamp}`);
  return "777";
}

async function describe() {
  check((await admin.listTopics()).includes(topic), "the topic is listed");
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
  check(topics[0].partitions.length === 1, JSON.stringify(topics));
  check((await admin.listGroups()).groups.some(({ groupId }) => groupId === group), "the group is listed");
  const { groups } = await admin.describeGroups([group]);
  check(groups[0].state === "Empty", groups[0].state);
  await admin.deleteGroups([group, `${group}-seek`]);
  return JSON.stringify(await admin.describeCluster());
}

async function headers() {
  const name = `${topic}-headers`;
  await admin.createTopics({ topics: [{ topic: name, numPartitions: 1 }] });
  const producer = kafka.producer();
  await producer.connect();
  const sent = { text: ["x", "again"], empty: "" };
  const messages = [{ key: "key", value: "value", headers: sent }, { value: "" }, { key: "deleted", value: null }];
  await producer.send({ topic: name, messages });
  await producer.disconnect();
  const got = await consumed(`${group}-headers`, name, 3);
  const found = JSON.stringify(got[0].headers, (_, value) =>
    value?.type === "Buffer" ? Buffer.from(value.data).toString() : value);
  check(found === JSON.stringify(sent), found);
  check(got[1].key === null && got[1].value.length === 0, "a record without key");
  check(got[2].key.toString() === "deleted" && got[2].value === null, "a record without value");
  await admin.deleteGroups([`${group}-headers`]);
  await admin.deleteTopics({ topics: [name] });
  return "3 records";
}

async function transactions() {
  const name = `${topic}-transactions`;
  await admin.createTopics({ topics: [{ topic: name, numPartitions: 1 }] });
  const producer = kafka.producer({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (const value of ["no", "yes"]) {
    const transaction = await producer.transaction();
    await transaction.send({ topic: name, messages: [{ value }] });
    await (value === "yes" ? transaction.commit() : transaction.abort());
  }
  await producer.disconnect();
  const [first] = await consumed(`${group}-transactions`, name, 1);
  check(first.value.toString() === "yes", first.value.toString());
  await admin.deleteGroups([`${group}-transactions`]);
  await admin.deleteTopics({ topics: [name] });
  return "one of two";
}

async function configs() {
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const value = "3600000";
  const configEntries = [{ name: "retention.ms", value }];
  await admin.alterConfigs({ resources: [{ ...resource, configEntries }] });
  await until("the config", async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource] });
    const found = resources[0].configEntries.find(({ configName }) => configName === "retention.ms");
    return found.configValue === value;
  });
  return value;
}

async function fromAmqp() {
  const got = await consumed(`${group}-amqp`, crossing, 10);
  got.forEach((message, i) => check(message.value.toString() === `from amqp ${i}`, `message ${i}`));
  await admin.deleteGroups([`${group}-amqp`]);
  return "10 records";
}

async function toAmqp() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = Array.from({ length: 10 }, (_, i) => ({ value: `from kafka ${i}` }));
  const [{ baseOffset }] = await producer.send({ topic: crossing, messages });
  await producer.disconnect();
  check(baseOffset === "10", `base offset ${baseOffset}`);
  return "10 records";
}

async function many(count) {
  const name = `${topic}-many`;
  await admin.createTopics({ topics: [{ topic: name, numPartitions: 1 }] });
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  let start = Date.now();
  for (let first = 0; first < count; first += 1000) {
    const messages = Array.from({ length: Math.min(1000, count - first) }, (_, i) => ({
      value: String(first + i).padStart(100, "0"),
    }));
    await producer.send({ topic: name, messages });
  }
  const inS = (Date.now() - start) / 1000;
  await producer.disconnect();
  start = Date.now();
  const got = await consumed(`${group}-many`, name, count);
  const outS = (Date.now() - start) / 1000;
  got.forEach((message, i) => check(Number(message.offset) === i && Number(message.value) === i, `record ${i}`));
  await admin.deleteTopics({ topics: [name] });
  return `${count} records: ${Math.round(count / inS)}/s in, ${Math.round(count / outS)}/s out`;
}

await admin.connect();
await step("create", async () => {
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] });
  return topic;
});
await step("produce", async () => {
  for (const codec of CODECS) await send(codec);
  await send(CompressionTypes.None);
  return `${sent} records`;
});
await step("consume", async () => {
  const got = await consumed(`${group}-all`, topic, sent);
  got.forEach((message, i) => {
    check(message.offset === String(i) && message.value.toString() === `value ${i}`, `record ${i}`);
    check(Number(message.timestamp) === TIME_MS + i, `timestamp of record ${i}`);
  });
  await admin.deleteGroups([`${group}-all`]);
  return `${got.length} records`;
});
await step("headers", headers);
await step("rebalance", rebalance);
await step("resume", resume);
await step("seek", seek);
await step("transactions", transactions);
await step("describe", describe);
await step("configs", configs);
if (crossing) {
  await step("from-amqp", fromAmqp);
  await step("to-amqp", toAmqp);
}
await step("delete", async () => {
  await admin.deleteTopics({ topics: [topic] });
  check(!(await admin.listTopics()).includes(topic), "the topic is gone");
  return topic;
});
await step("many", () => many(Number(records)));
console.log(JSON.stringify({ step: "share", ok: null, detail: "the client has no share groups" }));
await admin.disconnect();
process.exit(failures.length === 0 ? 0 : 1);
