// The members of a group of a worker.

package lab;

import static lab.LabWorker.*;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.HdrHistogram.Recorder;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The member of a group, or of a share group. */
interface Member {
    ConsumerRecords<byte[], byte[]> poll(Duration timeout);

    /** Partitions that it holds; -1 where the client does not tell. */
    int assigned();

    /** The work on what the last poll gave is done. */
    default void done(ConsumerRecords<byte[], byte[]> records) {}

    void close();
}

/** All members of this worker, a thread each. */
class Consuming implements Work {
    final JsonNode workload;
    final List<Thread> threads = new ArrayList<>();
    final Counts counts = new Counts();
    final Errors errors = new Errors();
    final Map<Integer, Recorder> members = new ConcurrentHashMap<>();
    final Map<String, Recorder> partitions = new ConcurrentHashMap<>();
    final Map<Integer, Integer> held = new ConcurrentHashMap<>();
    final Map<Integer, BitSet> seen = new TreeMap<>();
    final AtomicLong polls = new AtomicLong(), empty = new AtomicLong(), foreign = new AtomicLong(), fresh = new AtomicLong();
    final boolean distinct;
    final Journal journal;
    final Map<String, Integer> topics = new HashMap<>();
    volatile double minMs, maxMs;
    volatile boolean stopped;
    volatile String trouble;

    Consuming(JsonNode prepare) throws Exception {
        workload = prepare.get("workload");
        minMs = workload.get("consumerProcMsMin").asDouble();
        maxMs = workload.get("consumerProcMsMax").asDouble();
        distinct = prepare.path("distinct").asBoolean();
        journal = Journal.of(prepare);
        boolean share = workload.get("consumerType").asText().equals("share");
        String bootstrap = prepare.get("bootstrap").asText(), group = prepare.get("group").asText();
        Properties options = options(workload, "consumerConfig", bootstrap, ConsumerConfig.configNames());
        options.put("group.id", group);
        if (!share) {
            options.putIfAbsent("auto.offset.reset", "earliest");
        } else if (alone()) {
            options.put("share.acknowledgement.mode", "explicit");
        }
        settings(options, group);
        List<String> names = new ArrayList<>();
        prepare.get("topics").forEach(topic -> names.add(topic.asText()));
        names.forEach(name -> topics.put(name, topics.size()));
        for (JsonNode number : prepare.get("members")) {
            int member = number.asInt();
            Member one = share ? shareMember(options, names, member) : groupMember(options, names);
            threads.add(new Thread(() -> {
                try {
                    consume(one, member);
                } catch (Throwable error) {
                    error.printStackTrace();
                    trouble = "consumer " + member + ": " + error;
                }
            }));
        }
        threads.forEach(Thread::start);
    }

    /** Whether each record is acknowledged by itself. */
    boolean alone() {
        return workload.get("acknowledgement").asText().equals("record");
    }

    /** What the cluster keeps of the group. */
    void settings(Properties consumers, String group) throws Exception {
        Collection<AlterConfigOp> wanted = new ArrayList<>();
        workload.get("groupConfig").fields().forEachRemaining(entry -> wanted.add(
            new AlterConfigOp(new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
        if (wanted.isEmpty()) {
            return;
        }
        Properties options = new Properties();
        options.putAll(consumers);
        options.keySet().retainAll(AdminClientConfig.configNames());
        try (Admin admin = Admin.create(options)) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), wanted)).all().get(30, TimeUnit.SECONDS);
        }
    }

    static Member groupMember(Properties options, List<String> topics) {
        var consumer = new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(topics);
        return new Member() {
            public ConsumerRecords<byte[], byte[]> poll(Duration timeout) {
                return consumer.poll(timeout);
            }

            public int assigned() {
                return consumer.assignment().size();
            }

            public void close() {
                consumer.close();
            }
        };
    }

    Member shareMember(Properties options, List<String> topics, int member) {
        var consumer = new KafkaShareConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        if (journal != null) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                if (error == null) {
                    offsets.forEach((place, those) -> those.forEach(offset -> journal.add(
                        Journal.ACCEPTED, 0, 0, member, this.topics.get(place.topic()), place.partition(), 0, offset)));
                } else if (!alone()) {
                    errors.add("not acknowledged: " + error);
                }
            });
        }
        consumer.subscribe(topics);
        return new Member() {
            public ConsumerRecords<byte[], byte[]> poll(Duration timeout) {
                return consumer.poll(timeout);
            }

            public int assigned() {
                return -1;
            }

            public void done(ConsumerRecords<byte[], byte[]> records) {
                if (alone()) {
                    records.forEach(consumer::acknowledge);
                    consumer.commitSync().values().forEach(error -> error.ifPresent(
                        why -> errors.add("not acknowledged: " + why)));
                }
            }

            public void close() {
                consumer.close();
            }
        };
    }

    ObjectNode assigned() {
        if (held.size() < threads.size()) {
            return null;
        }
        ObjectNode told = message("assigned");
        if (held.values().stream().anyMatch(count -> count < 0)) {
            return told.putNull("partitions");
        }
        return told.put("partitions", held.values().stream().mapToInt(count -> count).sum())
            .put("holding", held.values().stream().filter(count -> count > 0).count());
    }

    public void start(long atNs) {
        // They poll from the first: a group is given its partitions within polls.
    }

    public boolean ended() {
        return false;
    }

    public String trouble() {
        return trouble;
    }

    public void stop() throws Exception {
        stopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    void consume(Member consumer, int member) throws Exception {
        Random random = new Random(workload.get("seed").asLong() + member);
        Recorder delivery = members.computeIfAbsent(member, number -> recorder());
        try {
            while (!stopped) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                long at = now();
                held.put(member, consumer.assigned());
                polls.incrementAndGet();
                if (records.isEmpty()) {
                    empty.incrementAndGet();
                    continue;
                }
                if (journal != null) {
                    given(member, records);
                }
                long[] begins = new long[records.count()];
                long took = plan(begins, random);
                int row = 0;
                for (TopicPartition partition : records.partitions()) {
                    row = received(member, delivery, partition, records.records(partition), at, begins, row);
                }
                long end = at + took;
                for (long left = end - now(); left > 0 && !stopped; left = end - now()) {
                    long piece = Math.min(left, 100_000_000);
                    Thread.sleep(piece / 1_000_000, (int) (piece % 1_000_000));
                }
                if (journal != null) {
                    note(member, records);
                }
                consumer.done(records);
            }
        } finally {
            consumer.close();
            if (journal != null) {
                journal.flush();
            }
        }
    }

    int received(int member, Recorder delivery, TopicPartition partition, List<ConsumerRecord<byte[], byte[]>> records, long at, long[] begins, int row) {
        String name = partition.topic() + "-" + partition.partition();
        Recorder own = partitions.get(name);
        if (own == null && partitions.size() < MEASURED_PARTITIONS_MAX) {
            own = partitions.computeIfAbsent(name, key -> recorder());
        }
        long ours = 0, bytes = 0;
        for (ConsumerRecord<byte[], byte[]> record : records) {
            long begin = at + begins[row++];
            byte[] value = record.value();
            bytes += value == null ? 0 : value.length;
            if (value == null || value.length < HEAD) {
                continue;
            }
            ByteBuffer head = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
            if (head.getShort(10) != MAGIC) {
                continue;
            }
            ours++;
            long nanoseconds = begin - head.getLong(0);
            LabWorker.record(delivery, nanoseconds);
            if (own != null) {
                LabWorker.record(own, nanoseconds);
            }
            if (distinct) {
                note(head.getShort(8) & 0xFFFF, head.getLong(16));
            }
        }
        counts.add(member, partition.topic(), partition.partition(), ours, bytes);
        foreign.addAndGet(records.size() - ours);
        return row;
    }

    /** Writes down how often brokers have given records out: a member that crashes does not come to tell. */
    void given(int member, ConsumerRecords<byte[], byte[]> records) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            byte[] value = record.value();
            if (record.deliveryCount().isEmpty() || value == null || value.length < HEAD) {
                continue;
            }
            ByteBuffer head = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
            if (head.getShort(10) == MAGIC) {
                int count = Math.min(record.deliveryCount().get(), Journal.DELIVERIES_MAX);
                journal.add(Journal.GIVEN, count << Journal.DELIVERIES_SHIFT, head.getShort(8), member,
                    topics.get(record.topic()), record.partition(), head.getLong(16), record.offset());
            }
        }
        journal.flush();
    }

    /** Writes down what has been worked on, before the next poll may commit it. */
    void note(int member, ConsumerRecords<byte[], byte[]> records) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            byte[] value = record.value();
            int flags = Journal.FOREIGN, producer = 0;
            long sequence = 0;
            if (value != null && value.length >= HEAD) {
                ByteBuffer head = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
                if (head.getShort(10) == MAGIC) {
                    flags = head.getInt(12) == checksum(value) ? 0 : Journal.CORRUPT;
                    producer = head.getShort(8);
                    sequence = head.getLong(16);
                }
            }
            journal.add(Journal.RECEIVED, flags, producer, member, topics.get(record.topic()), record.partition(), sequence, record.offset());
        }
        journal.flush();
    }

    void note(int producer, long sequence) {
        synchronized (seen) {
            BitSet bits = seen.computeIfAbsent(producer, number -> new BitSet());
            if (!bits.get((int) sequence)) {
                bits.set((int) sequence);
                fresh.incrementAndGet();
            }
        }
    }

    /** When the work on each record begins, and when all is done, in nanoseconds from now. */
    long plan(long[] begins, Random random) {
        double low = minMs * 1e6, high = maxMs * 1e6;
        if (high <= 0) {
            return 0;
        }
        int parallelism = workload.get("consumerProcParallelism").asInt();
        int width = parallelism == -1 ? begins.length : Math.min(parallelism, begins.length);
        PriorityQueue<Long> free = new PriorityQueue<>();
        for (int i = 0; i < width; i++) {
            free.add(0L);
        }
        long last = 0;
        for (int i = 0; i < begins.length; i++) {
            begins[i] = free.remove();
            long end = begins[i] + (long) (low + random.nextDouble() * (high - low));
            free.add(end);
            last = Math.max(last, end);
        }
        return last;
    }

    public void take(ObjectNode second) {
        counts.take(second);
        errors.take(second);
        second.put("polls", polls.getAndSet(0)).put("empty", empty.getAndSet(0)).put("foreign", foreign.getAndSet(0))
            .put("fresh", fresh.getAndSet(0));
        ObjectNode hist = second.putObject("hist"), delivery = hist.putObject("delivery"), partition = hist.putObject("partition");
        members.forEach((member, recorder) -> put(delivery, String.valueOf(member), recorder));
        partitions.forEach((name, recorder) -> put(partition, name, recorder));
    }

    static void put(ObjectNode hist, String name, Recorder recorder) {
        String text = encoded(recorder);
        if (text != null) {
            hist.put(name, text);
        }
    }
}
