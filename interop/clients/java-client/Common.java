import com.rabbitmq.client.*;
import com.rabbitmq.client.AMQP.BasicProperties;
import java.util.*;
import java.util.concurrent.*;

/** What the groups of scenarios share: a connection with a channel, how they send and receive. */
class Common {
  static final BasicProperties PERSISTENT = MessageProperties.PERSISTENT_BASIC;
  static Connection connection;
  static Channel channel;

  static void connect(String scenario) throws Exception {
    var factory = new ConnectionFactory();
    factory.setUri(System.getenv("AMQP_URL"));
    factory.setNetworkRecoveryInterval(100);
    if (Boolean.getBoolean("nio")) factory.useNio();
    if (scenario.equals("heartbeat")) factory.setRequestedHeartbeat(1);
    if (System.getenv("CA_FILE") != null) {
      factory.useSslProtocol(Tls.context());
      factory.enableHostnameVerification();
    }
    connection = factory.newConnection();
    channel = connection.createChannel();
  }

  static void print(Object line) {
    System.out.println(line);
  }

  static BasicProperties.Builder properties() {
    return new BasicProperties.Builder();
  }

  static void send(String queue, BasicProperties properties, String... bodies) throws Exception {
    for (var body : bodies) channel.basicPublish("", queue, properties, body.getBytes());
  }

  static void declare(String queue, Map<String, Object> arguments) throws Exception {
    channel.queueDeclare(queue, arguments.containsValue("stream"), false, false, arguments);
  }

  static void declareDurable(String queue) throws Exception {
    channel.queueDeclare(queue, true, false, false, null);
  }

  static BlockingQueue<Delivery> consume(String queue, boolean autoAck, Map<String, Object> arguments) throws Exception {
    var deliveries = new LinkedBlockingQueue<Delivery>();
    channel.basicConsume(queue, autoAck, arguments, (tag, delivery) -> deliveries.add(delivery), tag -> {});
    return deliveries;
  }

  /** Prints the bodies of the next messages. */
  static void print(BlockingQueue<Delivery> deliveries, int count) throws Exception {
    for (int n = 0; n < count; n++) print(new String(deliveries.take().getBody()));
  }

  static void receive(String queue, int count) throws Exception {
    print(consume(queue, true, Map.of()), count);
  }

  static void purge(String queue) throws Exception {
    print(channel.queuePurge(queue).getMessageCount());
  }

  static void hello() throws Exception {
    declare("hello", Map.of());
    send("hello", null, "Hello World!");
    receive("hello", 1);
  }
}
