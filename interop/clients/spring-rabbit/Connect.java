import com.rabbitmq.client.*;
import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;

/** Connections. */
class Connect extends Common {
  static void run(String name) throws Exception {
    switch (name) {
      case "connect", "bad-password", "bad-vhost", "tls", "client-certificate" -> hello();
      case "heartbeat" -> {
        connections.setRequestedHeartBeat(1);
        var connection = connections.createConnection();
        Thread.sleep(4000);
        if (connection.isOpen()) hello();
      }
      case "channels" -> {
        declare("channels");
        var opened = new ArrayList<Channel>();
        for (int n = 0; n < 100; n++) opened.add(connections.createConnection().createChannel(false));
        for (var each : opened) each.basicPublish("", "channels", null, "x".getBytes());
        int received = 0;
        while (received < 100 && receive("channels") != null) received++;
        print(received);
      }
      case "blocked" -> {
        var told = new LinkedBlockingQueue<String>();
        BlockedCallback blocked = told::add;
        UnblockedCallback unblocked = () -> told.add("unblocked");
        ((com.rabbitmq.client.Connection) connections.createConnection().getDelegate()).addBlockedListener(blocked, unblocked);
        send("nowhere", "held");
        print(told.take() + "\nready"); // the runner ends the alarm
        print(told.take());
      }
      case "reconnect" -> { // the container connects again, and consumes again
        connections.setPublisherConfirmType(ConfirmType.CORRELATED);
        declare(QueueBuilder.durable("kept"));
        var correlation = new CorrelationData();
        template.convertAndSend("", "kept", "kept", correlation);
        if (!correlation.getFuture().get().ack()) throw new AssertionError("not acked");
        var container = new SimpleMessageListenerContainer();
        container.setRecoveryInterval(100);
        var deliveries = consume(container, "kept", 1);
        deliveries.take();
        print("ready"); // the runner kills the broker and starts it again
        var again = deliveries.take();
        if (again.message().getMessageProperties().isRedelivered()) print(again.text());
      }
    }
  }
}
