#include "common.h"
#include <time.h>

amqp_connection_state_t c;

bool show_refusal(amqp_rpc_reply_t reply) {
  if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION) return false;
  amqp_channel_close_t *close = reply.reply.decoded; /* connection.close begins with the same fields */
  printf("%d %.*s\n", close->reply_code, (int)close->reply_text.len, (char *)close->reply_text.bytes);
  return true;
}

void succeed(amqp_rpc_reply_t reply) {
  if (show_refusal(reply)) exit(0);
  if (reply.reply_type != AMQP_RESPONSE_NORMAL) check(reply.library_error);
}

void check(int status) {
  if (status == AMQP_STATUS_OK) return;
  printf("Error: %s\n", amqp_error_string2(status));
  exit(1);
}

void open_channel(int number) { DO(amqp_channel_open(c, number)); }

void nap(long ms) {
  struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

amqp_bytes_t declare_queue(const char *name, bool durable, amqp_table_t arguments) {
  amqp_queue_declare_ok_t *declared = amqp_queue_declare(c, CHANNEL, STR(name), 0, durable, !*name, 0, arguments);
  succeed(amqp_get_rpc_reply(c));
  return amqp_bytes_malloc_dup(declared->queue);
}

int ready_count(const char *queue) {
  amqp_queue_declare_ok_t *declared = amqp_queue_declare(c, CHANNEL, STR(queue), 1, 0, 0, 0, NO_ARGUMENTS);
  succeed(amqp_get_rpc_reply(c));
  return declared->message_count;
}

int purge(const char *queue) {
  amqp_queue_purge_ok_t *purged = amqp_queue_purge(c, CHANNEL, STR(queue));
  succeed(amqp_get_rpc_reply(c));
  return purged->message_count;
}

void bind_queue(amqp_bytes_t queue, const char *exchange, const char *key) {
  DO(amqp_queue_bind(c, CHANNEL, queue, STR(exchange), STR(key), NO_ARGUMENTS));
}

void publish(const char *exchange, const char *key, amqp_bytes_t body, const amqp_basic_properties_t *properties) {
  check(amqp_basic_publish(c, CHANNEL, STR(exchange), STR(key), 0, 0, properties, body));
}

void send_text(const char *queue, const char *body) {
  publish("", queue, STR(body), &(amqp_basic_properties_t){._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2});
}

void send_digits(const char *queue, int count) {
  char body[] = "0";
  for (int n = 0; n < count; n++, body[0]++) send_text(queue, body);
}

void send_with_header(const char *exchange, const char *key, const char *body, Entry header) {
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = {1, &header}};
  publish(exchange, key, STR(body), &properties);
}

void publish_confirmed(const char *queue, int count) {
  declare_queue(queue, true, NO_ARGUMENTS);
  DO(amqp_confirm_select(c, CHANNEL));
  for (int n = 0; n < count; n++) send_text(queue, "kept");
  for (int acked = 0; acked < count;) {
    amqp_basic_ack_t *ack = await_method(AMQP_BASIC_ACK_METHOD);
    acked = ack->multiple ? (int)ack->delivery_tag : acked + 1;
  }
}

void consume(amqp_bytes_t queue, const char *tag, bool no_ack, amqp_table_t arguments) {
  DO(amqp_basic_consume(c, CHANNEL, queue, STR(tag), 0, no_ack, 0, arguments));
}

amqp_envelope_t next_message(void) {
  amqp_envelope_t envelope;
  amqp_maybe_release_buffers(c);
  succeed(amqp_consume_message(c, &envelope, NULL, 0));
  return envelope;
}

uint64_t get(const char *queue, amqp_message_t *message, bool *redelivered) {
  amqp_rpc_reply_t reply = amqp_basic_get(c, CHANNEL, STR(queue), 0);
  succeed(reply);
  if (reply.reply.id != AMQP_BASIC_GET_OK_METHOD) exit(puts("no message"));
  amqp_basic_get_ok_t *got = reply.reply.decoded;
  uint64_t tag = got->delivery_tag;
  *redelivered = got->redelivered;
  succeed(amqp_read_message(c, CHANNEL, message, 0));
  return tag;
}

void *await_method(amqp_method_number_t id) {
  for (;;) {
    amqp_frame_t frame;
    check(amqp_simple_wait_frame(c, &frame));
    if (frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == id) return frame.payload.method.decoded;
  }
}

amqp_field_value_t field(amqp_table_t fields, const char *key) {
  for (int n = 0; n < fields.num_entries; n++) {
    amqp_bytes_t name = fields.entries[n].key;
    if (name.len == strlen(key) && memcmp(name.bytes, key, name.len) == 0) return fields.entries[n].value;
  }
  exit(printf("no field %s\n", key));
}

void show(amqp_bytes_t text) { printf("%.*s\n", (int)text.len, (char *)text.bytes); }

void show_messages(int count) {
  for (int n = 0; n < count; n++) show(next_message().message.body);
}

void receive(amqp_bytes_t queue, int count) {
  consume(queue, "receive", true, NO_ARGUMENTS);
  show_messages(count);
  DO(amqp_basic_cancel(c, CHANNEL, STR("receive")));
}

void hello(void) {
  declare_queue("hello", false, NO_ARGUMENTS);
  send_text("hello", "Hello World!");
  receive(STR("hello"), 1);
}
