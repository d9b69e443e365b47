import java.io.IOException;
import java.util.Map;

/** Queues, exchanges and bindings. */
class Topology extends Common {
  static void run(String name) throws Exception {
    switch (name) {
      case "declare" -> {
        declareDurable("declared");
        channel.exchangeDeclare("declared", "topic", true);
        channel.queueBind("declared", "declared", "#");
        channel.basicPublish("declared", "key", null, "1".getBytes());
        channel.queueDeclarePassive("declared");
        channel.exchangeDeclarePassive("declared");
        purge("declared");
        channel.queueUnbind("declared", "declared", "#");
        channel.exchangeDelete("declared");
        channel.queueDelete("declared");
      }
      case "missing" -> {
        try {
          channel.queueDeclarePassive("missing");
        } catch (IOException refused) {
          print(refused.getCause());
        }
        channel = connection.createChannel();
        hello();
      }
      case "inequivalent" -> {
        declareDurable("inequivalent");
        declare("inequivalent", Map.of());
      }
      case "float-argument" -> {
        declare("float", Map.of("x-max-length", 10));
        declare("float", Map.of("x-max-length", 10L));
        declare("float", Map.of("x-max-length", 10.0));
      }
      case "queue-ttl" -> {
        declare("leased", Map.of("x-expires", 100));
        while (true) { // a bind does not renew the lease
          channel.queueBind("leased", "amq.fanout", "");
          Thread.sleep(50);
        }
      }
      case "policy" -> {
        declare("limited", Map.of());
        send("limited", null, "1", "2", "3", "4");
        purge("limited");
      }
    }
  }
}
