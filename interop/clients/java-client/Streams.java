import java.util.Map;

/** Streams. */
class Streams extends Common {
  static void stream(String name, Map<String, Object> arguments) throws Exception {
    declare(name, Map.of("x-queue-type", "stream"));
    for (int n = 0; n < 10; n++) {
      Map<String, Object> filter = Map.of("x-stream-filter-value", n % 2 == 0 ? "even" : "odd");
      send(name, properties().headers(filter).build(), String.valueOf(n));
    }
    channel.basicQos(10);
    print(consume(name, false, arguments), 5);
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "stream-offset" -> stream("stream", Map.of("x-stream-offset", 5));
      case "stream-filter" -> stream("filtered", Map.of("x-stream-offset", "first", "x-stream-filter", "odd"));
    }
  }
}
