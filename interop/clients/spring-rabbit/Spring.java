import com.rabbitmq.client.BlockedListener;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.ByteArrayInputStream;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.*;
import java.util.concurrent.*;
import javax.net.ssl.*;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.ImmediateRequeueAmqpException;
import org.springframework.amqp.core.*;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.*;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;
import org.springframework.amqp.rabbit.listener.api.ChannelAwareMessageListener;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Spring AMQP without Spring Boot: the scenarios of ../README.md. */
public class Spring {
  interface Call {
    void run() throws Exception;
  }

  record Delivery(Message message, Channel channel) {
    String text() {
      return new String(message.getBody());
    }

    void ack(boolean multiple) throws Exception {
      channel.basicAck(message.getMessageProperties().getDeliveryTag(), multiple);
    }
  }

  static final Map<String, Object> CROSSING =
      Map.of("text", "grüße", "number", 42, "yes", true, "array", List.of(1, "two"), "table", Map.of("a", "b"));
  static final Map<String, Call> SCENARIOS = new HashMap<>();
  static final CachingConnectionFactory connections = new CachingConnectionFactory(client());
  static final RabbitAdmin admin = new RabbitAdmin(connections);
  static final RabbitTemplate template = new RabbitTemplate(connections);

  static com.rabbitmq.client.ConnectionFactory client() {
    try {
      var client = new com.rabbitmq.client.ConnectionFactory();
      client.setUri(Objects.requireNonNullElse(System.getenv("AMQP_URL"), "amqp:///"));
      client.setAutomaticRecoveryEnabled(false); // Spring connects again itself
      if (System.getenv("CA_FILE") != null) {
        client.useSslProtocol(sslContext());
        client.enableHostnameVerification();
      }
      return client;
    } catch (Exception error) {
      throw new IllegalArgumentException(error);
    }
  }

  static SSLContext sslContext() throws Exception {
    var store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    store.setCertificateEntry("ca", certificates("CA_FILE")[0]);
    if (System.getenv("CERT_FILE") != null) {
      var pem = Files.readString(Path.of(System.getenv("KEY_FILE"))).split("-----");
      var key = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(pem[2]));
      var chain = certificates("CERT_FILE");
      store.setKeyEntry("client", KeyFactory.getInstance("RSA").generatePrivate(key), new char[0], chain);
    }
    var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
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

  static void check(boolean condition, Object got) {
    if (!condition) throw new AssertionError(got);
  }

  static void equal(Object got, Object expected) {
    check(Objects.equals(got, expected), got);
  }

  static void refused(String text, Call call) throws Exception {
    try {
      call.run();
    } catch (Exception error) {
      Throwable cause = error;
      while (!String.valueOf(cause.getMessage()).contains(text)) {
        cause = cause.getCause();
        check(cause != null, error);
      }
      return;
    }
    throw new AssertionError("not refused");
  }

  static Queue declare(QueueBuilder builder) {
    var queue = builder.build();
    admin.declareQueue(queue);
    return queue;
  }

  static Queue declare(String name) {
    return declare(QueueBuilder.nonDurable(name));
  }

  static void declare(Exchange exchange, Queue queue, String... keys) {
    admin.declareExchange(exchange);
    for (var key : keys) admin.declareBinding(BindingBuilder.bind(queue).to(exchange).with(key).noargs());
  }

  static Queue anonymous() {
    return declare(QueueBuilder.nonDurable().exclusive());
  }

  static void send(String queue, Object... bodies) {
    for (var body : bodies) template.convertAndSend(queue, body.toString());
  }

  static void send(String exchange, String key, String body, MessagePostProcessor properties) {
    template.convertAndSend(exchange, key, body, properties);
  }

  static MessagePostProcessor header(String key, Object value) {
    return message -> {
      message.getMessageProperties().setHeader(key, value);
      return message;
    };
  }

  static Message receive(String queue) {
    return template.receive(queue, 60_000);
  }

  static List<String> receive(Queue queue, int count) {
    var texts = new ArrayList<String>();
    while (texts.size() < count) texts.add(new String(receive(queue.getName()).getBody()));
    return texts;
  }

  static <T extends AbstractMessageListenerContainer> T start(T container, String queue, MessageListener listener) {
    container.setConnectionFactory(connections);
    container.setQueueNames(queue);
    container.setMessageListener(listener);
    container.afterPropertiesSet();
    container.start();
    return container;
  }

  /** Starts the container, which leaves acks to the program. */
  static BlockingQueue<Delivery> consume(AbstractMessageListenerContainer container, String queue, int prefetch) {
    var deliveries = new LinkedBlockingQueue<Delivery>();
    container.setAcknowledgeMode(AcknowledgeMode.MANUAL);
    container.setPrefetchCount(prefetch);
    start(container, queue, (ChannelAwareMessageListener) (message, channel) -> deliveries.add(new Delivery(message, channel)));
    return deliveries;
  }

  static List<String> take(BlockingQueue<Delivery> deliveries, int count) throws Exception {
    var texts = new ArrayList<String>();
    for (int i = 0; i < count; i++) texts.add(deliveries.take().text());
    return texts;
  }

  static void connects() {
    declare("hello");
    send("hello", "Hello World!");
    equal(template.receiveAndConvert("hello", 60_000), "Hello World!");
  }

  static void patterns(Exchange exchange, List<String> bindings, List<String> published, List<String> expected) {
    var queue = anonymous();
    declare(exchange, queue, bindings.toArray(String[]::new));
    for (var key : published) template.convertAndSend(exchange.getName(), key, key);
    equal(receive(queue, expected.size()), expected);
  }

  static void work(AbstractMessageListenerContainer container, String queue) throws Exception {
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
    check(done.size() == 10 && workers.size() == 2, done + " " + workers);
    container.stop();
  }

  public static String fibonacci(String text) {
    int a = 0, b = 1;
    for (int n = Integer.parseInt(text); n > 0; n--) b = a + (a = b);
    return String.valueOf(a);
  }

  static void rpc() {
    declare("rpc_queue");
    start(new SimpleMessageListenerContainer(), "rpc_queue", new MessageListenerAdapter(new Spring(), "fibonacci"));
    template.setReplyTimeout(60_000);
    equal(template.convertSendAndReceive("rpc_queue", "15"), "610");
  }

  static void expectDeath(String queue, String reason) {
    equal(receive(queue).getMessageProperties().getXDeathHeader().get(0).get("reason"), reason);
  }

  static void stream(String name, Map<String, Object> arguments, List<String> expected) throws Exception {
    declare(QueueBuilder.durable(name).stream());
    for (int n = 0; n < 10; n++) {
      send("", name, String.valueOf(n), header("x-stream-filter-value", n % 2 == 0 ? "even" : "odd"));
    }
    var container = new DirectMessageListenerContainer();
    container.setConsumerArguments(arguments);
    equal(take(consume(container, name, 10), expected.size()), expected);
  }

  static byte[] allBytes() {
    var body = new byte[256];
    for (int i = 0; i < 256; i++) body[i] = (byte) i;
    return body;
  }

  static {
    SCENARIOS.put("bad-password", () -> refused("ACCESS_REFUSED", () -> connections.createConnection()));
    SCENARIOS.put("bad-vhost", () -> refused("NOT_ALLOWED", () -> connections.createConnection()));
    SCENARIOS.put("heartbeat", () -> {
      connections.setRequestedHeartBeat(1);
      var connection = connections.createConnection();
      Thread.sleep(4000);
      connects();
      check(connection.isOpen(), "connected again");
    });
    for (var name : List.of("connect", "tls", "client-certificate")) SCENARIOS.put(name, Spring::connects);
    SCENARIOS.put("declare", () -> {
      var queue = declare(QueueBuilder.durable("declared"));
      var exchange = new TopicExchange("declared");
      declare(exchange, queue, "#");
      template.convertAndSend("declared", "key", "1");
      equal(admin.getQueueInfo("declared").getMessageCount(), 1L);
      equal(admin.purgeQueue("declared"), 1);
      admin.removeBinding(BindingBuilder.bind(queue).to(exchange).with("#"));
      check(admin.deleteExchange("declared") && admin.deleteQueue("declared"), "not deleted");
    });
    SCENARIOS.put("missing", () -> {
      refused("NOT_FOUND - no queue 'missing'", () -> template.execute(channel -> channel.queueDeclarePassive("missing")));
      connects();
    });
    SCENARIOS.put("inequivalent", () -> {
      declare(QueueBuilder.durable("inequivalent"));
      refused("inequivalent arg 'durable'", () -> declare("inequivalent"));
    });
    SCENARIOS.put("float-argument", () -> {
      for (Object same : List.of(10, 10L)) declare(QueueBuilder.nonDurable("float").withArgument("x-max-length", same));
      refused("x-max-length", () -> declare(QueueBuilder.nonDurable("float").withArgument("x-max-length", 10.0)));
    });
    SCENARIOS.put("work-queue", () -> {
      var simple = new SimpleMessageListenerContainer();
      simple.setConcurrentConsumers(2);
      work(simple, "tasks");
      var direct = new DirectMessageListenerContainer();
      direct.setConsumersPerQueue(2);
      work(direct, "tasks-direct");
    });
    SCENARIOS.put("publish-subscribe", () -> {
      var logs = new FanoutExchange("logs", false, false);
      var queues = List.of(anonymous(), anonymous());
      for (var queue : queues) declare(logs, queue, "");
      template.convertAndSend("logs", "", "log");
      for (var queue : queues) equal(receive(queue, 1), List.of("log"));
    });
    SCENARIOS.put("routing", () -> {
      var levels = List.of("info", "warning", "error");
      patterns(new DirectExchange("direct_logs", false, false), levels.subList(1, 3), levels, levels.subList(1, 3));
    });
    SCENARIOS.put("topics", () -> patterns(new TopicExchange("topic_logs", false, false),
        List.of("*.critical", "kern.#"), List.of("kern.critical", "cron.info", "kern.a.b", "cron.critical"),
        List.of("kern.critical", "kern.a.b", "cron.critical")));
    SCENARIOS.put("rpc", () -> {
      template.setUseTemporaryReplyQueues(true);
      rpc();
    });
    SCENARIOS.put("direct-reply-to", Spring::rpc); // what a RabbitTemplate uses without an option
    SCENARIOS.put("confirm", () -> {
      connections.setPublisherConfirmType(ConfirmType.CORRELATED);
      declare(QueueBuilder.durable("confirmed"));
      var correlation = new CorrelationData();
      template.convertAndSend("", "confirmed", "safe", correlation);
      check(correlation.getFuture().get().ack(), "not acked");
    });
    SCENARIOS.put("confirm-batch", () -> {
      connections.setPublisherConfirmType(ConfirmType.SIMPLE);
      declare(QueueBuilder.durable("batch"));
      template.invoke(operations -> {
        for (int n = 0; n < 1000; n++) operations.convertAndSend("batch", String.valueOf(n));
        operations.waitForConfirmsOrDie(60_000);
        return null;
      });
      equal(admin.purgeQueue("batch"), 1000);
    });
    SCENARIOS.put("mandatory", () -> {
      var returned = new LinkedBlockingQueue<ReturnedMessage>();
      connections.setPublisherReturns(true);
      template.setMandatory(true);
      template.setReturnsCallback(returned::add);
      send("nowhere", "lost");
      equal(returned.take().getReplyCode(), 312);
    });
    SCENARIOS.put("tx", () -> {
      var queue = declare("tx");
      template.setChannelTransacted(true);
      var transaction = new TransactionTemplate(new RabbitTransactionManager(connections));
      transaction.executeWithoutResult(status -> {
        send("tx", "no");
        status.setRollbackOnly();
      });
      transaction.executeWithoutResult(status -> send("tx", "yes"));
      equal(receive(queue, 1), List.of("yes"));
    });
    SCENARIOS.put("headers", () -> {
      var sent = new TreeMap<String, Object>();
      sent.putAll(Map.of("byte", (byte) -8, "short", (short) -16, "int", -32, "long", 1L << 40, "float", 1.5f));
      sent.putAll(Map.of("double", 2.5, "yes", true, "decimal", new BigDecimal("3.14"), "time", new Date(1767323045000L)));
      sent.putAll(Map.of("array", List.of(1, Map.of("three", 3)), "table", Map.of("a", Map.of("b", 1)), "text", "grüße"));
      declare("headers");
      send("", "headers", "", message -> {
        message.getMessageProperties().setHeaders(sent);
        return message;
      });
      equal(new TreeMap<>(receive("headers").getMessageProperties().getHeaders()), sent);
    });
    SCENARIOS.put("bodies", () -> {
      declare("bodies");
      for (int size : new int[] {0, 1, 131_064, 131_065, 1 << 20, 16 << 20}) {
        template.send("bodies", new Message(new byte[size]));
        check(Arrays.equals(receive("bodies").getBody(), new byte[size]), size);
      }
    });
    SCENARIOS.put("channels", () -> {
      var queue = declare("channels");
      var opened = new ArrayList<Channel>();
      for (int n = 0; n < 100; n++) opened.add(connections.createConnection().createChannel(false));
      for (var each : opened) each.basicPublish("", "channels", null, "x".getBytes());
      receive(queue, 100);
    });
    SCENARIOS.put("prefetch", () -> {
      declare("prefetch");
      for (int n = 0; n < 10; n++) send("prefetch", n);
      var deliveries = consume(new SimpleMessageListenerContainer(), "prefetch", 3);
      take(deliveries, 2);
      var third = deliveries.take();
      equal(admin.getQueueInfo("prefetch").getMessageCount(), 7L);
      third.ack(true);
      equal(take(deliveries, 3), List.of("3", "4", "5"));
    });
    SCENARIOS.put("requeue", () -> {
      declare("requeue");
      send("requeue", 1, 2, 3);
      var seen = new LinkedBlockingQueue<String>();
      var container = new DirectMessageListenerContainer();
      container.setPrefetchCount(1);
      start(container, "requeue", message -> {
        var text = new String(message.getBody());
        var redelivered = message.getMessageProperties().isRedelivered();
        seen.add(text + redelivered);
        if (text.equals("1")) {
          throw redelivered ? new AmqpRejectAndDontRequeueException("bad") : new ImmediateRequeueAmqpException("again");
        }
      });
      equal(List.of(seen.take(), seen.take(), seen.take(), seen.take()), List.of("1false", "1true", "2false", "3false"));
      container.stop();
      equal(admin.purgeQueue("requeue"), 0);
    });
    SCENARIOS.put("cancel", () -> {
      declare("cancel");
      for (var container : List.of(new SimpleMessageListenerContainer(), new DirectMessageListenerContainer())) {
        start(container, "cancel", message -> System.exit(1));
        container.stop();
      }
      send("cancel", "stays");
      equal(admin.purgeQueue("cancel"), 1);
    });
    SCENARIOS.put("broker-cancel", () -> {
      declare("cancelled");
      var told = new LinkedBlockingQueue<Object>();
      var container = new DirectMessageListenerContainer();
      container.setApplicationEventPublisher(told::add);
      consume(container, "cancelled", 1);
      while (!(told.take() instanceof AsyncConsumerStartedEvent)) {}
      admin.deleteQueue("cancelled");
      Object event = "";
      while (!(event instanceof ListenerContainerConsumerTerminatedEvent)) event = told.take();
      check(event.toString().contains("canceled"), event);
    });
    SCENARIOS.put("blocked", () -> {
      var told = new LinkedBlockingQueue<String>();
      connections.createConnection().addBlockedListener(new BlockedListener() {
        public void handleBlocked(String reason) {
          told.add(reason);
        }

        public void handleUnblocked() {
          told.add("unblocked");
        }
      });
      send("nowhere", "held");
      equal(told.take(), "low on memory");
      System.out.println("ready"); // the runner ends the alarm
      equal(told.take(), "unblocked");
    });
    SCENARIOS.put("dead-letter", () -> {
      declare("dead");
      declare(QueueBuilder.nonDurable("rejecting").deadLetterExchange("").deadLetterRoutingKey("dead"));
      send("rejecting", "bad");
      var container = new SimpleMessageListenerContainer();
      container.setDefaultRequeueRejected(false);
      start(container, "rejecting", message -> {
        throw new IllegalArgumentException("bad");
      });
      expectDeath("dead", "rejected");
    });
    SCENARIOS.put("message-ttl", () -> {
      declare("expired");
      declare(QueueBuilder.nonDurable("ttl").deadLetterExchange("").deadLetterRoutingKey("expired"));
      template.send("ttl", MessageBuilder.withBody("short".getBytes()).setExpiration("50").build());
      expectDeath("expired", "expired");
    });
    SCENARIOS.put("queue-ttl", () -> {
      var queue = declare(QueueBuilder.nonDurable("leased").expires(100));
      var binding = BindingBuilder.bind(queue).to(new FanoutExchange("amq.fanout"));
      refused("NOT_FOUND", () -> template.execute(channel -> {
        while (true) { // a bind does not renew the lease
          channel.queueBind("leased", binding.getExchange(), "");
          Thread.sleep(50);
        }
      }));
    });
    SCENARIOS.put("priority", () -> {
      var queue = declare(QueueBuilder.nonDurable("priority").maxPriority(5));
      for (int level : new int[] {1, 5, 3}) {
        template.send("priority", MessageBuilder.withBody(String.valueOf(level).getBytes()).setPriority(level).build());
      }
      equal(receive(queue, 3), List.of("5", "3", "1"));
    });
    SCENARIOS.put("delayed", () -> {
      var exchange = new FanoutExchange("delayed", false, false);
      exchange.setDelayed(true);
      var queue = declare("delayed");
      declare(exchange, queue, "");
      for (var each : List.of(Map.entry("late", 1000L), Map.entry("soon", 1L))) {
        send("delayed", "", each.getKey(), message -> {
          message.getMessageProperties().setDelayLong(each.getValue());
          return message;
        });
      }
      equal(receive(queue, 2), List.of("soon", "late"));
    });
    SCENARIOS.put("stream-offset", () ->
        stream("stream", Map.of("x-stream-offset", 5), List.of("5", "6", "7", "8", "9")));
    SCENARIOS.put("stream-filter", () -> stream("filtered",
        Map.of("x-stream-offset", "first", "x-stream-filter", "odd"), List.of("1", "3", "5", "7", "9")));
    SCENARIOS.put("policy", () -> {
      declare("limited");
      send("limited", 1, 2, 3, 4);
      equal(admin.purgeQueue("limited"), 2);
    });
    SCENARIOS.put("reconnect", () -> { // the container connects again, and consumes again
      connections.setPublisherConfirmType(ConfirmType.CORRELATED);
      declare(QueueBuilder.durable("kept"));
      var correlation = new CorrelationData();
      template.convertAndSend("", "kept", "kept", correlation);
      check(correlation.getFuture().get().ack(), "not acked");
      var container = new SimpleMessageListenerContainer();
      container.setRecoveryInterval(100);
      var deliveries = consume(container, "kept", 1);
      deliveries.take();
      System.out.println("ready"); // the runner kills the broker and starts it again
      var again = deliveries.take();
      check(again.message().getMessageProperties().isRedelivered(), "not redelivered");
      equal(again.text(), "kept");
    });
    SCENARIOS.put("write", () -> {
      declare("crossing");
      var message = MessageBuilder.withBody(allBytes()).setContentType("text/plain").setMessageId("7");
      template.send("crossing", message.copyHeaders(CROSSING).build());
    });
    SCENARIOS.put("read", () -> {
      var got = receive("crossing");
      check(Arrays.equals(got.getBody(), allBytes()), "body");
      var properties = got.getMessageProperties();
      equal(properties.getContentType() + properties.getMessageId(), "text/plain7");
      equal(new TreeMap<>(properties.getHeaders()).toString(), new TreeMap<>(CROSSING).toString());
    });
  }

  public static void main(String[] arguments) {
    if (arguments[0].equals("version")) {
      var jar = RabbitTemplate.class.getProtectionDomain().getCodeSource().getLocation().getPath();
      System.out.println(jar.replaceAll(".*-|\\.jar", ""));
      System.exit(0);
    }
    try {
      SCENARIOS.get(arguments[0]).run();
      System.out.println("pass");
      System.exit(0);
    } catch (Throwable failure) {
      failure.printStackTrace();
      System.exit(1);
    }
  }
}
