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
 * Arguments: HOST:PORT, the folder for its state, and optionally the id of a static member. It runs until SIGTERM, which
 * finishes what it has read.
 */
public class StreamsProgram {
    static final Duration WINDOW = Duration.ofSeconds(10);
    /** More than the range of times in the test, so that no record is too late. */
    static final Duration GRACE = Duration.ofHours(1);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("state.dir", arguments[1]);
        settings.put("application.id", "shop");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", "1");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        // Small files, so that changelogs are compacted.
        settings.put("topic.segment.bytes", "65536");
        // Each change of a count is a record: 1, 2, 3 ... for each word.
        settings.put("statestore.cache.max.bytes", "0");
        // A killed member is removed after this time.
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("consumer.heartbeat.interval.ms", "1000");
        settings.put("consumer.auto.offset.reset", "earliest");

        if (arguments.length > 2) {
            settings.put("consumer.group.instance.id", arguments[2]);
        }

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
