/* rabbitmq-c: acks, dead letters, priorities and delays. */
#include "common.h"

static void prefetch(void) {
  declare_queue("prefetch", false, NO_ARGUMENTS);
  send_digits("prefetch", 10);
  DO(amqp_basic_qos(c, CHANNEL, 0, 3, 0));
  consume(STR("prefetch"), "", false, NO_ARGUMENTS);
  uint64_t tag = 0;
  for (int n = 0; n < 3; n++) tag = next_message().delivery_tag;
  printf("%d\n", ready_count("prefetch"));
  check(amqp_basic_ack(c, CHANNEL, tag, 1));
  show_messages(3);
}

static void requeue(void) {
  amqp_message_t message;
  bool redelivered;
  uint64_t tags[3];
  declare_queue("requeue", false, NO_ARGUMENTS);
  const char *bodies[] = {"1", "2", "3"};
  for (int n = 0; n < 3; n++) send_text("requeue", bodies[n]);
  for (int n = 0; n < 3; n++) tags[n] = get("requeue", &message, &redelivered);
  check(amqp_basic_nack(c, CHANNEL, tags[2], 1, 1));
  for (int n = 0; n < 3; n++) {
    tags[n] = get("requeue", &message, &redelivered);
    printf("%.*s %s\n", (int)message.body.len, (char *)message.body.bytes, redelivered ? "true" : "false");
  }
  check(amqp_basic_reject(c, CHANNEL, tags[0], 0));
  check(amqp_basic_ack(c, CHANNEL, tags[2], 1));
  printf("%d\n", purge("requeue"));
}

static void cancel(void) {
  declare_queue("cancel", false, NO_ARGUMENTS);
  consume(STR("cancel"), "reader", true, NO_ARGUMENTS);
  DO(amqp_basic_cancel(c, CHANNEL, STR("reader")));
  send_text("cancel", "stays");
  printf("%d\n", purge("cancel"));
}

static void broker_cancel(void) {
  declare_queue("cancelled", false, NO_ARGUMENTS);
  consume(STR("cancelled"), "cancelled", true, NO_ARGUMENTS);
  open_channel(2);
  DO(amqp_queue_delete(c, 2, STR("cancelled"), 0, 0));
  amqp_basic_cancel_t *told = await_method(AMQP_BASIC_CANCEL_METHOD);
  printf("%.*s\n", (int)told->consumer_tag.len, (char *)told->consumer_tag.bytes);
}

static void declare_dead_lettering(const char *name, const char *target) {
  declare_queue(target, false, NO_ARGUMENTS);
  declare_queue(name, false, TABLE(FIELD("x-dead-letter-exchange", UTF8, bytes, STR("")),
                                   FIELD("x-dead-letter-routing-key", UTF8, bytes, STR(target))));
}

static void show_reason(const char *queue) {
  consume(STR(queue), "", true, NO_ARGUMENTS);
  amqp_array_t deaths = field(next_message().message.properties.headers, "x-death").value.array;
  show(field(deaths.entries[0].value.table, "reason").value.bytes);
}

static void dead_letter(void) {
  amqp_message_t message;
  bool redelivered;
  declare_dead_lettering("rejecting", "dead");
  send_text("rejecting", "bad");
  check(amqp_basic_reject(c, CHANNEL, get("rejecting", &message, &redelivered), 0));
  show_reason("dead");
}

static void message_ttl(void) {
  declare_dead_lettering("ttl", "expired");
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_EXPIRATION_FLAG, .expiration = STR("50")};
  publish("", "ttl", STR("short"), &properties);
  show_reason("expired");
}

static void priority(void) {
  declare_queue("priority", false, TABLE(FIELD("x-max-priority", I32, i32, 5)));
  const char *levels[] = {"1", "5", "3"};
  for (int n = 0; n < 3; n++) {
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_PRIORITY_FLAG, .priority = atoi(levels[n])};
    publish("", "priority", STR(levels[n]), &properties);
  }
  receive(STR("priority"), 3);
}

static void delayed(void) {
  amqp_table_t arguments = TABLE(FIELD("x-delayed-type", UTF8, bytes, STR("fanout")));
  DO(amqp_exchange_declare(c, CHANNEL, STR("delayed"), STR("x-delayed-message"), 0, 0, 0, 0, arguments));
  amqp_bytes_t queue = declare_queue("delayed", false, NO_ARGUMENTS);
  bind_queue(queue, "delayed", "");
  send_with_header("delayed", "", "late", (Entry)FIELD("x-delay", I32, i32, 1000));
  send_with_header("delayed", "", "soon", (Entry)FIELD("x-delay", I32, i32, 1));
  receive(queue, 2);
}

const Scenario CONSUME[] = {
    {"prefetch", prefetch}, {"requeue", requeue}, {"cancel", cancel}, {"broker-cancel", broker_cancel},
    {"dead-letter", dead_letter}, {"message-ttl", message_ttl}, {"priority", priority}, {"delayed", delayed}, {0},
};
