import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.*;
import org.springframework.amqp.rabbit.listener.*;

/** Consuming. */
class Consume extends Common {
  static void declareDeadLettering(String queue, String target) {
    declare(target);
    declare(QueueBuilder.nonDurable(queue).deadLetterExchange("").deadLetterRoutingKey(target));
  }

  static void printDeath(String queue) {
    print(receive(queue).getMessageProperties().getXDeathHeader().get(0).get("reason"));
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "prefetch" -> {
        declare("prefetch");
        for (int n = 0; n < 10; n++) send("prefetch", n);
        var deliveries = consume(new SimpleMessageListenerContainer(), "prefetch", 3);
        for (int n = 0; n < 2; n++) deliveries.take();
        var third = deliveries.take();
        print(admin.getQueueInfo("prefetch").getMessageCount());
        third.channel().basicAck(third.message().getMessageProperties().getDeliveryTag(), true);
        print(deliveries, 3);
      }
      case "requeue" -> {
        declare("requeue");
        send("requeue", 1, 2, 3);
        var container = new DirectMessageListenerContainer();
        var deliveries = consume(container, "requeue", 3);
        for (int n = 0; n < 2; n++) deliveries.take();
        var third = deliveries.take();
        third.channel().basicNack(third.message().getMessageProperties().getDeliveryTag(), true, true);
        for (int n = 0; n < 3; n++) {
          var again = deliveries.take();
          var tag = again.message().getMessageProperties().getDeliveryTag();
          print(again.text() + " " + again.message().getMessageProperties().isRedelivered());
          if (n == 0) again.channel().basicReject(tag, false);
          else again.channel().basicAck(tag, false);
        }
        container.stop();
        print(admin.purgeQueue("requeue"));
      }
      case "cancel" -> {
        declare("cancel");
        for (var container : List.of(new SimpleMessageListenerContainer(), new DirectMessageListenerContainer())) {
          start(container, "cancel", message -> print("delivered"));
          container.stop();
        }
        send("cancel", "stays");
        print(admin.purgeQueue("cancel"));
      }
      case "broker-cancel" -> {
        declare("cancelled");
        var told = new LinkedBlockingQueue<Object>();
        var container = new DirectMessageListenerContainer();
        container.setApplicationEventPublisher(told::add);
        consume(container, "cancelled", 1);
        while (!(told.take() instanceof AsyncConsumerStartedEvent)) {}
        admin.deleteQueue("cancelled");
        Object event = "";
        while (!(event instanceof ListenerContainerConsumerTerminatedEvent)) event = told.take();
        print(event.toString().contains("canceled") ? "cancelled" : event);
      }
      case "dead-letter" -> {
        declareDeadLettering("rejecting", "dead");
        send("rejecting", "bad");
        start(new SimpleMessageListenerContainer(), "rejecting", message -> {
          throw new AmqpRejectAndDontRequeueException("bad");
        });
        printDeath("dead");
      }
      case "message-ttl" -> {
        declareDeadLettering("ttl", "expired");
        template.send("ttl", MessageBuilder.withBody("short".getBytes()).setExpiration("50").build());
        printDeath("expired");
      }
      case "priority" -> {
        var queue = declare(QueueBuilder.nonDurable("priority").maxPriority(5));
        for (int level : List.of(1, 5, 3)) {
          template.send("priority", MessageBuilder.withBody(String.valueOf(level).getBytes()).setPriority(level).build());
        }
        receive(queue, 3);
      }
      case "delayed" -> {
        var exchange = new FanoutExchange("delayed", false, false);
        exchange.setDelayed(true);
        var queue = declare("delayed");
        declare(exchange, queue, "");
        for (var each : List.of(Map.entry("late", 1000L), Map.entry("soon", 1L))) {
          template.convertAndSend("delayed", "", each.getKey(), message -> {
            message.getMessageProperties().setDelayLong(each.getValue());
            return message;
          });
        }
        receive(queue, 2);
      }
    }
  }
}
