// The producers of a worker, and where their records go.

package lab;

import static lab.LabWorker.*;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.HdrHistogram.Recorder;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** All producers of this worker, a thread each. */
class Producing implements Work {
    record Plan(long atNs, Schedule schedule) {}

    final JsonNode workload;
    final List<Thread> threads = new ArrayList<>();
    final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
    final Counts counts = new Counts();
    final Errors errors = new Errors();
    final Recorder publish = recorder(), delay = recorder();
    final AtomicLong failed = new AtomicLong(), sent = new AtomicLong();
    final Map<Integer, Long> due = new ConcurrentHashMap<>();
    final boolean scheduled;
    final long limit;
    final int of;
    final Journal journal;
    volatile Plan plan;
    volatile boolean stopped;
    volatile String trouble;

    Producing(JsonNode prepare) throws Exception {
        workload = prepare.get("workload");
        JsonNode members = prepare.get("members"), topics = prepare.get("topics");
        journal = Journal.of(prepare);
        limit = prepare.path("records").isNumber() ? prepare.get("records").asLong() : -1;
        of = prepare.path("of").asInt(0) == 0 ? members.size() : prepare.get("of").asInt();
        scheduled = limit < 0 && (!workload.get("producerRateSchedule").isNull() || workload.get("producerRate").asDouble() > 0);
        Properties options = options(workload, "producerConfig", prepare.get("bootstrap").asText(), ProducerConfig.configNames());
        for (int i = 0; i < members.size(); i++) {
            var producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer());
            producers.add(producer);
            int member = members.get(i).asInt(), place = prepare.path("first").asInt(0) + i;
            String topic = topics.get(place % topics.size()).asText();
            threads.add(new Thread(() -> {
                try {
                    produce(producer, member, place, topic);
                } catch (Throwable error) {
                    trouble = "producer " + member + ": " + error;
                }
            }));
        }
    }

    public void start(long atNs) {
        Schedule schedule = null;
        if (scheduled) {
            JsonNode given = workload.get("producerRateSchedule");
            if (given.isNull()) {
                ObjectNode constant = JSON.createObjectNode().put("type", "ONCE");
                constant.putArray("segments").addObject().put("rate", workload.get("producerRate").asDouble()).put("durationSeconds", 1);
                given = constant;
            }
            schedule = new Schedule(given);
        }
        rate(atNs, schedule);
        threads.forEach(Thread::start);
    }

    void rate(long atNs, Schedule schedule) {
        plan = new Plan(atNs, schedule);
    }

    public boolean ended() {
        return threads.stream().allMatch(thread -> thread.getState() == Thread.State.TERMINATED);
    }

    public String trouble() {
        return trouble;
    }

    public void stop() throws Exception {
        stopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
        for (var producer : producers) {
            producer.close(Duration.ofSeconds(5));
        }
        if (journal != null) {
            journal.flush();
        }
    }

    void produce(KafkaProducer<byte[], byte[]> producer, int member, int place, String topic) throws Exception {
        Placement placement = new Placement(workload, member);
        byte[][] pool = fillers(workload, member);
        int size = workload.get("messageSize").asInt();
        long mine = limit < 0 ? Long.MAX_VALUE : (limit - place + of - 1) / of;
        long sequence = 0, taken = 0, before = 0;
        Plan current = null;
        while (!stopped && sequence < mine) {
            if (plan != current) {
                current = plan;
                before = sequence;
                taken = 0;
            }
            long at = now(), dueNs = at;
            if (current.schedule() == null) {
                due.put(member, sequence + 1);
                if (at < current.atNs()) {
                    Thread.sleep(1);
                    continue;
                }
            } else {
                long counted = (long) current.schedule().count((at - current.atNs()) / 1e9);
                due.put(member, before + Math.max((counted - place + of - 1) / of, 0));
                long next = current.schedule().due(taken * of + place);
                dueNs = next == NEVER ? NEVER : next + current.atNs();
                if (dueNs > at) {
                    // In short steps, so that another schedule is seen soon.
                    long wait = Math.min(dueNs - at, 1_000_000);
                    Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
                    continue;
                }
            }
            send(producer, member, topic, placement, value(pool, size, dueNs, member, sequence), dueNs, sequence);
            sequence++;
            taken++;
            sent.incrementAndGet();
        }
        producer.flush();
    }

    void send(KafkaProducer<byte[], byte[]> producer, int member, String topic, Placement placement, byte[] value, long dueNs, long sequence) {
        long sentNs = now();
        Integer partition = placement.partition();
        var record = new ProducerRecord<>(topic, partition, placement.key(), value);
        if (scheduled) {
            LabWorker.record(delay, sentNs - dueNs);
        }
        producer.send(record, (metadata, error) -> {
            if (error != null) {
                failed.incrementAndGet();
                errors.add(error.getMessage());
                return;
            }
            LabWorker.record(publish, now() - sentNs);
            if (journal != null) {
                journal.add(Journal.SENT, 0, member, 0, 0, 0, sequence, -1);
            }
            counts.add(member, topic, metadata.partition(), 1, value.length);
        });
    }

    byte[] value(byte[][] pool, int size, long dueNs, int member, long sequence) {
        byte[] value = new byte[size];
        byte[] filler = pool[(int) (sequence % pool.length)];
        System.arraycopy(filler, 0, value, HEAD, size - HEAD);
        ByteBuffer head = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).putLong(dueNs).putShort((short) member)
            .putShort(MAGIC).putInt(0).putLong(sequence);
        if (journal != null) {
            head.putInt(12, checksum(value));
        }
        return value;
    }

    static byte[][] fillers(JsonNode workload, int member) throws Exception {
        int size = workload.get("messageSize").asInt() - HEAD;
        if (!workload.get("payloadFile").isNull()) {
            byte[] given = Files.readAllBytes(Path.of(workload.get("payloadFile").asText()));
            byte[] filler = new byte[size];
            for (int i = 0; i < size && given.length > 0; i++) {
                filler[i] = given[i % given.length];
            }
            return new byte[][] {filler};
        }
        if (!workload.get("useRandomizedPayloads").asBoolean() || size == 0) {
            return new byte[1][size];
        }
        int count = Math.max(Math.min(workload.get("randomizedPayloadPoolSize").asInt(), (64 << 20) / size), 1);
        int drawn = (int) Math.round(size * workload.get("randomBytesRatio").asDouble());
        Random random = new Random(workload.get("seed").asLong() * 65_537 + member);
        byte[][] pool = new byte[count][size];
        for (byte[] one : pool) {
            byte[] part = new byte[drawn];
            random.nextBytes(part);
            System.arraycopy(part, 0, one, 0, drawn);
        }
        return pool;
    }

    public void take(ObjectNode second) {
        if (journal != null) {
            journal.flush();
        }
        counts.take(second);
        errors.take(second);
        second.put("failed", failed.getAndSet(0)).put("sent", sent.get());
        second.put("due", due.values().stream().mapToLong(Long::longValue).sum());
        ObjectNode hist = second.putObject("hist");
        String published = encoded(publish), delayed = encoded(delay);
        if (published != null) {
            hist.put("publish", published);
        }
        if (delayed != null) {
            hist.put("delay", delayed);
        }
    }
}

/** Where one producer's records go. */
class Placement {
    final String kind;
    final int partitions;
    final Random random;
    final double[] bounds;
    long at;

    Placement(JsonNode workload, int member) {
        JsonNode given = workload.get("messageDistributor");
        kind = given.isTextual() ? given.asText() : given.get("type").asText();
        partitions = workload.get("partitionsPerTopic").asInt();
        random = new Random(workload.get("seed").asLong() * 65_537 + member);
        at = kind.equals("PINNED_PARTITIONS") ? member : 0;
        bounds = new double[partitions];
        double alpha = given.isTextual() ? 1 : given.get("alpha").asDouble(), sum = 0;
        for (int p = 0; p < partitions; p++) {
            sum += Math.pow(p + 1, -alpha);
            bounds[p] = sum;
        }
    }

    Integer partition() {
        if (kind.equals("PINNED_PARTITIONS")) {
            return (int) (at++ % partitions);
        }
        if (!kind.equals("PARTITION_ZIPF")) {
            return null;
        }
        int found = Arrays.binarySearch(bounds, random.nextDouble() * bounds[partitions - 1]);
        return Math.min(found < 0 ? -found - 1 : found, partitions - 1);
    }

    byte[] key() {
        return switch (kind) {
            case "KEY_ROUND_ROBIN" -> String.format("key-%04d", at++ % 10_000).getBytes(StandardCharsets.US_ASCII);
            case "RANDOM_NANO" -> Long.toString(now()).getBytes(StandardCharsets.US_ASCII);
            default -> null;
        };
    }
}
