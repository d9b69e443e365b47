import com.rabbitmq.client.DeliverCallback;
import java.util.*;
import java.util.concurrent.*;

/** The patterns of RabbitMQ's tutorials. */
class Patterns extends Common {
  static void patterns(String exchange, String type, List<String> bindings, List<String> keys, int count) throws Exception {
    channel.exchangeDeclare(exchange, type);
    var queue = channel.queueDeclare().getQueue();
    for (var key : bindings) channel.queueBind(queue, exchange, key);
    for (var key : keys) channel.basicPublish(exchange, key, null, key.getBytes());
    receive(queue, count);
  }

  static int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
  }

  static void rpc(String callback) throws Exception {
    declare("rpc_queue", Map.of());
    channel.basicConsume("rpc_queue", true, (tag, request) -> {
      var reply = properties().correlationId(request.getProperties().getCorrelationId()).build();
      var result = String.valueOf(fibonacci(Integer.parseInt(new String(request.getBody()))));
      channel.basicPublish("", request.getProperties().getReplyTo(), reply, result.getBytes());
    }, tag -> {});
    var replies = consume(callback, true, Map.of());
    send("rpc_queue", properties().replyTo(callback).correlationId("1").build(), "15");
    var reply = replies.take();
    print(reply.getProperties().getCorrelationId() + " " + new String(reply.getBody()));
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "work-queue" -> {
        declareDurable("tasks");
        channel.basicQos(1);
        var done = new ConcurrentSkipListSet<String>();
        var workers = new ConcurrentSkipListSet<String>();
        var finished = new CountDownLatch(10);
        DeliverCallback work = (tag, delivery) -> {
          done.add(new String(delivery.getBody()));
          workers.add(tag);
          channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
          finished.countDown();
        };
        for (int n = 0; n < 2; n++) channel.basicConsume("tasks", false, work, tag -> {});
        send("tasks", PERSISTENT, "0123456789".split(""));
        finished.await();
        print(String.join("", done) + "\n" + workers.size());
      }
      case "publish-subscribe" -> {
        channel.exchangeDeclare("logs", "fanout");
        var queues = List.of(channel.queueDeclare().getQueue(), channel.queueDeclare().getQueue());
        for (var queue : queues) channel.queueBind(queue, "logs", "");
        channel.basicPublish("logs", "", null, "log".getBytes());
        for (var queue : queues) receive(queue, 1);
      }
      case "routing" -> {
        var levels = List.of("info", "warning", "error");
        patterns("direct_logs", "direct", levels.subList(1, 3), levels, 2);
      }
      case "topics" -> patterns("topic_logs", "topic", List.of("*.critical", "kern.#"),
          List.of("kern.critical", "cron.info", "kern.a.b", "cron.critical"), 3);
      case "rpc" -> rpc(channel.queueDeclare().getQueue());
      case "direct-reply-to" -> rpc("amq.rabbitmq.reply-to");
    }
  }
}
