/* rabbitmq-c: queues, exchanges and bindings. */
#include "common.h"

static void declare(void) {
  amqp_bytes_t name = declare_queue("declared", true, NO_ARGUMENTS);
  DO(amqp_exchange_declare(c, CHANNEL, name, STR("topic"), 0, 1, 0, 0, NO_ARGUMENTS));
  bind_queue(name, "declared", "#");
  publish("declared", "key", STR("1"), NULL);
  DO(amqp_queue_declare(c, CHANNEL, name, 1, 0, 0, 0, NO_ARGUMENTS));
  DO(amqp_exchange_declare(c, CHANNEL, name, STR("topic"), 1, 0, 0, 0, NO_ARGUMENTS));
  printf("%d\n", purge("declared"));
  DO(amqp_queue_unbind(c, CHANNEL, name, name, STR("#"), NO_ARGUMENTS));
  DO(amqp_exchange_delete(c, CHANNEL, name, 0));
  DO(amqp_queue_delete(c, CHANNEL, name, 0, 0));
}

static void missing(void) {
  amqp_queue_declare(c, CHANNEL, STR("missing"), 1, 0, 0, 0, NO_ARGUMENTS);
  show_refusal(amqp_get_rpc_reply(c));
  check(amqp_send_method(c, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &(amqp_channel_close_ok_t){0}));
  open_channel(CHANNEL);
  hello();
}

static void inequivalent(void) {
  declare_queue("inequivalent", true, NO_ARGUMENTS);
  declare_queue("inequivalent", false, NO_ARGUMENTS);
}

static void float_argument(void) {
  declare_queue("float", false, TABLE(FIELD("x-max-length", I32, i32, 10)));
  declare_queue("float", false, TABLE(FIELD("x-max-length", I64, i64, 10)));
  declare_queue("float", false, TABLE(FIELD("x-max-length", F64, f64, 10)));
}

static void queue_ttl(void) {
  amqp_bytes_t queue = declare_queue("leased", false, TABLE(FIELD("x-expires", I32, i32, 100)));
  for (;; nap(50)) bind_queue(queue, "amq.fanout", ""); /* a bind does not renew the lease */
}

static void policy(void) {
  declare_queue("limited", false, NO_ARGUMENTS);
  send_digits("limited", 4);
  printf("%d\n", purge("limited"));
}

const Scenario TOPOLOGY[] = {
    {"declare", declare}, {"missing", missing}, {"inequivalent", inequivalent}, {"float-argument", float_argument},
    {"queue-ttl", queue_ttl}, {"policy", policy}, {0},
};
