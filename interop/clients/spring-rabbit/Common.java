import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import java.util.Objects;
import java.util.concurrent.*;
import org.springframework.amqp.core.*;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.core.*;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.api.ChannelAwareMessageListener;

/** What the groups of scenarios share: an application's beans, how they declare, send and receive. */
class Common {
  static final CachingConnectionFactory connections = new CachingConnectionFactory(client());
  static final RabbitAdmin admin = new RabbitAdmin(connections);
  static final RabbitTemplate template = new RabbitTemplate(connections);

  record Delivery(Message message, Channel channel) {
    String text() {
      return new String(message.getBody());
    }
  }

  static ConnectionFactory client() {
    try {
      var client = new ConnectionFactory();
      client.setUri(Objects.requireNonNullElse(System.getenv("AMQP_URL"), "amqp:///"));
      client.setAutomaticRecoveryEnabled(false); // Spring connects again itself
      if (System.getenv("CA_FILE") != null) {
        client.useSslProtocol(Tls.context());
        client.enableHostnameVerification();
      }
      return client;
    } catch (Exception error) {
      throw new IllegalArgumentException(error);
    }
  }

  static void print(Object line) {
    System.out.println(line);
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

  static void send(String queue, Object... bodies) {
    for (var body : bodies) template.convertAndSend(queue, body.toString());
  }

  static Message receive(String queue) {
    return template.receive(queue, 60_000);
  }

  static void receive(Queue queue, int count) {
    for (int n = 0; n < count; n++) print(new String(receive(queue.getName()).getBody()));
  }

  static void start(AbstractMessageListenerContainer container, String queue, MessageListener listener) {
    container.setConnectionFactory(connections);
    container.setQueueNames(queue);
    container.setMessageListener(listener);
    container.afterPropertiesSet();
    container.start();
  }

  /** Starts the container, which leaves acks to the program. */
  static BlockingQueue<Delivery> consume(AbstractMessageListenerContainer container, String queue, int prefetch) {
    var deliveries = new LinkedBlockingQueue<Delivery>();
    container.setAcknowledgeMode(AcknowledgeMode.MANUAL);
    container.setPrefetchCount(prefetch);
    start(container, queue, (ChannelAwareMessageListener) (message, channel) -> deliveries.add(new Delivery(message, channel)));
    return deliveries;
  }

  /** Prints the bodies of the next messages. */
  static void print(BlockingQueue<Delivery> deliveries, int count) throws Exception {
    for (int n = 0; n < count; n++) print(deliveries.take().text());
  }

  static void hello() {
    declare("hello");
    send("hello", "Hello World!");
    print(template.receiveAndConvert("hello", 60_000));
  }
}
