import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** Kafka's Java client: the steps of README.md. Run with `java -cp 'JARS/*' Steps.java HOST:PORT [--records N]`. */
@SuppressWarnings({"deprecation", "removal"})  // what 3.9 and 4.3 both have
public class Steps {
    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    static final int EACH = 200;
    static final long TIME_MS = 1_700_000_000_000L;
    static final Duration POLL = Duration.ofMillis(100);
    static final String TOPIC = "java-" + UUID.randomUUID();
    static final TopicPartition PARTITION = new TopicPartition(TOPIC, 0);
    static final String GROUP = "group-" + TOPIC;
    static final List<byte[]> sent = new ArrayList<>();
    static final String CROSSING = System.getenv("STEPS_CROSSING");
    static String address;
    static Admin admin;
    static boolean failed;

    interface Step {
        String run() throws Exception;
    }

    static void step(String name, Step step) {
        boolean ok = true;
        String detail;
        try {
            detail = step.run();
        } catch (Throwable error) {
            ok = false;
            failed = true;
            detail = error.toString();
            error.printStackTrace();
        }
        detail = detail.replace("\\", "\\\\").replace("\"", "'").replace("\n", " ");
        System.out.println("{\"step\": \"" + name + "\", \"ok\": " + ok + ", \"detail\": \"" + detail + "\"}");
    }

    static void check(boolean condition, String text) {
        if (!condition) throw new AssertionError(text);
    }

    static void await(String text, BooleanSupplier condition) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!condition.getAsBoolean()) check(System.nanoTime() < deadline, "not within 60 s: " + text);
    }

    /** The address, and where STEPS_CA is set TLS and a login. */
    static Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", address);
        String ca = System.getenv("STEPS_CA");
        if (ca != null) {
            settings.put("security.protocol", "SASL_SSL");
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", ca);
            settings.put("sasl.mechanism", "PLAIN");
            settings.put("sasl.jaas.config", String.format(
                "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"%s\" password=\"%s\";",
                System.getenv("STEPS_USER"), System.getenv("STEPS_PASSWORD")));
        }
        return settings;
    }

    static KafkaProducer<byte[], byte[]> producer(String codec) {
        return new KafkaProducer<>(
            settings(Map.of("acks", "all", "enable.idempotence", true, "compression.type", codec, "linger.ms", 5)),
            new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group) {
        return new KafkaConsumer<>(
            settings(Map.of("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false,
                "session.timeout.ms", 10_000, "heartbeat.interval.ms", 500, "isolation.level", "read_committed")),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.poll(POLL).records(PARTITION);
    }

    static void send(KafkaProducer<byte[], byte[]> producer, int count) throws Exception {
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        int first = sent.size();
        for (int i = first; i < first + count; i++) {
            byte[] value = ("value " + i).getBytes(StandardCharsets.UTF_8);
            answers.add(producer.send(new ProducerRecord<>(TOPIC, 0, TIME_MS + i, ("key " + i % 7).getBytes(), value)));
            sent.add(value);
        }
        for (int i = 0; i < count; i++) check(answers.get(i).get().offset() == first + i, "offset of record " + (first + i));
    }

    static ConsumerGroupDescription group() {
        try {
            return admin.describeConsumerGroups(List.of(GROUP)).all().get().get(GROUP);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    static boolean isStable(int members) {
        ConsumerGroupDescription group = group();
        return group.members().size() == members && group.state().toString().equals("Stable");
    }

    static String produce() throws Exception {
        for (String codec : CODECS) {
            try (KafkaProducer<byte[], byte[]> producer = producer(codec)) {
                send(producer, EACH);
            }
        }
        return sent.size() + " records";
    }

    static String consume() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(GROUP)) {
            consumer.assign(List.of(PARTITION));
            consumer.seekToBeginning(List.of(PARTITION));
            List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
            await("all records", () -> got.addAll(poll(consumer)) && got.size() >= sent.size());
            for (int i = 0; i < sent.size(); i++) {
                check(got.get(i).offset() == i && Arrays.equals(got.get(i).value(), sent.get(i)), "record " + i);
                check(got.get(i).timestamp() == TIME_MS + i, "timestamp of record " + i);
            }
            return got.size() + " records";
        }
    }

    static String rebalance() throws Exception {
        List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();
        int[] got = {0};
        Runnable poll = () -> members.forEach(member -> {
            List<ConsumerRecord<byte[], byte[]>> records = poll(member);
            got[0] += records.size();
            if (!records.isEmpty()) member.commitSync();
        });
        for (int count = 1; count <= 2; count++) join(members, poll);
        await("all records", () -> { poll.run(); return got[0] >= sent.size(); });
        KafkaConsumer<byte[], byte[]> owner = members.get(members.get(0).assignment().isEmpty() ? 1 : 0);
        members.remove(owner);
        owner.close();
        await("the other member has the partition", () -> {
            poll.run();
            return members.get(0).assignment().equals(Set.of(PARTITION)) && isStable(1);
        });
        join(members, poll);
        try (KafkaProducer<byte[], byte[]> producer = producer("none")) {
            send(producer, EACH);
        }
        await("the records sent meanwhile", () -> { poll.run(); return got[0] >= sent.size(); });
        members.forEach(KafkaConsumer::close);
        check(got[0] == sent.size(), got[0] + " records of " + sent.size());
        return "3 members, " + got[0] + " records";
    }

    static void join(List<KafkaConsumer<byte[], byte[]>> members, Runnable poll) {
        KafkaConsumer<byte[], byte[]> member = consumer(GROUP);
        member.subscribe(List.of(TOPIC));
        members.add(member);
        await(members.size() + " members, one partition", () -> {
            poll.run();
            return members.stream().mapToInt(each -> each.assignment().size()).sum() == 1 && isStable(members.size());
        });
    }

    static String resume() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(GROUP)) {
            consumer.assign(List.of(PARTITION));
            consumer.commitSync(Map.of(PARTITION, new OffsetAndMetadata(321, "here")));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(GROUP)) {
            OffsetAndMetadata committed = consumer.committed(Set.of(PARTITION)).get(PARTITION);
            check(committed.offset() == 321 && committed.metadata().equals("here"), committed.toString());
            consumer.subscribe(List.of(TOPIC));
            List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
            await("records", () -> got.addAll(poll(consumer)));
            check(got.get(0).offset() == 321, "begins at " + got.get(0).offset());
        }
        return "from 321";
    }

    static String seekByTime() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(GROUP)) {
            consumer.assign(List.of(PARTITION));
            long offset = consumer.offsetsForTimes(Map.of(PARTITION, TIME_MS + 777)).get(PARTITION).offset();
            check(offset == 777, "offset " + offset);
            consumer.seek(PARTITION, offset);
            List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
            await("records", () -> got.addAll(poll(consumer)));
            check(got.get(0).timestamp() == TIME_MS + 777, "timestamp " + got.get(0).timestamp());
            long end = consumer.endOffsets(List.of(PARTITION)).get(PARTITION);
            check(end == sent.size(), "end " + end);
        }
        return "777";
    }

    static String describe() throws Exception {
        check(admin.listTopics().names().get().contains(TOPIC), "the topic is listed");
        int partitions = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions().size();
        check(partitions == 1, partitions + " partitions");
        check(admin.listConsumerGroups().all().get().stream().anyMatch(each -> each.groupId().equals(GROUP)), "listed");
        check(group().state().toString().equals("Empty"), group().toString());
        long offset = admin.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata().get().get(PARTITION).offset();
        check(offset == 321, "offset " + offset);
        admin.deleteConsumerGroups(List.of(GROUP)).all().get();
        return "cluster " + admin.describeCluster().clusterId().get();
    }

    /** Create a topic with one partition, and return the partition. */
    static TopicPartition create(String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        return new TopicPartition(topic, 0);
    }

    static List<ConsumerRecord<byte[], byte[]>> read(TopicPartition partition, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(GROUP)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
            await(count + " records", () -> {
                got.addAll(consumer.poll(POLL).records(partition));
                return got.size() >= count;
            });
            return got;
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String headers() throws Exception {
        TopicPartition partition = create(TOPIC + "-headers");
        try (KafkaProducer<byte[], byte[]> producer = producer("none")) {
            ProducerRecord<byte[], byte[]> first = new ProducerRecord<>(partition.topic(), bytes("key"), bytes("value"));
            first.headers().add("text", bytes("x")).add("text", bytes("again")).add("empty", new byte[0]);
            producer.send(first).get();
            producer.send(new ProducerRecord<>(partition.topic(), null, new byte[0])).get();
            producer.send(new ProducerRecord<>(partition.topic(), bytes("deleted"), null)).get();
        }
        List<ConsumerRecord<byte[], byte[]>> got = read(partition, 3);
        StringBuilder headers = new StringBuilder();
        for (Header each : got.get(0).headers()) headers.append(each.key()).append("=").append(new String(each.value())).append(" ");
        check(headers.toString().equals("text=x text=again empty= "), headers.toString());
        check(got.get(1).key() == null && got.get(1).value().length == 0, "a record without key");
        check(new String(got.get(2).key()).equals("deleted") && got.get(2).value() == null, "a record without value");
        admin.deleteTopics(List.of(partition.topic())).all().get();
        return "3 records";
    }

    static String transactions() throws Exception {
        TopicPartition partition = create(TOPIC + "-transactions");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings(Map.of("transactional.id", TOPIC)), new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(partition.topic(), bytes("no"))).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(partition.topic(), bytes("yes")));
            producer.commitTransaction();
        }
        List<ConsumerRecord<byte[], byte[]>> got = read(partition, 1);
        check(got.size() == 1 && new String(got.get(0).value()).equals("yes"), got.toString());
        admin.deleteTopics(List.of(partition.topic())).all().get();
        return "one of two";
    }

    static String configs() throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        ConfigEntry hour = new ConfigEntry("retention.ms", "3600000");
        admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(hour, AlterConfigOp.OpType.SET)))).all().get();
        await("the config", () -> {
            try {
                return admin.describeConfigs(List.of(topic)).all().get().get(topic).get("retention.ms").value().equals(hour.value());
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        });
        return hour.value();
    }

    static String fromAmqp() {
        List<ConsumerRecord<byte[], byte[]>> got = read(new TopicPartition(CROSSING, 0), 10);
        for (int i = 0; i < 10; i++) check(new String(got.get(i).value()).equals("from amqp " + i), "message " + i);
        return "10 records";
    }

    static String toAmqp() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("none")) {
            for (int i = 0; i < 10; i++) {
                long offset = producer.send(new ProducerRecord<>(CROSSING, bytes("from kafka " + i))).get().offset();
                check(offset == 10 + i, "offset " + offset);
            }
        }
        return "10 records";
    }

    static String delete() throws Exception {
        admin.deleteTopics(List.of(TOPIC)).all().get();
        check(!admin.listTopics().names().get().contains(TOPIC), "the topic is gone");
        return TOPIC;
    }

    static String many(int count) throws Exception {
        String name = TOPIC + "-many";
        TopicPartition partition = new TopicPartition(name, 0);
        admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
        long start = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer = producer("none")) {
            Future<RecordMetadata> last = null;
            for (int i = 0; i < count; i++) last = producer.send(new ProducerRecord<>(name, String.format("%0100d", i).getBytes()));
            check(last.get().offset() == count - 1, "last offset " + last.get().offset());
        }
        double in = (System.nanoTime() - start) / 1e9;
        start = System.nanoTime();
        int next = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(GROUP)) {
            consumer.assign(List.of(partition));
            while (next < count) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(10)).records(partition)) {
                    check(record.offset() == next && Integer.parseInt(new String(record.value())) == next, "record " + next);
                    next++;
                }
            }
        }
        double out = (System.nanoTime() - start) / 1e9;
        admin.deleteTopics(List.of(name)).all().get();
        return String.format("%d records: %.0f/s in, %.0f/s out", count, count / in, count / out);
    }

    public static void main(String[] arguments) {
        address = arguments[0];
        if (address.equals("version")) {
            System.out.println(AppInfoParser.getVersion());
            return;
        }
        int records = arguments.length == 3 ? Integer.parseInt(arguments[2]) : 10_000;
        admin = Admin.create(settings(Map.of()));
        step("create", () -> {
            admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1))).all().get();
            return TOPIC;
        });
        step("produce", Steps::produce);
        step("consume", Steps::consume);
        step("headers", Steps::headers);
        step("rebalance", Steps::rebalance);
        step("resume", Steps::resume);
        step("seek", Steps::seekByTime);
        step("transactions", Steps::transactions);
        step("describe", Steps::describe);
        step("configs", Steps::configs);
        if (CROSSING != null) {
            step("from-amqp", Steps::fromAmqp);
            step("to-amqp", Steps::toAmqp);
        }
        step("delete", Steps::delete);
        step("many", () -> many(records));
        System.out.println("{\"step\": \"share\", \"ok\": null, \"detail\": \"share groups came with 4.1\"}");
        admin.close();
        System.exit(failed ? 1 : 0);
    }
}
