import java.io.FileReader;
import java.io.Reader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;

/**
 * Counts the words of `orders` into `counts`, and joins `orders` with `payments` of the same key into `paid`.
 *
 * Argument: a file with the settings. It runs until SIGTERM, which finishes what it has read.
 */
public class StreamsProgram {
    static final Duration WINDOW = Duration.ofSeconds(10);
    /** More than the range of times in the test, so that no record is too late. With it retention is no whole seconds. */
    static final Duration GRACE = Duration.ofHours(1).plusMillis(750);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader reader = new FileReader(arguments[0])) {
            settings.load(reader);
        }
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> orders = builder.stream("orders");
        KStream<String, String> payments = builder.stream("payments");
        orders.flatMapValues(value -> List.of(value.split(" ")))
                .groupBy((key, word) -> word)
                .count()
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to("counts");
        orders.join(payments, (order, payment) -> payment, JoinWindows.ofTimeDifferenceAndGrace(WINDOW, GRACE)).to("paid");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        failed.await();
        Runtime.getRuntime().halt(1);
    }
}
