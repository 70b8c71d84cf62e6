// The lab's worker for Apache Kafka's own clients: headrace.lab.protocol on stdin and stdout.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.HdrHistogram.Histogram;
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
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class LabWorker {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int HEAD = 24;
    static final short MAGIC = 0x4C48;
    static final long HIGHEST_US = 3_600_000_000L;
    static final int MEASURED_PARTITIONS_MAX = 256;
    static final int ERRORS_MAX = 20;
    static final long NEVER = Long.MAX_VALUE;
    static PrintStream answers;

    public static void main(String[] args) throws Exception {
        answers = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        // What a library prints must not stand between the messages.
        System.setOut(System.err);
        int status = 0;
        try {
            new LabWorker().run();
        } catch (Throwable error) {
            error.printStackTrace();
            say(message("failed").put("why", String.valueOf(error)));
            status = 1;
        }
        Runtime.getRuntime().halt(status);
    }

    static ObjectNode message(String kind) {
        return JSON.createObjectNode().put("is", kind);
    }

    static synchronized void say(ObjectNode message) {
        answers.println(message);
        answers.flush();
    }

    /** The time of day in nanoseconds since the epoch. */
    static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    static double cpuSeconds() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    interface Work {
        void start(long atNs);

        void stop() throws Exception;

        void take(ObjectNode second);

        /** Whether all is sent that was to be sent. */
        boolean ended();

        String trouble();
    }

    final LinkedBlockingQueue<JsonNode> inbox = new LinkedBlockingQueue<>();
    static final JsonNode NOBODY = JSON.createObjectNode();
    Work work;
    long beganNs;
    int second;
    double cpu = cpuSeconds();
    String assigned = "";

    void run() throws Exception {
        Thread reader = new Thread(this::read);
        reader.setDaemon(true);
        reader.start();
        while (step()) {
            // Until the end.
        }
    }

    void read() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                inbox.add(JSON.readTree(line));
            }
        } catch (Exception error) {
            say(message("failed").put("why", "a line is no message: " + error.getMessage()));
        }
        inbox.add(NOBODY);
    }

    boolean step() throws Exception {
        long wait = work == null ? 3_600_000 : beganNs == 0 ? 50 : (beganNs + (second + 1) * 1_000_000_000L - now()) / 1_000_000 + 1;
        JsonNode message = inbox.poll(Math.max(wait, 0), TimeUnit.MILLISECONDS);
        if (message == null) {
            return tell();
        }
        if (message == NOBODY) {
            if (work != null) {
                work.stop();
            }
            return false;
        }
        switch (message.path("do").asText()) {
            case "prepare" -> prepare(message);
            case "start" -> {
                beganNs = message.get("at_ns").asLong();
                // One that comes later, in the place of another, does not tell of seconds before it.
                second = (int) Math.max((now() - beganNs) / 1_000_000_000L, 0);
                work.start(beganNs);
            }
            case "rate" -> {
                if (work instanceof Producing producing) {
                    JsonNode schedule = message.get("schedule");
                    producing.rate(message.get("at_ns").asLong(), schedule.isNull() ? null : new Schedule(schedule));
                }
            }
            case "work" -> {
                if (work instanceof Consuming consuming) {
                    consuming.minMs = message.get("min_ms").asDouble();
                    consuming.maxMs = message.get("max_ms").asDouble();
                }
            }
            case "stop" -> {
                return end();
            }
            default -> throw new IllegalArgumentException("no message: " + message);
        }
        return true;
    }

    void prepare(JsonNode message) throws Exception {
        work = message.get("role").asText().equals("produce") ? new Producing(message) : new Consuming(message);
        say(message("ready").put("driver", "java").put("version", "kafka-clients " + AppInfoParser.getVersion())
            .put("runtime", System.getProperty("java.vm.name") + " " + System.getProperty("java.version")));
    }

    boolean tell() throws Exception {
        fail();
        if (work instanceof Consuming consuming) {
            ObjectNode held = consuming.assigned();
            if (held != null && !held.toString().equals(assigned)) {
                assigned = held.toString();
                say(held);
            }
        }
        if (beganNs == 0) {
            return true;
        }
        if (work.ended()) {
            return end();
        }
        saySecond();
        return true;
    }

    void fail() {
        if (work != null && work.trouble() != null) {
            throw new IllegalStateException(work.trouble());
        }
    }

    void saySecond() {
        double spent = cpuSeconds() - cpu;
        cpu += spent;
        ObjectNode told = message("second").put("n", second++).put("at_ns", now()).put("cpu_s", spent);
        work.take(told);
        say(told);
    }

    boolean end() throws Exception {
        if (work != null) {
            work.stop();
            fail();
            if (beganNs != 0) {
                saySecond();
            }
        }
        say(message("done"));
        return false;
    }

    /** Kafka's options of one side for this driver; one that the client does not know is an error. */
    static Properties options(JsonNode workload, String side, String bootstrap, Set<String> known) {
        Properties options = new Properties();
        for (JsonNode map : List.of(workload.get("commonConfig"), workload.get(side), workload.get("driverConfig").path("java"))) {
            map.fields().forEachRemaining(entry -> {
                if (!known.contains(entry.getKey())) {
                    throw new IllegalArgumentException("kafka-clients has no option " + entry.getKey());
                }
                options.put(entry.getKey(), entry.getValue().asText());
            });
        }
        options.put("bootstrap.servers", bootstrap);
        return options;
    }

    static String encoded(Recorder recorder) {
        Histogram histogram = recorder.getIntervalHistogram();
        if (histogram.getTotalCount() == 0) {
            return null;
        }
        // The recorder's own range may be another; the protocol's is fixed.
        Histogram exact = new Histogram(1, HIGHEST_US, 3);
        exact.add(histogram);
        ByteBuffer buffer = ByteBuffer.allocate(exact.getNeededByteBufferCapacity());
        int length = exact.encodeIntoCompressedByteBuffer(buffer);
        return Base64.getEncoder().encodeToString(Arrays.copyOf(buffer.array(), length));
    }

    static Recorder recorder() {
        return new Recorder(1, HIGHEST_US, 3);
    }

    static void record(Recorder recorder, long nanoseconds) {
        recorder.recordValue(Math.min(Math.max(nanoseconds / 1000, 0), HIGHEST_US));
    }

    /** How many records are due when; the same as headrace.lab.schedule. */
    static class Schedule {
        final double[] begin, before, rate, slope, end;
        final double roundS, total, last;
        final boolean repeating;

        Schedule(JsonNode given) {
            repeating = given.get("type").asText().equals("REPEATING");
            JsonNode segments = given.get("segments");
            int n = segments.size();
            begin = new double[n];
            before = new double[n];
            rate = new double[n];
            slope = new double[n];
            end = new double[n];
            double t = 0, sum = 0, to = 0;
            for (int i = 0; i < n; i++) {
                JsonNode one = segments.get(i);
                double from = (one.has("rate") ? one.get("rate") : one.get("fromRate")).asDouble();
                to = (one.has("rate") ? one.get("rate") : one.get("toRate")).asDouble();
                double duration = one.get("durationSeconds").asDouble();
                begin[i] = t;
                before[i] = sum;
                rate[i] = from;
                slope[i] = (to - from) / duration;
                t += duration;
                sum += (from + to) / 2 * duration;
                end[i] = sum;
            }
            roundS = t;
            total = sum;
            last = to;
        }

        double count(double t) {
            if (t <= 0) {
                return 0;
            }
            double whole = 0;
            if (t >= roundS) {
                if (!repeating) {
                    return total + last * (t - roundS);
                }
                double rounds = Math.floor(t / roundS);
                whole = rounds * total;
                t -= rounds * roundS;
            }
            int at = begin.length - 1;
            while (at > 0 && begin[at] > t) {
                at--;
            }
            double into = t - begin[at];
            return whole + before[at] + (rate[at] + slope[at] * into / 2) * into;
        }

        /** When record `number` is due, in nanoseconds from the begin. */
        long due(long number) {
            double wanted = number + 1, offset = 0;
            if (repeating) {
                if (total <= 0) {
                    return NEVER;
                }
                double rounds = Math.ceil(wanted / total) - 1;
                wanted -= rounds * total;
                offset = rounds * roundS;
            } else if (wanted > total) {
                double after = (wanted - total) / last;
                return Double.isFinite(after) ? Math.round((roundS + after) * 1e9) : NEVER;
            }
            int at = 0;
            while (at < end.length - 1 && end[at] < wanted) {
                at++;
            }
            double rest = wanted - before[at];
            double root = Math.sqrt(Math.max(rate[at] * rate[at] + 2 * slope[at] * rest, 0));
            return Math.round((offset + begin[at] + 2 * rest / (rate[at] + root)) * 1e9);
        }
    }

    /** Counts by member, topic and partition. */
    static class Counts {
        final Map<List<Object>, long[]> counts = new HashMap<>();

        synchronized void add(int member, String topic, int partition, long records, long bytes) {
            long[] sums = counts.computeIfAbsent(List.of(member, topic, partition), place -> new long[2]);
            sums[0] += records;
            sums[1] += bytes;
        }

        synchronized void take(ObjectNode second) {
            ArrayNode rows = second.putArray("counts");
            counts.forEach((place, sums) -> rows.addArray().add((Integer) place.get(0)).add((String) place.get(1))
                .add((Integer) place.get(2)).add(sums[0]).add(sums[1]));
            counts.clear();
        }
    }

    /** A file that gets an event for every record; the same as headrace.lab.journal. */
    static class Journal {
        static final int EVENT_BYTES = 32, SENT = 1, RECEIVED = 2, ACCEPTED = 3, GIVEN = 4, CORRUPT = 1, FOREIGN = 2, DELIVERIES_SHIFT = 2,
            DELIVERIES_MAX = 63;
        final FileChannel file;
        final ByteBuffer events = ByteBuffer.allocate(EVENT_BYTES * 2048).order(ByteOrder.LITTLE_ENDIAN);

        Journal(String path) throws IOException {
            file = FileChannel.open(Path.of(path), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }

        /** That of a worker, or null if it has none. */
        static Journal of(JsonNode prepare) throws IOException {
            String path = prepare.path("journal").asText("");
            return path.isEmpty() ? null : new Journal(path);
        }

        synchronized void add(int kind, int flags, int producer, int member, int topic, int partition, long sequence, long offset) {
            if (events.remaining() < EVENT_BYTES) {
                flush();
            }
            events.put((byte) kind).put((byte) flags).putShort((short) producer).putInt(member).putInt(topic).putInt(partition)
                .putLong(sequence).putLong(offset);
        }

        synchronized void flush() {
            events.flip();
            try {
                while (events.hasRemaining()) {
                    file.write(events);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            events.clear();
        }
    }

    /** Of a value without the place of the checksum itself. */
    static int checksum(byte[] value) {
        CRC32 crc = new CRC32();
        crc.update(value, 0, 12);
        crc.update(value, 16, value.length - 16);
        return (int) crc.getValue();
    }

    /** What went wrong, each sentence once a second. */
    static class Errors {
        Set<String> sentences = new LinkedHashSet<>();

        synchronized void add(String sentence) {
            if (sentences.size() < ERRORS_MAX) {
                sentences.add(sentence);
            }
        }

        synchronized void take(ObjectNode second) {
            ArrayNode told = second.putArray("errors");
            sentences.forEach(told::add);
            sentences.clear();
        }
    }

    /** All producers of this worker, a thread each. */
    static class Producing implements Work {
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
    static class Placement {
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
    static class Consuming implements Work {
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
                            why -> System.err.println("consumer " + member + ": not acknowledged: " + why)));
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
}
