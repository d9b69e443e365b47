/* rabbitmq-c: does the scenario of ../README.md that the argument names. */
#include "common.h"

static void run(const Scenario *scenarios, const char *name, bool connected) {
  for (; scenarios->name; scenarios++) {
    if (strcmp(scenarios->name, name) != 0) continue;
    if (connected) {
      succeed(log_in(0));
      open_channel(CHANNEL);
    }
    scenarios->run();
    amqp_connection_close(c, AMQP_REPLY_SUCCESS);
    exit(0);
  }
}

int main(int count, char **arguments) {
  const Scenario *connected[] = {TOPOLOGY, PUBLISH, CONSUME, PATTERNS, STREAMS};
  const char *name = count == 2 ? arguments[1] : "";
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (strcmp(name, "version") == 0) return puts(amqp_version()) < 0;
  run(CONNECT, name, false);
  for (size_t n = 0; n < sizeof connected / sizeof *connected; n++) run(connected[n], name, true);
  puts("Error: no such scenario");
  return 2;
}
