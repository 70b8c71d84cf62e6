// Kafka's Java clients in one JVM that stays warm: commands on standard input, one sample in JSON a line on standard
// output, as benches/peers/meter.py describes it.
//   consume BOOTSTRAP TOPIC PARTITIONS RECORDS
//   produce BOOTSTRAP TOPIC RECORDS VALUE_BYTES BATCH_BYTES

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaPeer {
    private static final Duration WAIT = Duration.ofSeconds(30);

    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private long began;
    private long cpuBegan;

    private void start() {
        cpuBegan = system.getProcessCpuTime();
        began = System.nanoTime();
    }

    private String sample(long records, long bytes) {
        double seconds = (System.nanoTime() - began) / 1e9;
        double cpu = (system.getProcessCpuTime() - cpuBegan) / 1e9;
        return "{\"records\": " + records + ", \"bytes\": " + bytes + ", \"seconds\": " + seconds
                + ", \"cpu_seconds\": " + cpu + "}";
    }

    private String consume(String bootstrap, String topic, int partitions, long wanted) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "enable.auto.commit", false, "auto.offset.reset", "earliest",
                "max.poll.records", 20000, "check.crcs", false, "receive.buffer.bytes", -1,
                "max.partition.fetch.bytes", 10485760, "fetch.max.bytes", 104857600);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            for (int number = 0; number < partitions; number++) {
                all.add(new TopicPartition(topic, number));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long seen = 0;
            long records = 0;
            long bytes = 0;
            while (seen < wanted) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(WAIT);
                if (polled.isEmpty()) {
                    throw new IllegalStateException("nothing for " + WAIT + " after " + seen + " records");
                }
                seen += polled.count();
                if (seen == polled.count()) {
                    start();
                    continue;
                }
                records += polled.count();
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    bytes += record.value().length;
                }
            }
            return sample(records, bytes);
        }
    }

    private String produce(String bootstrap, String topic, long records, int size, int batchBytes) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "acks", "1", "enable.idempotence", false, "linger.ms", 5,
                "batch.size", batchBytes, "buffer.memory", 268435456L);
        byte[] value = new byte[size];
        java.util.Arrays.fill(value, (byte) 'x');
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(topic);
            start();
            for (long number = 0; number < records; number++) {
                producer.send(new ProducerRecord<byte[], byte[]>(topic, 0, null, value), (done, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
            producer.flush();
            String result = sample(records, records * size);
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            return result;
        }
    }

    public static void main(String[] args) throws Exception {
        var peer = new JavaPeer();
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split(" ");
            String result = switch (words[0]) {
                case "consume" ->
                    peer.consume(words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]));
                case "produce" -> peer.produce(words[1], words[2], Long.parseLong(words[3]),
                        Integer.parseInt(words[4]), Integer.parseInt(words[5]));
                default -> throw new IllegalArgumentException("no such command: " + words[0]);
            };
            System.out.println(result);
            System.out.flush();
        }
    }
}
