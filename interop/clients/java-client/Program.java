import com.rabbitmq.client.*;

/** RabbitMQ's Java client, with -Dnio=true without a thread for each connection: the scenarios of ../README.md. */
public class Program {
  public static void main(String[] arguments) {
    var name = arguments[0];
    try {
      if (name.equals("version")) {
        System.out.println(new ConnectionFactory().getClientProperties().get("version"));
        return;
      }
      Common.connect(name);
      Connect.run(name);
      Topology.run(name);
      Publish.run(name);
      Consume.run(name);
      Patterns.run(name);
      Streams.run(name);
      Common.connection.close();
    } catch (AuthenticationFailureException refused) {
      System.out.println("403 " + refused.getMessage());
    } catch (Exception failure) { // what the broker refuses is the cause
      failure.printStackTrace();
      System.out.println(failure.getCause() == null ? failure : failure.getCause());
    }
    System.exit(0);
  }
}
