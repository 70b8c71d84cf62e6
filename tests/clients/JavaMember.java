// A member of a group by Kafka's own consumer, for tests: polls until its standard input ends, then closes.
//   JavaMember TOPIC NAME=VALUE...    the consumer's settings
// A line on standard output for each thing that happens:
//   row PARTITION OFFSET NANOS        when it was polled, by the clock that never goes back
//   assigned PARTITION...             all that it has now, whenever that changes

import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class JavaMember {
    private static final Duration WAIT = Duration.ofMillis(100);

    private static void tell(String kind, Collection<? extends Number> numbers) {
        StringBuilder line = new StringBuilder(kind);
        numbers.forEach(number -> line.append(' ').append(number));
        System.out.println(line);
    }

    /** Tells what it has after each change, and before anything that it has not any more is anybody else's. */
    private static final class Teller implements ConsumerRebalanceListener {
        private final Set<Integer> has = new TreeSet<>();

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> has.add(partition.partition()));
            tell("assigned", has);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> has.remove(partition.partition()));
            tell("assigned", has);
        }
    }

    public static void main(String[] arguments) {
        Map<String, Object> settings = new HashMap<>();
        for (String setting : List.of(arguments).subList(1, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        var over = new AtomicBoolean();
        var ender = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException ended) {
                // That is an end, too.
            }
            over.set(true);
        });
        ender.setDaemon(true);
        ender.start();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[0]), new Teller());
            while (!over.get()) {
                var records = consumer.poll(WAIT);
                long now = System.nanoTime();
                records.forEach(record -> tell("row", List.of(record.partition(), record.offset(), now)));
            }
        }
    }
}
