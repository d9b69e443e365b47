/* rabbitmq-c: confirms, returns, transactions, headers and bodies. */
#include "common.h"

static const int SIZES[] = {0, 1, 131064, 131065, 1 << 20, 16 << 20};

static void confirm(void) {
  publish_confirmed("confirmed", 1);
  printf("%d\n", purge("confirmed"));
}

static void confirm_batch(void) {
  publish_confirmed("batch", 1000);
  printf("%d\n", purge("batch"));
}

static void mandatory(void) {
  check(amqp_basic_publish(c, CHANNEL, STR(""), STR("nowhere"), 1, 0, NULL, STR("lost")));
  amqp_basic_return_t *returned = await_method(AMQP_BASIC_RETURN_METHOD);
  printf("%d\n", returned->reply_code);
}

static void tx(void) {
  declare_queue("tx", false, NO_ARGUMENTS);
  DO(amqp_tx_select(c, CHANNEL));
  send_text("tx", "no");
  DO(amqp_tx_rollback(c, CHANNEL));
  send_text("tx", "yes");
  DO(amqp_tx_commit(c, CHANNEL));
  receive(STR("tx"), 1);
}

static amqp_bytes_t encoded(amqp_table_t fields) {
  amqp_bytes_t bytes = amqp_bytes_malloc(1000);
  size_t length = 0;
  check(amqp_encode_table(bytes, &fields, &length));
  bytes.len = length;
  return bytes;
}

static bool equal(amqp_bytes_t a, amqp_bytes_t b) { return a.len == b.len && memcmp(a.bytes, b.bytes, a.len) == 0; }

static void headers(void) {
  amqp_field_value_t items[] = {{.kind = AMQP_FIELD_KIND_I32, .value.i32 = 1}, {.kind = AMQP_FIELD_KIND_VOID}};
  amqp_array_t array = {2, items};
  amqp_decimal_t decimal = {2, 314};
  amqp_table_t sent = TABLE(
      FIELD("text", UTF8, bytes, STR("grüße")), FIELD("yes", BOOLEAN, boolean, 1), FIELD("i8", I8, i8, -8),
      FIELD("u8", U8, u8, 200), FIELD("i16", I16, i16, -16), FIELD("u16", U16, u16, 60000), FIELD("i32", I32, i32, -32),
      FIELD("u32", U32, u32, 4000000000), FIELD("i64", I64, i64, 1L << 40), FIELD("f32", F32, f32, 1.5f),
      FIELD("f64", F64, f64, 2.5), FIELD("decimal", DECIMAL, decimal, decimal), FIELD("nothing", VOID, u8, 0),
      FIELD("time", TIMESTAMP, u64, 1767323045), FIELD("bytes", BYTES, bytes, STR("\x01\xff")),
      FIELD("array", ARRAY, array, array), FIELD("table", TABLE, table, TABLE(FIELD("a", UTF8, bytes, STR("b")))));
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = sent};
  declare_queue("headers", false, NO_ARGUMENTS);
  publish("", "headers", STR(""), &properties);
  consume(STR("headers"), "", true, NO_ARGUMENTS);
  puts(equal(encoded(next_message().message.properties.headers), encoded(sent)) ? "pass" : "other headers");
}

static void bodies(void) {
  declare_queue("bodies", false, NO_ARGUMENTS);
  consume(STR("bodies"), "", true, NO_ARGUMENTS);
  for (int n = 0; n < 6; n++) {
    amqp_bytes_t body = amqp_bytes_malloc(SIZES[n]);
    memset(body.bytes, 'x', body.len);
    publish("", "bodies", body, NULL);
    amqp_bytes_t got = next_message().message.body;
    printf("%zu%s\n", got.len, equal(got, body) ? "" : " other bytes");
  }
}

static amqp_bytes_t all_bytes(void) {
  amqp_bytes_t body = amqp_bytes_malloc(256);
  for (int n = 0; n < 256; n++) ((unsigned char *)body.bytes)[n] = n;
  return body;
}

static void write(void) {
  amqp_field_value_t items[] = {{.kind = AMQP_FIELD_KIND_I32, .value.i32 = 1},
                                {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = STR("two")}};
  amqp_array_t array = {2, items};
  amqp_basic_properties_t properties = {.content_type = STR("text/plain"), .message_id = STR("7")};
  properties.headers = TABLE(FIELD("text", UTF8, bytes, STR("grüße")), FIELD("number", I32, i32, 42),
                             FIELD("yes", BOOLEAN, boolean, 1), FIELD("array", ARRAY, array, array),
                             FIELD("table", TABLE, table, TABLE(FIELD("a", UTF8, bytes, STR("b")))));
  properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_HEADERS_FLAG;
  declare_queue("crossing", false, NO_ARGUMENTS);
  publish("", "crossing", all_bytes(), &properties);
  puts("pass");
}

static void read(void) {
  consume(STR("crossing"), "", true, NO_ARGUMENTS);
  amqp_message_t got = next_message().message;
  amqp_table_t found = got.properties.headers;
  bool same = equal(got.body, all_bytes()) && equal(got.properties.content_type, STR("text/plain"));
  same &= equal(got.properties.message_id, STR("7")) && found.num_entries == 5;
  same &= equal(field(found, "text").value.bytes, STR("grüße"));
  same &= equal(field(field(found, "table").value.table, "a").value.bytes, STR("b"));
  same &= equal(field(found, "array").value.array.entries[1].value.bytes, STR("two"));
  puts(same ? "pass" : "another message");
}

const Scenario PUBLISH[] = {
    {"confirm", confirm}, {"confirm-batch", confirm_batch}, {"mandatory", mandatory}, {"tx", tx}, {"headers", headers},
    {"bodies", bodies}, {"write", write}, {"read", read}, {0},
};
