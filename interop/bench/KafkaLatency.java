import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Times from the send of a record until a consumer has it, one record after the other: BOOTSTRAP TOPIC WARM COUNT SIZE.
 * Prints p50 and p99 in us. linger.ms is 0, as in Kafka's own tool (EndToEndLatency), which rounds to milliseconds.
 */
public class KafkaLatency {
    public static void main(String[] arguments) {
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        int warm = Integer.parseInt(arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        byte[] value = new byte[Integer.parseInt(arguments[4])];
        long[] took = new long[count];
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "linger.ms", 0);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
                var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
            for (int number = -warm; number < count; number++) {
                long began = System.nanoTime();
                producer.send(new ProducerRecord<>(partition.topic(), 0, null, value));
                while (consumer.poll(Duration.ofSeconds(10)).isEmpty()) {
                    if (System.nanoTime() - began > 30_000_000_000L) {
                        throw new IllegalStateException("a record has not come after 30 s");
                    }
                }
                if (number >= 0) {
                    took[number] = System.nanoTime() - began;
                }
            }
        }
        Arrays.sort(took);
        System.out.println("p50 " + took[count / 2] / 1000.0 + " p99 " + took[count * 99 / 100] / 1000.0);
    }
}
