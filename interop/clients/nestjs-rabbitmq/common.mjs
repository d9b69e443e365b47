// @golevelup/nestjs-rabbitmq, over amqp-connection-manager: what the programs of this folder share. An application's module
// declares, decorated methods of a service receive, AmqpConnection publishes.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.NODE_PATH}/`);
require("reflect-metadata");
const { Module } = require("@nestjs/common");
const { NestFactory } = require("@nestjs/core");
const { AmqpConnection, RabbitMQModule, ...decorators } = require("@golevelup/nestjs-rabbitmq");
export const { Nack, RabbitRPC, RabbitSubscribe } = decorators;

const { AMQP_URL: uri, CA_FILE: ca, CERT_FILE: cert, NODE_PATH } = process.env;
const tls = ca && { ca: [readFileSync(ca)], ...(cert && { cert: readFileSync(cert), key: readFileSync(cert) }) };
export const name = process.argv[2];

// The module logs errors, and waits for the broker. This program prints the first one and ends.
const logger = {
  ...{ log() {}, warn() {}, debug() {} },
  error(message, stack = "") {
    if (name === "reconnect") return;
    console.log(name === "bad-vhost" && /ConnectionClose/.test(stack) ? "pass" : `${message} ${stack}`.split("\n")[0]);
    process.exit(0);
  },
};

// Starts an application. handlers: decorator and function for each method of its service.
export async function start(config, handlers = []) {
  class Service {}
  for (const [n, [decorate, handle]] of handlers.entries()) {
    const key = `handle${n}`;
    Object.defineProperty(Service.prototype, key, { value: handle, configurable: true, writable: true });
    decorate(Service.prototype, key, Object.getOwnPropertyDescriptor(Service.prototype, key));
  }
  const connectionManagerOptions = {
    heartbeatIntervalInSeconds: name === "heartbeat" ? 1 : 5,
    reconnectTimeInSeconds: 0.1,
    connectionOptions: tls,
  };
  const json = { deserializer: (content) => content.toString(), serializer: (body) => Buffer.from(body) }; // default: JSON
  const connectionInitOptions = { timeout: 150_000 }; // default: 5 s
  const rabbit = RabbitMQModule.forRoot({ uri, logger, connectionInitOptions, connectionManagerOptions, ...json, ...config });
  class App {}
  Module({ imports: [rabbit], providers: [Service] })(App);
  const app = await NestFactory.createApplicationContext(App, { logger: false, abortOnError: false });
  return app.get(AmqpConnection);
}

export const queue = (name, options) => ({ name, options });
export const print = (messages) => messages.forEach(({ content }) => console.log(content.toString()));

export async function send(connection, queue, bodies, options) {
  for (const body of bodies) await connection.publish("", queue, body, options);
}

// The first messages of one more subscriber; what `answer` returns acks or nacks.
export async function receive(connection, queue, count, options = {}, answer = () => {}) {
  const got = [];
  const handle = async (_body, message) => got.push(message) && answer(message);
  await connection.createSubscriber(handle, { queue, createQueueIfNotExists: false, ...options }, "handle");
  while (got.length < count) await sleep(5);
  return got.slice(0, count);
}

export const notOffered = (reason) => async () => console.log(`not offered: ${reason}`);

// Does the scenario of the command line; what the broker refuses is printed.
export async function run(scenarios) {
  const version = async () =>
    console.log(JSON.parse(readFileSync(`${NODE_PATH}/node_modules/@golevelup/nestjs-rabbitmq/package.json`)).version);
  await { ...scenarios, version }[name]().catch((error) => console.log(error.message));
  process.exit(0);
}
