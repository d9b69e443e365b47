import com.rabbitmq.client.GetResponse;
import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;

/** Consuming. */
class Consume extends Common {
  static void declareDeadLettering(String queue, String target) throws Exception {
    declare(target, Map.of());
    declare(queue, Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", target));
  }

  static void printDeath(String queue) throws Exception {
    var deaths = (List<?>) consume(queue, true, Map.of()).take().getProperties().getHeaders().get("x-death");
    print(((Map<?, ?>) deaths.get(0)).get("reason"));
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "prefetch" -> {
        declare("prefetch", Map.of());
        send("prefetch", null, "0123456789".split(""));
        channel.basicQos(3);
        var deliveries = consume("prefetch", false, Map.of());
        for (int n = 0; n < 2; n++) deliveries.take();
        var third = deliveries.take();
        print(channel.queueDeclarePassive("prefetch").getMessageCount());
        channel.basicAck(third.getEnvelope().getDeliveryTag(), true);
        print(deliveries, 3);
      }
      case "requeue" -> {
        declare("requeue", Map.of());
        send("requeue", null, "1", "2", "3");
        for (int n = 0; n < 2; n++) channel.basicGet("requeue", false);
        channel.basicNack(channel.basicGet("requeue", false).getEnvelope().getDeliveryTag(), true, true);
        var got = new ArrayList<GetResponse>();
        for (int n = 0; n < 3; n++) got.add(channel.basicGet("requeue", false));
        for (var each : got) print(new String(each.getBody()) + " " + each.getEnvelope().isRedeliver());
        channel.basicReject(got.get(0).getEnvelope().getDeliveryTag(), false);
        channel.basicAck(got.get(2).getEnvelope().getDeliveryTag(), true);
        purge("requeue");
      }
      case "cancel" -> {
        declare("cancel", Map.of());
        channel.basicCancel(channel.basicConsume("cancel", true, (tag, delivery) -> print("delivered"), tag -> {}));
        send("cancel", null, "stays");
        purge("cancel");
      }
      case "broker-cancel" -> {
        var told = new LinkedBlockingQueue<String>();
        declare("cancelled", Map.of());
        channel.basicConsume("cancelled", false, "cancelled", (tag, delivery) -> {}, told::add);
        connection.createChannel().queueDelete("cancelled");
        print(told.take()); // the consumer's tag
      }
      case "dead-letter" -> {
        declareDeadLettering("rejecting", "dead");
        send("rejecting", null, "bad");
        channel.basicReject(channel.basicGet("rejecting", false).getEnvelope().getDeliveryTag(), false);
        printDeath("dead");
      }
      case "message-ttl" -> {
        declareDeadLettering("ttl", "expired");
        send("ttl", properties().expiration("50").build(), "short");
        printDeath("expired");
      }
      case "priority" -> {
        declare("priority", Map.of("x-max-priority", 5));
        for (int level : List.of(1, 5, 3)) send("priority", properties().priority(level).build(), String.valueOf(level));
        receive("priority", 3);
      }
      case "delayed" -> {
        channel.exchangeDeclare("delayed", "x-delayed-message", false, false, Map.of("x-delayed-type", "fanout"));
        declare("delayed", Map.of());
        channel.queueBind("delayed", "delayed", "");
        for (var each : List.of(Map.entry("late", 1000), Map.entry("soon", 1))) {
          var delay = properties().headers(Map.of("x-delay", each.getValue())).build();
          channel.basicPublish("delayed", "", delay, each.getKey().getBytes());
        }
        receive("delayed", 2);
      }
    }
  }
}
