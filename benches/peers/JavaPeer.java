// Kafka's Java clients in one JVM that stays warm: commands on standard input, one sample in JSON a line on standard
// output, as benches/peers/meter.py describes it.
//   consume BOOTSTRAP TOPIC PARTITIONS RECORDS
//   produce BOOTSTRAP TOPIC RECORDS VALUE_BYTES BATCH_BYTES
//   pause BOOTSTRAP TOPIC PARTITIONS MAX_RECORDS SECONDS_MAX RECORDS   as benches/pause.py describes it
//   flow BOOTSTRAP TOPIC PARTITIONS RECORDS                            as benches/flow.py describes it
//   resume BOOTSTRAP TOPIC ROUNDS                                      as benches/resume.py describes it

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
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
    private static final int WARM_UP_POLLS = 1000;

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

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, int maxRecords) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "enable.auto.commit", false, "auto.offset.reset", "earliest",
                "max.poll.records", maxRecords);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private String pause(String bootstrap, String topic, int partitions, int maxRecords, double secondsMax, long all) {
        try (var consumer = consumer(bootstrap, maxRecords)) {
            List<TopicPartition> assigned = new ArrayList<>();
            for (int number = 0; number < partitions; number++) {
                assigned.add(new TopicPartition(topic, number));
            }
            consumer.assign(assigned);
            var random = new Random(7);
            long[] seen = new long[partitions];
            long records = 0;
            long counted = 0;
            start();
            for (long polls = 1; secondsMax == 0 || System.nanoTime() - began < secondsMax * 1e9; polls++) {
                int kept = random.nextInt(partitions);
                if (seen[kept] == all / partitions) {
                    if (secondsMax > 0) {
                        break;
                    }
                    if (records == all) {
                        break;
                    }
                    continue;
                }
                List<TopicPartition> rest = new ArrayList<>(assigned);
                List<TopicPartition> one = List.of(rest.remove(kept));
                consumer.resume(one);
                consumer.pause(rest);
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(WAIT);
                if (polled.isEmpty() || polled.records(one.get(0)).size() != polled.count()) {
                    throw new IllegalStateException(polled.count() + " records, not all of " + one);
                }
                seen[kept] += polled.count();
                records += polled.count();
                if (polls == WARM_UP_POLLS && secondsMax > 0) {
                    counted = records;
                    start();
                }
            }
            return sample(records - counted, 0);
        }
    }

    private String flow(String bootstrap, String topic, int partitions, long all) {
        try (var consumer = consumer(bootstrap, 500)) {
            List<TopicPartition> assigned = new ArrayList<>();
            for (int number = 0; number < partitions; number++) {
                assigned.add(new TopicPartition(topic, number));
            }
            consumer.assign(assigned);
            long[] until = new long[partitions];
            long records = 0;
            long bytes = 0;
            start();
            while (records < all) {
                List<TopicPartition> free = new ArrayList<>();
                for (TopicPartition paused : consumer.paused()) {
                    if (until[paused.partition()] <= System.nanoTime()) {
                        free.add(paused);
                    }
                }
                consumer.resume(free);
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(100));
                for (TopicPartition partition : polled.partitions()) {
                    for (ConsumerRecord<byte[], byte[]> record : polled.records(partition)) {
                        bytes += record.value().length;
                    }
                    long millis = partition.partition() % 2 == 0 ? 1 : 50;
                    until[partition.partition()] = System.nanoTime() + millis * 1_000_000;
                }
                consumer.pause(polled.partitions());
                records += polled.count();
            }
            return sample(records, bytes);
        }
    }

    // The time from the resumption of a partition that has a record, and nothing cached, to that record, in turns;
    // meanwhile another partition is waited for, which has nothing. "seconds" is the median of the rounds.
    private String resume(String bootstrap, String topic, int rounds) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "acks", "1", "linger.ms", 0);
        var idle = new TopicPartition(topic, 0);
        var resumed = new TopicPartition(topic, 1);
        try (var consumer = consumer(bootstrap, 500);
                var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            consumer.assign(List.of(idle, resumed));
            consumer.seekToEnd(List.of(idle, resumed));
            consumer.position(idle);
            consumer.position(resumed);
            double[] took = new double[rounds];
            for (int round = 0; round < rounds; round++) {
                consumer.pause(List.of(resumed));
                producer.send(new ProducerRecord<>(topic, 1, null, new byte[100])).get();
                // Its next Fetch waits at the broker for the idle partition.
                if (!consumer.poll(Duration.ofMillis(700)).isEmpty()) {
                    throw new IllegalStateException("a record of a partition that is paused");
                }
                long at = System.nanoTime();
                consumer.resume(List.of(resumed));
                int count = consumer.poll(WAIT).count();
                took[round] = (System.nanoTime() - at) / 1e9;
                if (count != 1) {
                    throw new IllegalStateException(count + " records after a resumption");
                }
            }
            java.util.Arrays.sort(took);
            return "{\"records\": " + rounds + ", \"bytes\": 0, \"seconds\": " + took[rounds / 2]
                    + ", \"cpu_seconds\": 0}";
        } catch (InterruptedException | java.util.concurrent.ExecutionException error) {
            throw new IllegalStateException(error);
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
                case "pause" -> peer.pause(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]),
                        Double.parseDouble(words[5]), Long.parseLong(words[6]));
                case "flow" -> peer.flow(words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]));
                case "resume" -> peer.resume(words[1], words[2], Integer.parseInt(words[3]));
                default -> throw new IllegalArgumentException("no such command: " + words[0]);
            };
            System.out.println(result);
            System.out.flush();
        }
    }
}
