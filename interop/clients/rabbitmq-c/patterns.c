/* rabbitmq-c: the patterns of RabbitMQ's tutorials. */
#include "common.h"

static void work_queue(void) {
  declare_queue("tasks", true, NO_ARGUMENTS);
  DO(amqp_basic_qos(c, CHANNEL, 0, 1, 0));
  consume(STR("tasks"), "a", false, NO_ARGUMENTS);
  consume(STR("tasks"), "b", false, NO_ARGUMENTS);
  send_digits("tasks", 10);
  char done[11] = "";
  bool workers[2] = {false};
  for (int n = 0; n < 10; n++) {
    amqp_envelope_t envelope = next_message();
    char task = *(char *)envelope.message.body.bytes;
    done[task - '0'] = task;
    workers[*(char *)envelope.consumer_tag.bytes - 'a'] = true;
    check(amqp_basic_ack(c, CHANNEL, envelope.delivery_tag, 0));
  }
  printf("%s\n%d\n", done, workers[0] + workers[1]);
}

static amqp_bytes_t subscribe(const char *exchange, const char *type, const char *first_key, const char *second_key) {
  DO(amqp_exchange_declare(c, CHANNEL, STR(exchange), STR(type), 0, 0, 0, 0, NO_ARGUMENTS));
  amqp_bytes_t queue = declare_queue("", false, NO_ARGUMENTS);
  bind_queue(queue, exchange, first_key);
  bind_queue(queue, exchange, second_key);
  return queue;
}

static void publish_subscribe(void) {
  amqp_bytes_t first = subscribe("logs", "fanout", "", ""), second = subscribe("logs", "fanout", "", "");
  publish("logs", "", STR("log"), NULL);
  receive(first, 1);
  receive(second, 1);
}

static void routing(void) {
  amqp_bytes_t queue = subscribe("direct_logs", "direct", "warning", "error");
  const char *levels[] = {"info", "warning", "error"};
  for (int n = 0; n < 3; n++) publish("direct_logs", levels[n], STR(levels[n]), NULL);
  receive(queue, 2);
}

static void topics(void) {
  amqp_bytes_t queue = subscribe("topic_logs", "topic", "*.critical", "kern.#");
  const char *keys[] = {"kern.critical", "cron.info", "kern.a.b", "cron.critical"};
  for (int n = 0; n < 4; n++) publish("topic_logs", keys[n], STR(keys[n]), NULL);
  receive(queue, 3);
}

static int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

static void answer(amqp_message_t request) {
  char number[8] = {0}, result[8];
  memcpy(number, request.body.bytes, request.body.len);
  snprintf(result, sizeof result, "%d", fibonacci(atoi(number)));
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_CORRELATION_ID_FLAG};
  properties.correlation_id = request.properties.correlation_id;
  check(amqp_basic_publish(c, CHANNEL, STR(""), request.properties.reply_to, 0, 0, &properties, STR(result)));
}

static void ask(amqp_bytes_t reply_to) {
  declare_queue("rpc_queue", false, NO_ARGUMENTS);
  consume(STR("rpc_queue"), "server", true, NO_ARGUMENTS);
  consume(reply_to, "client", true, NO_ARGUMENTS);
  amqp_basic_properties_t question = {._flags = AMQP_BASIC_REPLY_TO_FLAG | AMQP_BASIC_CORRELATION_ID_FLAG};
  question.reply_to = reply_to;
  question.correlation_id = STR("1");
  publish("", "rpc_queue", STR("15"), &question);
  answer(next_message().message);
  amqp_message_t reply = next_message().message;
  printf("%.*s ", (int)reply.properties.correlation_id.len, (char *)reply.properties.correlation_id.bytes);
  show(reply.body);
}

static void rpc(void) { ask(declare_queue("", false, NO_ARGUMENTS)); }

static void direct_reply_to(void) { ask(STR("amq.rabbitmq.reply-to")); }

const Scenario PATTERNS[] = {
    {"work-queue", work_queue}, {"publish-subscribe", publish_subscribe}, {"routing", routing}, {"topics", topics},
    {"rpc", rpc}, {"direct-reply-to", direct_reply_to}, {0},
};
