import org.springframework.amqp.core.*;

/** Queues, exchanges and bindings. */
class Topology extends Common {
  static void run(String name) {
    switch (name) {
      case "declare" -> {
        var queue = declare(QueueBuilder.durable("declared"));
        var exchange = new TopicExchange("declared");
        declare(exchange, queue, "#");
        template.convertAndSend("declared", "key", "1");
        admin.getQueueInfo("declared");
        print(admin.purgeQueue("declared"));
        admin.removeBinding(BindingBuilder.bind(queue).to(exchange).with("#"));
        if (!admin.deleteExchange("declared") || !admin.deleteQueue("declared")) print("not deleted");
      }
      case "missing" -> {
        try {
          template.execute(channel -> channel.queueDeclarePassive("missing"));
        } catch (RuntimeException refused) {
          print(refused.getCause().getCause());
        }
        hello();
      }
      case "inequivalent" -> {
        declare(QueueBuilder.durable("inequivalent"));
        declare("inequivalent");
      }
      case "float-argument" -> {
        for (Object value : new Object[] {10, 10L, 10.0}) declare(QueueBuilder.nonDurable("float").withArgument("x-max-length", value));
      }
      case "queue-ttl" -> {
        declare(QueueBuilder.nonDurable("leased").expires(100));
        template.execute(channel -> {
          while (true) { // a bind does not renew the lease
            channel.queueBind("leased", "amq.fanout", "");
            Thread.sleep(50);
          }
        });
      }
      case "policy" -> {
        declare("limited");
        send("limited", 1, 2, 3, 4);
        print(admin.purgeQueue("limited"));
      }
    }
  }
}
