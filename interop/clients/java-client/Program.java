import com.rabbitmq.client.*;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.impl.LongStringHelper;
import java.io.ByteArrayInputStream;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.*;
import java.util.concurrent.*;
import javax.net.ssl.*;

/** RabbitMQ's Java client, with -Dnio=true without a thread for each connection: the scenarios of ../README.md. */
public class Program {
  interface Scenario {
    void run(Connection connection, Channel channel) throws Exception;
  }

  interface Call {
    void run() throws Exception;
  }

  static final Map<String, Object> CROSSING =
      Map.of("text", "grüße", "number", 42, "yes", true, "array", List.of(1, "two"), "table", Map.of("a", "b"));
  static final BasicProperties PERSISTENT = MessageProperties.PERSISTENT_BASIC;

  static ConnectionFactory factory() throws Exception {
    var factory = new ConnectionFactory();
    factory.setUri(System.getenv("AMQP_URL"));
    if (Boolean.getBoolean("nio")) factory.useNio();
    if (System.getenv("CA_FILE") != null) {
      factory.useSslProtocol(sslContext());
      factory.enableHostnameVerification();
    }
    return factory;
  }

  static SSLContext sslContext() throws Exception {
    var store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    store.setCertificateEntry("ca", certificates("CA_FILE")[0]);
    var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    if (System.getenv("CERT_FILE") != null) {
      store.setKeyEntry("client", privateKey(), new char[0], certificates("CERT_FILE"));
    }
    keys.init(store, new char[0]);
    var context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
    return context;
  }

  static Certificate[] certificates(String variable) throws Exception {
    var text = Files.readString(Path.of(System.getenv(variable)));
    var pem = text.substring(text.indexOf("-----BEGIN CERTIFICATE")).getBytes();
    var found = CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
    return found.toArray(Certificate[]::new);
  }

  static PrivateKey privateKey() throws Exception { // PKCS#8
    var text = Files.readString(Path.of(System.getenv("KEY_FILE"))).split("-----");
    var key = Base64.getMimeDecoder().decode(text[2]);
    return KeyFactory.getInstance("RSA").generatePrivate(new PKCS8EncodedKeySpec(key));
  }

  static void check(boolean condition, Object got) {
    if (!condition) throw new AssertionError(got);
  }

  static void equal(Object got, Object expected) {
    check(expected.equals(got), got);
  }

  static void send(Channel channel, String queue, BasicProperties properties, String... bodies) throws Exception {
    for (var body : bodies) channel.basicPublish("", queue, properties, body.getBytes());
  }

  static String declareQueue(Channel channel, String name, Map<String, Object> arguments) throws Exception {
    return channel.queueDeclare(name, arguments.containsValue("stream"), false, false, arguments).getQueue();
  }

  static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean autoAck, Map<String, Object> arguments)
      throws Exception {
    var deliveries = new LinkedBlockingQueue<Delivery>();
    channel.basicConsume(queue, autoAck, arguments, (tag, delivery) -> deliveries.add(delivery), tag -> {});
    return deliveries;
  }

  static List<String> take(BlockingQueue<Delivery> deliveries, int count) throws Exception {
    var texts = new ArrayList<String>();
    for (int i = 0; i < count; i++) texts.add(new String(deliveries.take().getBody()));
    return texts;
  }

  static List<String> receive(Channel channel, String queue, int count) throws Exception {
    return take(consume(channel, queue, true, Map.of()), count);
  }

  static void refused(int code, String text, Call call) throws Exception {
    try {
      call.run();
    } catch (Exception error) {
      var signal = (ShutdownSignalException) (error instanceof ShutdownSignalException ? error : error.getCause());
      var close = (com.rabbitmq.client.Method) signal.getReason();
      check(close.toString().contains("reply-code=" + code) && close.toString().contains(text), close);
      return;
    }
    throw new AssertionError("not refused");
  }

  static void connects(Connection connection, Channel channel) throws Exception {
    declareQueue(channel, "hello", Map.of());
    send(channel, "hello", null, "Hello World!");
    equal(receive(channel, "hello", 1), List.of("Hello World!"));
  }

  static void patterns(Channel channel, String exchange, String type, List<String> bindings, List<String> published,
      List<String> expected) throws Exception {
    channel.exchangeDeclare(exchange, type);
    var queue = channel.queueDeclare().getQueue();
    for (var key : bindings) channel.queueBind(queue, exchange, key);
    for (var key : published) channel.basicPublish(exchange, key, null, key.getBytes());
    equal(receive(channel, queue, expected.size()), expected);
  }

  static int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
  }

  static void rpc(Channel channel, String callback) throws Exception {
    declareQueue(channel, "rpc_queue", Map.of());
    channel.basicConsume("rpc_queue", true, (tag, request) -> {
      var reply = new BasicProperties.Builder().correlationId(request.getProperties().getCorrelationId()).build();
      var result = String.valueOf(fibonacci(Integer.parseInt(new String(request.getBody()))));
      channel.basicPublish("", request.getProperties().getReplyTo(), reply, result.getBytes());
    }, tag -> {});
    var replies = consume(channel, callback, true, Map.of());
    send(channel, "rpc_queue", new BasicProperties.Builder().replyTo(callback).correlationId("1").build(), "15");
    var reply = replies.take();
    equal(reply.getProperties().getCorrelationId() + " " + new String(reply.getBody()), "1 610");
  }

  static String reasonOfDeath(Channel channel, String queue) throws Exception {
    var deaths = (List<?>) consume(channel, queue, true, Map.of()).take().getProperties().getHeaders().get("x-death");
    return ((Map<?, ?>) deaths.get(0)).get("reason").toString();
  }

  static void stream(Channel channel, String name, Map<String, Object> arguments, List<String> expected) throws Exception {
    declareQueue(channel, name, Map.of("x-queue-type", "stream"));
    for (int n = 0; n < 10; n++) {
      Map<String, Object> filter = Map.of("x-stream-filter-value", n % 2 == 0 ? "even" : "odd");
      send(channel, name, new BasicProperties.Builder().headers(filter).build(), String.valueOf(n));
    }
    channel.basicQos(10);
    equal(take(consume(channel, name, false, arguments), expected.size()), expected);
  }

  static byte[] allBytes() {
    var body = new byte[256];
    for (int i = 0; i < 256; i++) body[i] = (byte) i;
    return body;
  }

  static final Map<String, Call> ALONE = new HashMap<>();
  static final Map<String, Scenario> SCENARIOS = new HashMap<>();

  static {
    ALONE.put("bad-password", () -> {
      try {
        factory().newConnection();
      } catch (AuthenticationFailureException error) {
        check(error.getMessage().contains("ACCESS_REFUSED"), error);
        return;
      }
      throw new AssertionError("not refused");
    });
    ALONE.put("bad-vhost", () -> refused(530, "NOT_ALLOWED", () -> factory().newConnection()));
    ALONE.put("heartbeat", () -> {
      var factory = factory();
      factory.setRequestedHeartbeat(1);
      var connection = factory.newConnection();
      Thread.sleep(4000);
      connects(connection, connection.createChannel());
    });
    for (var name : List.of("connect", "tls", "client-certificate")) SCENARIOS.put(name, Program::connects);
    SCENARIOS.put("declare", (connection, channel) -> {
      channel.queueDeclare("declared", true, false, false, null);
      channel.exchangeDeclare("declared", "topic", true);
      channel.queueBind("declared", "declared", "#");
      channel.basicPublish("declared", "key", null, "1".getBytes());
      channel.queueDeclarePassive("declared");
      channel.exchangeDeclarePassive("declared");
      equal(channel.queuePurge("declared").getMessageCount(), 1);
      channel.queueUnbind("declared", "declared", "#");
      channel.exchangeDelete("declared");
      channel.queueDelete("declared");
    });
    SCENARIOS.put("missing", (connection, channel) -> {
      refused(404, "NOT_FOUND - no queue 'missing'", () -> channel.queueDeclarePassive("missing"));
      connects(connection, connection.createChannel());
    });
    SCENARIOS.put("inequivalent", (connection, channel) -> {
      channel.queueDeclare("inequivalent", true, false, false, null);
      var text = "inequivalent arg 'durable'";
      refused(406, text, () -> channel.queueDeclare("inequivalent", false, false, false, null));
    });
    SCENARIOS.put("float-argument", (connection, channel) -> {
      declareQueue(channel, "float", Map.of("x-max-length", 10));
      declareQueue(channel, "float", Map.of("x-max-length", 10L));
      refused(406, "x-max-length", () -> declareQueue(channel, "float", Map.of("x-max-length", 10.0)));
    });
    SCENARIOS.put("work-queue", (connection, channel) -> {
      channel.queueDeclare("tasks", true, false, false, null);
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
      channel.basicConsume("tasks", false, work, tag -> {});
      channel.basicConsume("tasks", false, work, tag -> {});
      send(channel, "tasks", PERSISTENT, "0123456789".split(""));
      finished.await();
      check(done.size() == 10 && workers.size() == 2, done + " " + workers);
    });
    SCENARIOS.put("publish-subscribe", (connection, channel) -> {
      channel.exchangeDeclare("logs", "fanout");
      var queues = List.of(channel.queueDeclare().getQueue(), channel.queueDeclare().getQueue());
      for (var queue : queues) channel.queueBind(queue, "logs", "");
      channel.basicPublish("logs", "", null, "log".getBytes());
      for (var queue : queues) equal(receive(channel, queue, 1), List.of("log"));
    });
    SCENARIOS.put("routing", (connection, channel) -> {
      var levels = List.of("info", "warning", "error");
      patterns(channel, "direct_logs", "direct", levels.subList(1, 3), levels, levels.subList(1, 3));
    });
    SCENARIOS.put("topics", (connection, channel) -> patterns(channel, "topic_logs", "topic",
        List.of("*.critical", "kern.#"), List.of("kern.critical", "cron.info", "kern.a.b", "cron.critical"),
        List.of("kern.critical", "kern.a.b", "cron.critical")));
    SCENARIOS.put("rpc", (connection, channel) -> rpc(channel, channel.queueDeclare().getQueue()));
    SCENARIOS.put("direct-reply-to", (connection, channel) -> rpc(channel, "amq.rabbitmq.reply-to"));
    SCENARIOS.put("confirm", (connection, channel) -> {
      channel.queueDeclare("confirmed", true, false, false, null);
      channel.confirmSelect();
      send(channel, "confirmed", PERSISTENT, "safe");
      channel.waitForConfirmsOrDie();
    });
    SCENARIOS.put("confirm-batch", (connection, channel) -> {
      channel.queueDeclare("batch", true, false, false, null);
      channel.confirmSelect();
      for (int n = 0; n < 1000; n++) send(channel, "batch", PERSISTENT, String.valueOf(n));
      channel.waitForConfirmsOrDie();
      equal(channel.queuePurge("batch").getMessageCount(), 1000);
    });
    SCENARIOS.put("mandatory", (connection, channel) -> {
      var returned = new LinkedBlockingQueue<Return>();
      channel.addReturnListener((ReturnCallback) returned::add);
      channel.basicPublish("", "nowhere", true, null, new byte[0]);
      equal(returned.take().getReplyCode(), 312);
    });
    SCENARIOS.put("tx", (connection, channel) -> {
      declareQueue(channel, "tx", Map.of());
      channel.txSelect();
      send(channel, "tx", null, "no");
      channel.txRollback();
      send(channel, "tx", null, "yes");
      channel.txCommit();
      equal(receive(channel, "tx", 1), List.of("yes"));
    });
    SCENARIOS.put("headers", (connection, channel) -> {
      var sent = new TreeMap<String, Object>();
      sent.putAll(Map.of("byte", (byte) -8, "short", (short) -16, "int", -32, "long", 1L << 40, "float", 1.5f));
      sent.putAll(Map.of("double", 2.5, "yes", true, "decimal", new BigDecimal("3.14"), "time", new Date(1767323045000L)));
      sent.putAll(Map.of("array", List.of(1, Map.of("three", 3)), "table", Map.of("a", Map.of("b", 1))));
      sent.put("text", LongStringHelper.asLongString("grüße"));
      sent.put("nothing", null);
      declareQueue(channel, "headers", Map.of());
      send(channel, "headers", new BasicProperties.Builder().headers(sent).build(), "");
      equal(new TreeMap<>(channel.basicGet("headers", true).getProps().getHeaders()), sent);
    });
    SCENARIOS.put("bodies", (connection, channel) -> {
      declareQueue(channel, "bodies", Map.of());
      for (int size : new int[] {0, 1, 131_064, 131_065, 1 << 20, 16 << 20}) {
        channel.basicPublish("", "bodies", null, new byte[size]);
        check(Arrays.equals(channel.basicGet("bodies", true).getBody(), new byte[size]), size);
      }
    });
    SCENARIOS.put("channels", (connection, channel) -> {
      declareQueue(channel, "channels", Map.of());
      var opened = new ArrayList<Channel>();
      for (int n = 0; n < 100; n++) opened.add(connection.createChannel());
      for (var each : opened) send(each, "channels", null, "x");
      receive(channel, "channels", 100);
    });
    SCENARIOS.put("prefetch", (connection, channel) -> {
      declareQueue(channel, "prefetch", Map.of());
      send(channel, "prefetch", null, "0123456789".split(""));
      channel.basicQos(3);
      var deliveries = consume(channel, "prefetch", false, Map.of());
      take(deliveries, 2);
      var third = deliveries.take();
      equal(channel.queueDeclarePassive("prefetch").getMessageCount(), 7);
      channel.basicAck(third.getEnvelope().getDeliveryTag(), true);
      equal(take(deliveries, 3), List.of("3", "4", "5"));
    });
    SCENARIOS.put("requeue", (connection, channel) -> {
      declareQueue(channel, "requeue", Map.of());
      send(channel, "requeue", null, "1", "2", "3");
      for (int n = 0; n < 2; n++) channel.basicGet("requeue", false);
      channel.basicNack(channel.basicGet("requeue", false).getEnvelope().getDeliveryTag(), true, true);
      var got = new ArrayList<GetResponse>();
      for (int n = 0; n < 3; n++) got.add(channel.basicGet("requeue", false));
      equal(got.stream().map(each -> new String(each.getBody())).toList(), List.of("1", "2", "3"));
      check(got.stream().allMatch(each -> each.getEnvelope().isRedeliver()), "not redelivered");
      channel.basicReject(got.get(0).getEnvelope().getDeliveryTag(), false);
      channel.basicAck(got.get(2).getEnvelope().getDeliveryTag(), true);
      equal(channel.queuePurge("requeue").getMessageCount(), 0);
    });
    SCENARIOS.put("cancel", (connection, channel) -> {
      declareQueue(channel, "cancel", Map.of());
      var tag = channel.basicConsume("cancel", true, (consumer, delivery) -> System.exit(1), consumer -> {});
      channel.basicCancel(tag);
      send(channel, "cancel", null, "stays");
      equal(channel.queuePurge("cancel").getMessageCount(), 1);
    });
    SCENARIOS.put("broker-cancel", (connection, channel) -> {
      var told = new LinkedBlockingQueue<String>();
      declareQueue(channel, "cancelled", Map.of());
      channel.basicConsume("cancelled", false, "reader", (tag, delivery) -> {}, told::add);
      connection.createChannel().queueDelete("cancelled");
      equal(told.take(), "reader");
    });
    SCENARIOS.put("blocked", (connection, channel) -> {
      var told = new LinkedBlockingQueue<String>();
      connection.addBlockedListener(told::add, () -> told.add("unblocked"));
      send(channel, "nowhere", null, "held");
      equal(told.take(), "low on memory");
      System.out.println("ready"); // the runner ends the alarm
      equal(told.take(), "unblocked");
    });
    SCENARIOS.put("dead-letter", (connection, channel) -> {
      declareQueue(channel, "dead", Map.of());
      declareQueue(channel, "rejecting", Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", "dead"));
      send(channel, "rejecting", null, "bad");
      channel.basicReject(channel.basicGet("rejecting", false).getEnvelope().getDeliveryTag(), false);
      equal(reasonOfDeath(channel, "dead"), "rejected");
    });
    SCENARIOS.put("message-ttl", (connection, channel) -> {
      declareQueue(channel, "expired", Map.of());
      declareQueue(channel, "ttl", Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", "expired"));
      send(channel, "ttl", new BasicProperties.Builder().expiration("50").build(), "short");
      equal(reasonOfDeath(channel, "expired"), "expired");
    });
    SCENARIOS.put("queue-ttl", (connection, channel) -> {
      declareQueue(channel, "leased", Map.of("x-expires", 100));
      refused(404, "NOT_FOUND", () -> {
        while (true) { // a bind does not renew the lease
          channel.queueBind("leased", "amq.fanout", "");
          Thread.sleep(50);
        }
      });
    });
    SCENARIOS.put("priority", (connection, channel) -> {
      declareQueue(channel, "priority", Map.of("x-max-priority", 5));
      for (int level : new int[] {1, 5, 3}) {
        send(channel, "priority", new BasicProperties.Builder().priority(level).build(), String.valueOf(level));
      }
      equal(receive(channel, "priority", 3), List.of("5", "3", "1"));
    });
    SCENARIOS.put("delayed", (connection, channel) -> {
      channel.exchangeDeclare("delayed", "x-delayed-message", false, false, Map.of("x-delayed-type", "fanout"));
      declareQueue(channel, "delayed", Map.of());
      channel.queueBind("delayed", "delayed", "");
      for (var each : List.of(Map.entry("late", 1000), Map.entry("soon", 1))) {
        var delay = new BasicProperties.Builder().headers(Map.of("x-delay", each.getValue())).build();
        channel.basicPublish("delayed", "", delay, each.getKey().getBytes());
      }
      equal(receive(channel, "delayed", 2), List.of("soon", "late"));
    });
    SCENARIOS.put("stream-offset", (connection, channel) ->
        stream(channel, "stream", Map.of("x-stream-offset", 5), List.of("5", "6", "7", "8", "9")));
    SCENARIOS.put("stream-filter", (connection, channel) -> stream(channel, "filtered",
        Map.of("x-stream-offset", "first", "x-stream-filter", "odd"), List.of("1", "3", "5", "7", "9")));
    SCENARIOS.put("policy", (connection, channel) -> {
      declareQueue(channel, "limited", Map.of());
      send(channel, "limited", null, "1", "2", "3", "4");
      equal(channel.queuePurge("limited").getMessageCount(), 2);
    });
    ALONE.put("reconnect", () -> { // the client itself connects again, and restores its consumers
      var factory = factory();
      factory.setNetworkRecoveryInterval(100);
      var channel = factory.newConnection().createChannel();
      channel.queueDeclare("kept", true, false, false, null);
      channel.confirmSelect();
      send(channel, "kept", PERSISTENT, "kept");
      channel.waitForConfirmsOrDie();
      var deliveries = consume(channel, "kept", false, Map.of());
      deliveries.take();
      System.out.println("ready"); // the runner kills the broker and starts it again
      var again = deliveries.take();
      check(again.getEnvelope().isRedeliver(), "not redelivered");
      equal(new String(again.getBody()), "kept");
    });
    SCENARIOS.put("write", (connection, channel) -> {
      declareQueue(channel, "crossing", Map.of());
      var properties = new BasicProperties.Builder().contentType("text/plain").messageId("7").headers(CROSSING).build();
      channel.basicPublish("", "crossing", properties, allBytes());
    });
    SCENARIOS.put("read", (connection, channel) -> {
      var got = channel.basicGet("crossing", true);
      check(Arrays.equals(got.getBody(), allBytes()), "body");
      equal(got.getProps().getContentType() + got.getProps().getMessageId(), "text/plain7");
      equal(new TreeMap<>(got.getProps().getHeaders()).toString(), new TreeMap<>(CROSSING).toString());
    });
  }

  public static void main(String[] arguments) throws Exception {
    var name = arguments[0];
    if (name.equals("version")) {
      System.out.println(new ConnectionFactory().getClientProperties().get("version"));
      return;
    }
    try {
      if (ALONE.containsKey(name)) {
        ALONE.get(name).run();
      } else {
        var connection = factory().newConnection();
        SCENARIOS.get(name).run(connection, connection.createChannel());
        connection.close();
      }
      System.out.println("pass");
      System.exit(0);
    } catch (Throwable failure) {
      failure.printStackTrace();
      System.exit(1);
    }
  }
}
