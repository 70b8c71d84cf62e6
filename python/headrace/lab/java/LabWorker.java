// The lab's worker for Apache Kafka's own clients: headrace.lab.protocol on stdin and stdout.

package lab;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.Recorder;
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

    /** Of a value without the place of the checksum itself. */
    static int checksum(byte[] value) {
        CRC32 crc = new CRC32();
        crc.update(value, 0, 12);
        crc.update(value, 16, value.length - 16);
        return (int) crc.getValue();
    }
}
