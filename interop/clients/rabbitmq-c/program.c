/* rabbitmq-c (librabbitmq): the scenarios of ../README.md. */
#define _GNU_SOURCE
#include <amqp.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHANNEL 1
#define STR(text) amqp_cstring_bytes(text)
#define CHECK(condition) check(condition, #condition, __LINE__)

typedef amqp_connection_state_t Connection;
typedef amqp_table_entry_t Entry;

static Connection c; /* the connection of most scenarios */

static void check(bool condition, const char *text, int line) {
  if (condition) return;
  printf("Error: line %d: %s\n", line, text);
  exit(1);
}

static bool equal(amqp_bytes_t bytes, const char *text) {
  return bytes.len == strlen(text) && memcmp(bytes.bytes, text, bytes.len) == 0;
}

static void ok(amqp_rpc_reply_t reply, int line) {
  if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
  if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION) {
    amqp_channel_close_t *close = reply.reply.decoded;
    printf("Error: line %d: %.*s\n", line, (int)close->reply_text.len, (char *)close->reply_text.bytes);
  } else {
    printf("Error: line %d: %s\n", line, amqp_error_string2(reply.library_error));
  }
  exit(1);
}
#define OK() ok(amqp_get_rpc_reply(c), __LINE__)

static void nap(long ms) {
  struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

static amqp_table_t table(int count, Entry *entries) {
  amqp_table_t made = {count, entries};
  return made;
}

static Entry text_entry(const char *key, const char *value) {
  Entry entry = {.key = STR(key), .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = STR(value)}};
  return entry;
}

static Entry int_entry(const char *key, int value) {
  Entry entry = {.key = STR(key), .value = {.kind = AMQP_FIELD_KIND_I32, .value.i32 = value}};
  return entry;
}

static Entry true_entry(const char *key) {
  Entry entry = {.key = STR(key), .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}};
  return entry;
}

/* Connects, and returns the answer to the login; `*opened` is false if nobody listens. */
static amqp_rpc_reply_t connect_to_broker(int heartbeat, bool *opened) {
  char *url = strdup(getenv("AMQP_URL"));
  struct amqp_connection_info info;
  amqp_default_connection_info(&info);
  CHECK(amqp_parse_url(url, &info) == AMQP_STATUS_OK);
  c = amqp_new_connection();
  amqp_socket_t *socket;
  if (info.ssl) {
    socket = amqp_ssl_socket_new(c);
    amqp_ssl_socket_set_verify_peer(socket, 1);
    amqp_ssl_socket_set_verify_hostname(socket, 1);
    CHECK(amqp_ssl_socket_set_cacert(socket, getenv("CA_FILE")) == AMQP_STATUS_OK);
    if (getenv("CERT_FILE")) {
      CHECK(amqp_ssl_socket_set_key(socket, getenv("CERT_FILE"), getenv("KEY_FILE")) == AMQP_STATUS_OK);
    }
  } else {
    socket = amqp_tcp_socket_new(c);
  }
  amqp_rpc_reply_t reply = {0};
  *opened = amqp_socket_open(socket, info.host, info.port) == AMQP_STATUS_OK;
  if (*opened) {
    Entry asked[] = {true_entry("consumer_cancel_notify"), true_entry("connection.blocked")};
    Entry capabilities = {.key = STR("capabilities"), .value = {.kind = AMQP_FIELD_KIND_TABLE}};
    capabilities.value.value.table = table(2, asked);
    amqp_table_t properties = table(1, &capabilities);
    reply = amqp_login_with_properties(c, info.vhost, 0, 131072, heartbeat, &properties, AMQP_SASL_METHOD_PLAIN, info.user,
                                       info.password);
  }
  return reply;
}

static void open_channel(int number) {
  amqp_channel_open(c, number);
  OK();
}

static void connect_and_open(int heartbeat) {
  bool opened;
  amqp_rpc_reply_t reply = connect_to_broker(heartbeat, &opened);
  CHECK(opened);
  ok(reply, __LINE__);
  open_channel(CHANNEL);
}

static void refused(amqp_rpc_reply_t reply, int code, const char *text) {
  CHECK(reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION);
  amqp_channel_close_t *close = reply.reply.decoded; /* connection.close begins with the same fields */
  CHECK(close->reply_code == code);
  CHECK(memmem(close->reply_text.bytes, close->reply_text.len, text, strlen(text)));
}

static amqp_queue_declare_ok_t *declare_queue(const char *name, bool durable, amqp_table_t arguments) {
  amqp_queue_declare_ok_t *declared = amqp_queue_declare(c, CHANNEL, STR(name), 0, durable, !*name, 0, arguments);
  OK();
  return declared;
}

static void publish(const char *exchange, const char *key, amqp_bytes_t body, amqp_basic_properties_t *properties) {
  CHECK(amqp_basic_publish(c, CHANNEL, STR(exchange), STR(key), 0, 0, properties, body) == AMQP_STATUS_OK);
}

static void send_text(const char *queue, const char *body) {
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
  publish("", queue, STR(body), &properties);
}

static void send_digits(const char *queue, int count) {
  char body[] = "0";
  for (int n = 0; n < count; n++, body[0]++) send_text(queue, body);
}

static void send_with_headers(const char *exchange, const char *key, const char *body, Entry header) {
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = table(1, &header)};
  publish(exchange, key, STR(body), &properties);
}

static void consume(amqp_bytes_t queue, const char *tag, bool no_ack, amqp_table_t arguments) {
  amqp_basic_consume(c, CHANNEL, queue, STR(tag), 0, no_ack, 0, arguments);
  OK();
}

static amqp_envelope_t next_message(void) {
  amqp_envelope_t envelope;
  amqp_maybe_release_buffers(c);
  ok(amqp_consume_message(c, &envelope, NULL, 0), __LINE__);
  return envelope;
}

/* Consumes the messages of a queue without acks, and compares their bodies. */
static void expect(amqp_bytes_t queue, int count, const char **bodies) {
  consume(queue, "expect", true, amqp_empty_table);
  for (int n = 0; n < count; n++) CHECK(equal(next_message().message.body, bodies[n]));
  amqp_basic_cancel(c, CHANNEL, STR("expect"));
  OK();
}
#define EXPECT(queue, ...) \
  expect(queue, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

static amqp_basic_get_ok_t get(const char *queue, amqp_message_t *message) {
  amqp_rpc_reply_t reply = amqp_basic_get(c, CHANNEL, STR(queue), 0);
  ok(reply, __LINE__);
  CHECK(reply.reply.id == AMQP_BASIC_GET_OK_METHOD);
  amqp_basic_get_ok_t got = *(amqp_basic_get_ok_t *)reply.reply.decoded;
  ok(amqp_read_message(c, CHANNEL, message, 0), __LINE__);
  return got;
}

static int purge(const char *queue) {
  amqp_queue_purge_ok_t *purged = amqp_queue_purge(c, CHANNEL, STR(queue));
  OK();
  return purged->message_count;
}

/* Waits for a method of the broker, such as an ack, and returns it. */
static void *await_method(amqp_method_number_t id) {
  for (;;) {
    amqp_frame_t frame;
    CHECK(amqp_simple_wait_frame(c, &frame) == AMQP_STATUS_OK);
    if (frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == id) return frame.payload.method.decoded;
  }
}

static amqp_field_value_t field(amqp_table_t fields, amqp_bytes_t key) {
  for (int n = 0; n < fields.num_entries; n++) {
    amqp_bytes_t name = fields.entries[n].key;
    if (name.len == key.len && memcmp(name.bytes, key.bytes, key.len) == 0) return fields.entries[n].value;
  }
  printf("Error: no field %.*s\n", (int)key.len, (char *)key.bytes);
  exit(1);
}

static void connects(void) {
  declare_queue("hello", false, amqp_empty_table);
  send_text("hello", "Hello World!");
  EXPECT(STR("hello"), "Hello World!");
}

static void refused_login(int code, const char *text) {
  bool opened;
  amqp_rpc_reply_t reply = connect_to_broker(0, &opened);
  CHECK(opened);
  refused(reply, code, text);
}

static void bad_password(void) { refused_login(403, "ACCESS_REFUSED"); }
static void bad_vhost(void) { refused_login(530, "NOT_ALLOWED"); }

static void heartbeat(void) {
  connect_and_open(1);
  struct timeval wait = {0, 500000};
  for (int n = 0; n < 8; n++) { /* heartbeats are sent while the program waits for frames */
    amqp_frame_t frame;
    CHECK(amqp_simple_wait_frame_noblock(c, &frame, &wait) == AMQP_STATUS_TIMEOUT);
  }
  connects();
}

static void declare(void) {
  declare_queue("declared", true, amqp_empty_table);
  amqp_exchange_declare(c, CHANNEL, STR("declared"), STR("topic"), 0, 1, 0, 0, amqp_empty_table);
  OK();
  amqp_queue_bind(c, CHANNEL, STR("declared"), STR("declared"), STR("#"), amqp_empty_table);
  OK();
  publish("declared", "key", STR("1"), NULL);
  amqp_queue_declare(c, CHANNEL, STR("declared"), 1, 0, 0, 0, amqp_empty_table);
  OK();
  amqp_exchange_declare(c, CHANNEL, STR("declared"), STR("topic"), 1, 0, 0, 0, amqp_empty_table);
  OK();
  CHECK(purge("declared") == 1);
  amqp_queue_unbind(c, CHANNEL, STR("declared"), STR("declared"), STR("#"), amqp_empty_table);
  OK();
  amqp_exchange_delete(c, CHANNEL, STR("declared"), 0);
  OK();
  amqp_queue_delete(c, CHANNEL, STR("declared"), 0, 0);
  OK();
}

static void missing(void) {
  amqp_queue_declare(c, CHANNEL, STR("missing"), 1, 0, 0, 0, amqp_empty_table);
  refused(amqp_get_rpc_reply(c), 404, "NOT_FOUND - no queue 'missing'");
  amqp_channel_close_ok_t answer = {0};
  CHECK(amqp_send_method(c, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &answer) == AMQP_STATUS_OK);
  open_channel(CHANNEL);
  connects();
}

static void inequivalent(void) {
  declare_queue("inequivalent", true, amqp_empty_table);
  amqp_queue_declare(c, CHANNEL, STR("inequivalent"), 0, 0, 0, 0, amqp_empty_table);
  refused(amqp_get_rpc_reply(c), 406, "inequivalent arg 'durable'");
}

static void float_argument(void) {
  Entry limit = int_entry("x-max-length", 10);
  declare_queue("float", false, table(1, &limit));
  limit.value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_I64, .value.i64 = 10};
  declare_queue("float", false, table(1, &limit));
  limit.value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_F64, .value.f64 = 10};
  amqp_queue_declare(c, CHANNEL, STR("float"), 0, 0, 0, 0, table(1, &limit));
  refused(amqp_get_rpc_reply(c), 406, "x-max-length");
}

static void work_queue(void) {
  declare_queue("tasks", true, amqp_empty_table);
  amqp_basic_qos(c, CHANNEL, 0, 1, 0);
  OK();
  consume(STR("tasks"), "a", false, amqp_empty_table);
  consume(STR("tasks"), "b", false, amqp_empty_table);
  send_digits("tasks", 10);
  int done[10] = {0}, workers[2] = {0};
  for (int n = 0; n < 10; n++) {
    amqp_envelope_t envelope = next_message();
    done[*(char *)envelope.message.body.bytes - '0']++;
    workers[*(char *)envelope.consumer_tag.bytes - 'a']++;
    CHECK(amqp_basic_ack(c, CHANNEL, envelope.delivery_tag, 0) == AMQP_STATUS_OK);
  }
  for (int n = 0; n < 10; n++) CHECK(done[n] == 1);
  CHECK(workers[0] && workers[1]);
}

static void declare_exchange(const char *name, const char *type, amqp_table_t arguments) {
  amqp_exchange_declare(c, CHANNEL, STR(name), STR(type), 0, 0, 0, 0, arguments);
  OK();
}

static amqp_bytes_t declare_own_queue(const char *exchange, const char *key) {
  amqp_bytes_t name = amqp_bytes_malloc_dup(declare_queue("", false, amqp_empty_table)->queue);
  amqp_queue_bind(c, CHANNEL, name, STR(exchange), STR(key), amqp_empty_table);
  OK();
  return name;
}

static void publish_subscribe(void) {
  declare_exchange("logs", "fanout", amqp_empty_table);
  amqp_bytes_t first = declare_own_queue("logs", ""), second = declare_own_queue("logs", "");
  publish("logs", "", STR("log"), NULL);
  EXPECT(first, "log");
  EXPECT(second, "log");
}

static void routing(void) {
  declare_exchange("direct_logs", "direct", amqp_empty_table);
  amqp_bytes_t queue = declare_own_queue("direct_logs", "warning");
  amqp_queue_bind(c, CHANNEL, queue, STR("direct_logs"), STR("error"), amqp_empty_table);
  OK();
  const char *levels[] = {"info", "warning", "error"};
  for (int n = 0; n < 3; n++) publish("direct_logs", levels[n], STR(levels[n]), NULL);
  EXPECT(queue, "warning", "error");
}

static void topics(void) {
  declare_exchange("topic_logs", "topic", amqp_empty_table);
  amqp_bytes_t queue = declare_own_queue("topic_logs", "*.critical");
  amqp_queue_bind(c, CHANNEL, queue, STR("topic_logs"), STR("kern.#"), amqp_empty_table);
  OK();
  const char *keys[] = {"kern.critical", "cron.info", "kern.a.b", "cron.critical"};
  for (int n = 0; n < 4; n++) publish("topic_logs", keys[n], STR(keys[n]), NULL);
  EXPECT(queue, "kern.critical", "kern.a.b", "cron.critical");
}

static int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

static void ask_fibonacci(amqp_bytes_t callback) {
  declare_queue("rpc_queue", false, amqp_empty_table);
  consume(STR("rpc_queue"), "server", true, amqp_empty_table);
  consume(callback, "client", true, amqp_empty_table);
  amqp_basic_properties_t question = {._flags = AMQP_BASIC_REPLY_TO_FLAG | AMQP_BASIC_CORRELATION_ID_FLAG};
  question.reply_to = callback;
  question.correlation_id = STR("1");
  publish("", "rpc_queue", STR("15"), &question);
  amqp_envelope_t request = next_message();
  char number[8] = {0}, result[8];
  memcpy(number, request.message.body.bytes, request.message.body.len);
  snprintf(result, sizeof result, "%d", fibonacci(atoi(number)));
  amqp_basic_properties_t answer = {._flags = AMQP_BASIC_CORRELATION_ID_FLAG};
  answer.correlation_id = request.message.properties.correlation_id;
  amqp_bytes_t reply_to = request.message.properties.reply_to;
  CHECK(amqp_basic_publish(c, CHANNEL, amqp_empty_bytes, reply_to, 0, 0, &answer, STR(result)) == AMQP_STATUS_OK);
  amqp_message_t reply = next_message().message;
  CHECK(equal(reply.body, "610") && equal(reply.properties.correlation_id, "1"));
}

static void rpc(void) {
  ask_fibonacci(amqp_bytes_malloc_dup(declare_queue("", false, amqp_empty_table)->queue));
}

static void direct_reply_to(void) { ask_fibonacci(STR("amq.rabbitmq.reply-to")); }

static void confirm(void) {
  declare_queue("confirmed", true, amqp_empty_table);
  amqp_confirm_select(c, CHANNEL);
  OK();
  send_text("confirmed", "safe");
  await_method(AMQP_BASIC_ACK_METHOD);
}

static void confirm_batch(void) {
  declare_queue("batch", true, amqp_empty_table);
  amqp_confirm_select(c, CHANNEL);
  OK();
  for (int n = 0; n < 1000; n++) send_text("batch", "x");
  for (int acked = 0; acked < 1000;) {
    amqp_basic_ack_t *ack = await_method(AMQP_BASIC_ACK_METHOD);
    acked = ack->multiple ? (int)ack->delivery_tag : acked + 1;
  }
  CHECK(purge("batch") == 1000);
}

static void mandatory(void) {
  CHECK(amqp_basic_publish(c, CHANNEL, STR(""), STR("nowhere"), 1, 0, NULL, STR("lost")) == AMQP_STATUS_OK);
  amqp_basic_return_t *returned = await_method(AMQP_BASIC_RETURN_METHOD);
  CHECK(returned->reply_code == 312);
}

static void tx(void) {
  declare_queue("tx", false, amqp_empty_table);
  amqp_tx_select(c, CHANNEL);
  OK();
  send_text("tx", "no");
  amqp_tx_rollback(c, CHANNEL);
  OK();
  send_text("tx", "yes");
  amqp_tx_commit(c, CHANNEL);
  OK();
  EXPECT(STR("tx"), "yes");
}

#define FIELD(name, type, member, content) \
  {.key = STR(name), .value = {.kind = AMQP_FIELD_KIND_##type, .value.member = content}}

static void headers(void) {
  Entry inner = text_entry("a", "b");
  amqp_field_value_t items[] = {int_entry("", 1).value, text_entry("", "two").value};
  amqp_array_t array = {2, items};
  amqp_decimal_t decimal = {2, 314};
  Entry sent[] = {
      FIELD("text", UTF8, bytes, STR("grüße")), FIELD("yes", BOOLEAN, boolean, 1), FIELD("i8", I8, i8, -8),
      FIELD("u8", U8, u8, 200), FIELD("i16", I16, i16, -16), FIELD("u16", U16, u16, 60000), FIELD("i32", I32, i32, -32),
      FIELD("u32", U32, u32, 4000000000), FIELD("i64", I64, i64, 1L << 40), FIELD("f32", F32, f32, 1.5f),
      FIELD("f64", F64, f64, 2.5), FIELD("decimal", DECIMAL, decimal, decimal), FIELD("nothing", VOID, u8, 0),
      FIELD("time", TIMESTAMP, u64, 1767323045), FIELD("bytes", BYTES, bytes, STR("\x01\xff")),
      FIELD("array", ARRAY, array, array), FIELD("table", TABLE, table, table(1, &inner)),
  };
  int count = sizeof sent / sizeof *sent;
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = table(count, sent)};
  declare_queue("headers", false, amqp_empty_table);
  publish("", "headers", STR(""), &properties);
  amqp_message_t message;
  get("headers", &message);
  amqp_table_t got = message.properties.headers;
  CHECK(got.num_entries == count);
  for (int n = 0; n < count; n++) {
    amqp_field_value_t value = field(got, sent[n].key);
    CHECK(value.kind == sent[n].value.kind);
    if (value.kind == AMQP_FIELD_KIND_I64) CHECK(value.value.i64 == sent[n].value.value.i64);
    if (value.kind == AMQP_FIELD_KIND_UTF8) CHECK(equal(value.value.bytes, "grüße"));
  }
}

static void bodies(void) {
  int sizes[] = {0, 1, 131064, 131065, 1 << 20, 16 << 20};
  declare_queue("bodies", false, amqp_empty_table);
  for (int n = 0; n < 6; n++) {
    amqp_bytes_t body = amqp_bytes_malloc(sizes[n]);
    memset(body.bytes, 'x', body.len);
    publish("", "bodies", body, NULL);
    amqp_message_t message;
    get("bodies", &message);
    CHECK(message.body.len == body.len && (!body.len || memcmp(message.body.bytes, body.bytes, body.len) == 0));
    amqp_destroy_message(&message);
    amqp_bytes_free(body);
  }
}

static void channels(void) {
  declare_queue("channels", false, amqp_empty_table);
  for (int n = 2; n <= 101; n++) open_channel(n);
  for (int n = 2; n <= 101; n++) {
    CHECK(amqp_basic_publish(c, n, STR(""), STR("channels"), 0, 0, NULL, STR("x")) == AMQP_STATUS_OK);
  }
  consume(STR("channels"), "", true, amqp_empty_table);
  for (int n = 0; n < 100; n++) next_message();
}

static void prefetch(void) {
  declare_queue("prefetch", false, amqp_empty_table);
  send_digits("prefetch", 10);
  amqp_basic_qos(c, CHANNEL, 0, 3, 0);
  OK();
  consume(STR("prefetch"), "", false, amqp_empty_table);
  uint64_t tag = 0;
  for (int n = 0; n < 3; n++) tag = next_message().delivery_tag;
  amqp_queue_declare_ok_t *declared = amqp_queue_declare(c, CHANNEL, STR("prefetch"), 1, 0, 0, 0, amqp_empty_table);
  OK();
  CHECK(declared->message_count == 7);
  CHECK(amqp_basic_ack(c, CHANNEL, tag, 1) == AMQP_STATUS_OK);
  const char *expected[] = {"3", "4", "5"};
  for (int n = 0; n < 3; n++) CHECK(equal(next_message().message.body, expected[n]));
}

static void requeue(void) {
  amqp_message_t message;
  declare_queue("requeue", false, amqp_empty_table);
  send_digits("requeue", 3);
  uint64_t tag = 0;
  for (int n = 0; n < 3; n++) tag = get("requeue", &message).delivery_tag;
  CHECK(amqp_basic_nack(c, CHANNEL, tag, 1, 1) == AMQP_STATUS_OK);
  const char *expected[] = {"0", "1", "2"};
  for (int n = 0; n < 3; n++) {
    amqp_basic_get_ok_t got = get("requeue", &message);
    CHECK(got.redelivered && equal(message.body, expected[n]));
    if (n == 0) CHECK(amqp_basic_reject(c, CHANNEL, got.delivery_tag, 0) == AMQP_STATUS_OK);
    tag = got.delivery_tag;
  }
  CHECK(amqp_basic_ack(c, CHANNEL, tag, 1) == AMQP_STATUS_OK);
  CHECK(purge("requeue") == 0);
}

static void cancel(void) {
  declare_queue("cancel", false, amqp_empty_table);
  consume(STR("cancel"), "reader", true, amqp_empty_table);
  amqp_basic_cancel(c, CHANNEL, STR("reader"));
  OK();
  send_text("cancel", "stays");
  CHECK(purge("cancel") == 1);
}

static void broker_cancel(void) {
  declare_queue("cancelled", false, amqp_empty_table);
  consume(STR("cancelled"), "reader", true, amqp_empty_table);
  open_channel(2);
  amqp_queue_delete(c, 2, STR("cancelled"), 0, 0);
  OK();
  amqp_basic_cancel_t *cancelled = await_method(AMQP_BASIC_CANCEL_METHOD);
  CHECK(equal(cancelled->consumer_tag, "reader"));
}

static void blocked(void) {
  send_text("nowhere", "held");
  amqp_connection_blocked_t *told = await_method(AMQP_CONNECTION_BLOCKED_METHOD);
  CHECK(equal(told->reason, "low on memory"));
  puts("ready"); /* the runner ends the alarm */
  await_method(AMQP_CONNECTION_UNBLOCKED_METHOD);
}

static void declare_dead_lettering(const char *name, const char *to) {
  Entry arguments[] = {text_entry("x-dead-letter-exchange", ""), text_entry("x-dead-letter-routing-key", to)};
  declare_queue(to, false, amqp_empty_table);
  declare_queue(name, false, table(2, arguments));
}

static void expect_death(const char *queue, const char *reason) {
  consume(STR(queue), "", true, amqp_empty_table);
  amqp_array_t deaths = field(next_message().message.properties.headers, STR("x-death")).value.array;
  CHECK(equal(field(deaths.entries[0].value.table, STR("reason")).value.bytes, reason));
}

static void dead_letter(void) {
  amqp_message_t message;
  declare_dead_lettering("rejecting", "dead");
  send_text("rejecting", "bad");
  CHECK(amqp_basic_reject(c, CHANNEL, get("rejecting", &message).delivery_tag, 0) == AMQP_STATUS_OK);
  expect_death("dead", "rejected");
}

static void message_ttl(void) {
  declare_dead_lettering("ttl", "expired");
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_EXPIRATION_FLAG, .expiration = STR("50")};
  publish("", "ttl", STR("short"), &properties);
  expect_death("expired", "expired");
}

static void queue_ttl(void) {
  Entry expires = int_entry("x-expires", 100);
  declare_queue("leased", false, table(1, &expires));
  amqp_rpc_reply_t reply;
  do { /* a bind does not renew the lease */
    nap(50);
    amqp_queue_bind(c, CHANNEL, STR("leased"), STR("amq.fanout"), STR(""), amqp_empty_table);
    reply = amqp_get_rpc_reply(c);
  } while (reply.reply_type == AMQP_RESPONSE_NORMAL);
  refused(reply, 404, "NOT_FOUND");
}

static void priority(void) {
  Entry levels = int_entry("x-max-priority", 5);
  declare_queue("priority", false, table(1, &levels));
  const char *sent[] = {"1", "5", "3"};
  for (int n = 0; n < 3; n++) {
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_PRIORITY_FLAG, .priority = atoi(sent[n])};
    publish("", "priority", STR(sent[n]), &properties);
  }
  EXPECT(STR("priority"), "5", "3", "1");
}

static void delayed(void) {
  Entry type = text_entry("x-delayed-type", "fanout");
  declare_exchange("delayed", "x-delayed-message", table(1, &type));
  amqp_bytes_t queue = declare_own_queue("delayed", "");
  send_with_headers("delayed", "", "late", int_entry("x-delay", 1000));
  send_with_headers("delayed", "", "soon", int_entry("x-delay", 1));
  EXPECT(queue, "soon", "late");
}

static void stream(const char *name, amqp_table_t arguments, const char **expected) {
  Entry type = text_entry("x-queue-type", "stream");
  declare_queue(name, true, table(1, &type));
  char body[] = "0";
  for (int n = 0; n < 10; n++, body[0]++) {
    send_with_headers("", name, body, text_entry("x-stream-filter-value", n % 2 ? "odd" : "even"));
  }
  amqp_basic_qos(c, CHANNEL, 0, 10, 0);
  OK();
  consume(STR(name), "", false, arguments);
  for (int n = 0; n < 5; n++) CHECK(equal(next_message().message.body, expected[n]));
}

static void stream_offset(void) {
  Entry offset = int_entry("x-stream-offset", 5);
  stream("stream", table(1, &offset), (const char *[]){"5", "6", "7", "8", "9"});
}

static void stream_filter(void) {
  Entry arguments[] = {text_entry("x-stream-offset", "first"), text_entry("x-stream-filter", "odd")};
  stream("filtered", table(2, arguments), (const char *[]){"1", "3", "5", "7", "9"});
}

static void policy(void) {
  declare_queue("limited", false, amqp_empty_table);
  send_digits("limited", 4);
  CHECK(purge("limited") == 2);
}

static void reconnect(void) {
  confirm(); /* the queue `confirmed` has a persistent message */
  consume(STR("confirmed"), "", false, amqp_empty_table);
  next_message();
  puts("ready"); /* the runner kills the broker and starts it again */
  amqp_frame_t frame;
  while (amqp_simple_wait_frame(c, &frame) == AMQP_STATUS_OK) continue;
  bool opened;
  amqp_rpc_reply_t reply;
  do {
    nap(100);
    reply = connect_to_broker(0, &opened);
  } while (!opened || reply.reply_type != AMQP_RESPONSE_NORMAL);
  open_channel(CHANNEL);
  EXPECT(STR("confirmed"), "safe");
}

static amqp_bytes_t all_bytes(void) {
  amqp_bytes_t body = amqp_bytes_malloc(256);
  for (int n = 0; n < 256; n++) ((unsigned char *)body.bytes)[n] = n;
  return body;
}

static void write_crossing(void) {
  Entry inner = text_entry("a", "b");
  amqp_field_value_t items[] = {int_entry("", 1).value, text_entry("", "two").value};
  amqp_array_t array = {2, items};
  Entry sent[] = {text_entry("text", "grüße"), int_entry("number", 42), FIELD("yes", BOOLEAN, boolean, 1),
                  FIELD("array", ARRAY, array, array), FIELD("table", TABLE, table, table(1, &inner))};
  amqp_basic_properties_t properties = {.content_type = STR("text/plain"), .message_id = STR("7")};
  properties.headers = table(5, sent);
  properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_HEADERS_FLAG;
  declare_queue("crossing", false, amqp_empty_table);
  publish("", "crossing", all_bytes(), &properties);
}

static void read_crossing(void) {
  consume(STR("crossing"), "", true, amqp_empty_table);
  amqp_message_t got = next_message().message;
  amqp_table_t found = got.properties.headers;
  CHECK(got.body.len == 256 && memcmp(got.body.bytes, all_bytes().bytes, 256) == 0);
  CHECK(equal(got.properties.content_type, "text/plain") && equal(got.properties.message_id, "7"));
  CHECK(found.num_entries == 5 && equal(field(found, STR("text")).value.bytes, "grüße"));
  CHECK(equal(field(field(found, STR("table")).value.table, STR("a")).value.bytes, "b"));
  CHECK(equal(field(found, STR("array")).value.array.entries[1].value.bytes, "two"));
}

static const struct {
  const char *name;
  void (*run)(void);
  bool connects_itself;
} SCENARIOS[] = {
    {"connect", connects, false}, {"tls", connects, false}, {"client-certificate", connects, false},
    {"bad-password", bad_password, true}, {"bad-vhost", bad_vhost, true}, {"heartbeat", heartbeat, true},
    {"declare", declare, false}, {"missing", missing, false}, {"inequivalent", inequivalent, false},
    {"float-argument", float_argument, false}, {"work-queue", work_queue, false},
    {"publish-subscribe", publish_subscribe, false}, {"routing", routing, false}, {"topics", topics, false},
    {"rpc", rpc, false}, {"direct-reply-to", direct_reply_to, false}, {"confirm", confirm, false},
    {"confirm-batch", confirm_batch, false}, {"mandatory", mandatory, false}, {"tx", tx, false},
    {"headers", headers, false}, {"bodies", bodies, false}, {"channels", channels, false},
    {"prefetch", prefetch, false}, {"requeue", requeue, false}, {"cancel", cancel, false},
    {"broker-cancel", broker_cancel, false}, {"blocked", blocked, false}, {"dead-letter", dead_letter, false},
    {"message-ttl", message_ttl, false}, {"queue-ttl", queue_ttl, false}, {"priority", priority, false},
    {"delayed", delayed, false}, {"stream-offset", stream_offset, false}, {"stream-filter", stream_filter, false},
    {"policy", policy, false}, {"reconnect", reconnect, false}, {"write", write_crossing, false},
    {"read", read_crossing, false},
};

int main(int count, char **arguments) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (count == 2 && strcmp(arguments[1], "version") == 0) return puts(amqp_version()) < 0;
  for (size_t n = 0; count == 2 && n < sizeof SCENARIOS / sizeof *SCENARIOS; n++) {
    if (strcmp(arguments[1], SCENARIOS[n].name) != 0) continue;
    if (!SCENARIOS[n].connects_itself) connect_and_open(0);
    SCENARIOS[n].run();
    amqp_connection_close(c, AMQP_REPLY_SUCCESS);
    puts("pass");
    return 0;
  }
  puts("Error: no such scenario");
  return 2;
}
