import com.rabbitmq.client.*;
import com.rabbitmq.client.impl.LongStringHelper;
import java.math.BigDecimal;
import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;

/** Publishing. */
class Publish extends Common {
  static final Map<String, Object> CROSSING =
      Map.of("text", "grüße", "number", 42, "yes", true, "array", List.of(1, "two"), "table", Map.of("a", "b"));

  static void confirm(String queue, int count) throws Exception {
    declareDurable(queue);
    channel.confirmSelect();
    for (int n = 0; n < count; n++) send(queue, PERSISTENT, String.valueOf(n));
    channel.waitForConfirmsOrDie();
    purge(queue);
  }

  static byte[] allBytes() {
    var body = new byte[256];
    for (int i = 0; i < 256; i++) body[i] = (byte) i;
    return body;
  }

  static void run(String name) throws Exception {
    switch (name) {
      case "confirm" -> confirm("confirmed", 1);
      case "confirm-batch" -> confirm("batch", 1000);
      case "mandatory" -> {
        var returned = new LinkedBlockingQueue<Return>();
        channel.addReturnListener((ReturnCallback) returned::add);
        channel.basicPublish("", "nowhere", true, null, new byte[0]);
        print(returned.take().getReplyCode());
      }
      case "tx" -> {
        declare("tx", Map.of());
        channel.txSelect();
        send("tx", null, "no");
        channel.txRollback();
        send("tx", null, "yes");
        channel.txCommit();
        receive("tx", 1);
      }
      case "headers" -> {
        var sent = new TreeMap<String, Object>();
        sent.putAll(Map.of("byte", (byte) -8, "short", (short) -16, "int", -32, "long", 1L << 40, "float", 1.5f));
        sent.putAll(Map.of("double", 2.5, "yes", true, "decimal", new BigDecimal("3.14"), "time", new Date(1767323045000L)));
        sent.putAll(Map.of("array", List.of(1, Map.of("three", 3)), "table", Map.of("a", Map.of("b", 1))));
        sent.put("text", LongStringHelper.asLongString("grüße"));
        sent.put("nothing", null);
        declare("headers", Map.of());
        send("headers", properties().headers(sent).build(), "");
        var got = new TreeMap<>(channel.basicGet("headers", true).getProps().getHeaders());
        print(got.equals(sent) ? "pass" : got);
      }
      case "bodies" -> {
        declare("bodies", Map.of());
        for (int size : new int[] {0, 1, 131_064, 131_065, 1 << 20, 16 << 20}) {
          channel.basicPublish("", "bodies", null, new byte[size]);
          if (Arrays.equals(channel.basicGet("bodies", true).getBody(), new byte[size])) print(size);
        }
      }
      case "write" -> {
        declare("crossing", Map.of());
        var properties = properties().contentType("text/plain").messageId("7").headers(CROSSING).build();
        channel.basicPublish("", "crossing", properties, allBytes());
        print("pass");
      }
      case "read" -> {
        var got = channel.basicGet("crossing", true);
        var headers = new TreeMap<>(got.getProps().getHeaders()).toString();
        var properties = got.getProps().getContentType() + got.getProps().getMessageId();
        if (Arrays.equals(got.getBody(), allBytes()) && properties.equals("text/plain7")
            && headers.equals(new TreeMap<>(CROSSING).toString())) print("pass");
      }
    }
  }
}
