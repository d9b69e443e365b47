import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends COUNT records to TOPIC, and accepts all of them as a share group, one after a release. A group begins after the last
 * record, so probes are sent until one arrives.
 */
public class ShareGroupProgram {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        Properties ofConsumer = new Properties();
        ofConsumer.putAll(settings);
        ofConsumer.put("group.id", "java");
        ofConsumer.put("share.acknowledgement.mode", "explicit");
        Set<String> seen = new HashSet<>();
        int again = 0;
        var text = new StringDeserializer();
        var toText = new StringSerializer();
        try (var producer = new KafkaProducer<>(settings, toText, toText);
                var consumer = new KafkaShareConsumer<>(ofConsumer, text, text)) {
            consumer.subscribe(List.of(topic));
            var probes = consumer.poll(Duration.ofMillis(500));
            while (probes.isEmpty()) {
                producer.send(new ProducerRecord<>(topic, "key", "probe")).get();
                probes = consumer.poll(Duration.ofMillis(500));
            }
            probes.forEach(each -> consumer.acknowledge(each, AcknowledgeType.ACCEPT));
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, "key", "value-" + number));
            }
            producer.flush();
            boolean isReleased = false;
            while (seen.size() < count) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(10))) {
                    if (record.value().equals("probe")) {
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                        continue;
                    }
                    if (!isReleased) {
                        isReleased = true;
                        consumer.acknowledge(record, AcknowledgeType.RELEASE);
                        continue;
                    }
                    again += record.deliveryCount().get() - 1;
                    seen.add(record.value());
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                consumer.commitSync().forEach((partition, error) -> error.ifPresent(each -> { throw each; }));
            }
        }
        try (Admin admin = Admin.create(settings)) {
            String state = admin.describeShareGroups(List.of("java")).all().get().get("java").groupState().toString();
            System.out.println("seen " + seen.size() + " again " + again + " group " + state);
        } catch (java.util.concurrent.ExecutionException error) {
            System.out.println("seen " + seen.size() + " again " + again + " group " + error.getCause().getClass().getSimpleName());
        }
    }
}
