import com.rabbitmq.client.Channel;
import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;

/** Connections. */
class Connect extends Common {
  static void run(String name) throws Exception {
    switch (name) {
      case "connect", "tls", "client-certificate" -> hello();
      case "heartbeat" -> {
        Thread.sleep(4000);
        hello();
      }
      case "channels" -> {
        declare("channels", Map.of());
        var opened = new ArrayList<Channel>();
        for (int n = 0; n < 100; n++) opened.add(connection.createChannel());
        for (var each : opened) each.basicPublish("", "channels", null, "x".getBytes());
        var deliveries = consume("channels", true, Map.of());
        for (int n = 0; n < 99; n++) deliveries.take();
        print(deliveries.take().getEnvelope().getDeliveryTag());
      }
      case "blocked" -> {
        var told = new LinkedBlockingQueue<String>();
        connection.addBlockedListener(told::add, () -> told.add("unblocked"));
        send("nowhere", null, "held");
        print(told.take() + "\nready"); // the runner ends the alarm
        print(told.take());
      }
      case "reconnect" -> { // the client itself connects again, and restores its consumers
        declareDurable("kept");
        channel.confirmSelect();
        send("kept", PERSISTENT, "kept");
        channel.waitForConfirmsOrDie();
        var deliveries = consume("kept", false, Map.of());
        deliveries.take();
        print("ready"); // the runner kills the broker and starts it again
        var again = deliveries.take();
        if (again.getEnvelope().isRedeliver()) print(new String(again.getBody()));
      }
    }
  }
}
