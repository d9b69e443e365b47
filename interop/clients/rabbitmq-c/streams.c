/* rabbitmq-c: streams. */
#include "common.h"

static void read_stream(const char *name, amqp_table_t arguments) {
  declare_queue(name, true, TABLE(FIELD("x-queue-type", UTF8, bytes, STR("stream"))));
  for (int n = 0; n < 10; n++) {
    const char body[] = {'0' + n, 0}, *value = n % 2 ? "odd" : "even";
    send_with_header("", name, body, (Entry)FIELD("x-stream-filter-value", UTF8, bytes, STR(value)));
  }
  DO(amqp_basic_qos(c, CHANNEL, 0, 10, 0));
  consume(STR(name), "", false, arguments);
  show_messages(5);
}

static void stream_offset(void) { read_stream("stream", TABLE(FIELD("x-stream-offset", I32, i32, 5))); }

static void stream_filter(void) {
  read_stream("filtered", TABLE(FIELD("x-stream-offset", UTF8, bytes, STR("first")),
                                FIELD("x-stream-filter", UTF8, bytes, STR("odd"))));
}

const Scenario STREAMS[] = {{"stream-offset", stream_offset}, {"stream-filter", stream_filter}, {0}};
