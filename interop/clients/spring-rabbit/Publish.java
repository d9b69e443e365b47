import java.math.BigDecimal;
import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;
import org.springframework.amqp.core.*;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Publishing. */
class Publish extends Common {
  static final Map<String, Object> CROSSING =
      Map.of("text", "grüße", "number", 42, "yes", true, "array", List.of(1, "two"), "table", Map.of("a", "b"));

  static byte[] allBytes() {
    var body = new byte[256];
    for (int i = 0; i < 256; i++) body[i] = (byte) i;
    return body;
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "confirm" -> {
        connections.setPublisherConfirmType(ConfirmType.CORRELATED);
        declare(QueueBuilder.durable("confirmed"));
        var correlation = new CorrelationData();
        template.convertAndSend("", "confirmed", "1", correlation);
        if (correlation.getFuture().get().ack()) print(admin.purgeQueue("confirmed"));
      }
      case "confirm-batch" -> {
        connections.setPublisherConfirmType(ConfirmType.SIMPLE);
        declare(QueueBuilder.durable("batch"));
        template.invoke(operations -> {
          for (int n = 0; n < 1000; n++) operations.convertAndSend("batch", String.valueOf(n));
          operations.waitForConfirmsOrDie(60_000);
          return null;
        });
        print(admin.purgeQueue("batch"));
      }
      case "mandatory" -> {
        var returned = new LinkedBlockingQueue<ReturnedMessage>();
        connections.setPublisherReturns(true);
        template.setMandatory(true);
        template.setReturnsCallback(returned::add);
        send("nowhere", "lost");
        print(returned.take().getReplyCode());
      }
      case "tx" -> {
        var queue = declare("tx");
        template.setChannelTransacted(true);
        var transaction = new TransactionTemplate(new RabbitTransactionManager(connections));
        transaction.executeWithoutResult(status -> {
          send("tx", "no");
          status.setRollbackOnly();
        });
        transaction.executeWithoutResult(status -> send("tx", "yes"));
        receive(queue, 1);
      }
      case "headers" -> {
        var sent = new TreeMap<String, Object>();
        sent.putAll(Map.of("byte", (byte) -8, "short", (short) -16, "int", -32, "long", 1L << 40, "float", 1.5f));
        sent.putAll(Map.of("double", 2.5, "yes", true, "decimal", new BigDecimal("3.14"), "time", new Date(1767323045000L)));
        sent.putAll(Map.of("array", List.of(1, Map.of("three", 3)), "table", Map.of("a", Map.of("b", 1)), "text", "grüße"));
        declare("headers");
        template.convertAndSend("", "headers", "", message -> {
          message.getMessageProperties().setHeaders(sent);
          return message;
        });
        var got = new TreeMap<>(receive("headers").getMessageProperties().getHeaders());
        print(got.equals(sent) ? "pass" : got);
      }
      case "bodies" -> {
        declare("bodies");
        for (int size : new int[] {0, 1, 131_064, 131_065, 1 << 20, 16 << 20}) {
          template.send("bodies", new Message(new byte[size]));
          if (Arrays.equals(receive("bodies").getBody(), new byte[size])) print(size);
        }
      }
      case "write" -> {
        declare("crossing");
        var message = MessageBuilder.withBody(allBytes()).setContentType("text/plain").setMessageId("7");
        template.send("crossing", message.copyHeaders(CROSSING).build());
        print("pass");
      }
      case "read" -> {
        var got = receive("crossing");
        var properties = got.getMessageProperties();
        var headers = new TreeMap<>(properties.getHeaders()).toString();
        if (Arrays.equals(got.getBody(), allBytes()) && headers.equals(new TreeMap<>(CROSSING).toString())
            && (properties.getContentType() + properties.getMessageId()).equals("text/plain7")) print("pass");
      }
    }
  }
}
