import org.springframework.amqp.AmqpAuthenticationException;
import org.springframework.amqp.rabbit.core.RabbitTemplate;

/** Spring AMQP without Spring Boot: the scenarios of ../README.md. */
public class Spring {
  public static void main(String[] arguments) {
    var name = arguments[0];
    try {
      if (name.equals("version")) {
        var jar = RabbitTemplate.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        System.out.println(jar.replaceAll(".*-|\\.jar", ""));
      }
      Connect.run(name);
      Topology.run(name);
      Publish.run(name);
      Consume.run(name);
      Patterns.run(name);
      Streams.run(name);
    } catch (AmqpAuthenticationException refused) {
      System.out.println("403 " + refused.getMessage());
    } catch (Throwable failure) { // what the broker refuses is the last cause
      failure.printStackTrace();
      while (failure.getCause() != null) failure = failure.getCause();
      System.out.println(failure);
    }
    System.exit(0);
  }
}
