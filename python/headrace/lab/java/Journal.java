// What a worker of a correctness run has seen, record by record.

package lab;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** A file that gets an event for every record; the same as headrace.lab.journal. */
class Journal {
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
