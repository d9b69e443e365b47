import java.util.Map;
import org.springframework.amqp.core.*;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;

/** Streams. */
class Streams extends Common {
  static void stream(String name, Map<String, Object> arguments) throws Exception {
    declare(QueueBuilder.durable(name).stream());
    for (int n = 0; n < 10; n++) {
      var message = MessageBuilder.withBody(String.valueOf(n).getBytes());
      template.send(name, message.setHeader("x-stream-filter-value", n % 2 == 0 ? "even" : "odd").build());
    }
    var container = new DirectMessageListenerContainer();
    container.setConsumerArguments(arguments);
    print(consume(container, name, 10), 5);
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "stream-offset" -> stream("stream", Map.of("x-stream-offset", 5));
      case "stream-filter" -> stream("filtered", Map.of("x-stream-offset", "first", "x-stream-filter", "odd"));
    }
  }
}
