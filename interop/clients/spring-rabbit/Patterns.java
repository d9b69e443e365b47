import java.util.List;
import java.util.concurrent.*;
import org.springframework.amqp.core.*;
import org.springframework.amqp.rabbit.listener.*;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;

/** The patterns of RabbitMQ's tutorials. */
public class Patterns extends Common {
  static void patterns(Exchange exchange, List<String> bindings, List<String> keys, int count) {
    var queue = declare(QueueBuilder.nonDurable().exclusive());
    declare(exchange, queue, bindings.toArray(String[]::new));
    for (var key : keys) template.convertAndSend(exchange.getName(), key, key);
    receive(queue, count);
  }

  static String work(AbstractMessageListenerContainer container, String queue) throws Exception {
    declare(QueueBuilder.durable(queue));
    var done = new ConcurrentSkipListSet<String>();
    var workers = new ConcurrentSkipListSet<String>();
    var finished = new CountDownLatch(10);
    container.setPrefetchCount(1);
    start(container, queue, message -> { // acked when the listener returns
      done.add(new String(message.getBody()));
      workers.add(message.getMessageProperties().getConsumerTag());
      finished.countDown();
    });
    for (int n = 0; n < 10; n++) send(queue, n);
    finished.await();
    container.stop();
    return String.join("", done) + "\n" + workers.size();
  }

  public static String fibonacci(String text) {
    int a = 0, b = 1;
    for (int n = Integer.parseInt(text); n > 0; n--) b = a + (a = b);
    return String.valueOf(a);
  }

  static void rpc() {
    declare("rpc_queue");
    start(new SimpleMessageListenerContainer(), "rpc_queue", new MessageListenerAdapter(new Patterns(), "fibonacci"));
    template.setReplyTimeout(60_000);
    print("1 " + template.convertSendAndReceive("rpc_queue", "15")); // the template compares correlation ids itself
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "work-queue" -> {
        var simple = new SimpleMessageListenerContainer();
        simple.setConcurrentConsumers(2);
        var direct = new DirectMessageListenerContainer();
        direct.setConsumersPerQueue(2);
        var done = work(simple, "tasks");
        if (done.equals(work(direct, "tasks-direct"))) print(done);
      }
      case "publish-subscribe" -> {
        var logs = new FanoutExchange("logs", false, false);
        var queues = List.of(declare(QueueBuilder.nonDurable().exclusive()), declare(QueueBuilder.nonDurable().exclusive()));
        for (var queue : queues) declare(logs, queue, "");
        template.convertAndSend("logs", "", "log");
        for (var queue : queues) receive(queue, 1);
      }
      case "routing" -> {
        var levels = List.of("info", "warning", "error");
        patterns(new DirectExchange("direct_logs", false, false), levels.subList(1, 3), levels, 2);
      }
      case "topics" -> patterns(new TopicExchange("topic_logs", false, false), List.of("*.critical", "kern.#"),
          List.of("kern.critical", "cron.info", "kern.a.b", "cron.critical"), 3);
      case "rpc" -> {
        template.setUseTemporaryReplyQueues(true);
        rpc();
      }
      case "direct-reply-to" -> rpc(); // what a RabbitTemplate uses without an option
    }
  }
}
