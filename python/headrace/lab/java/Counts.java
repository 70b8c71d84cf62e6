// What is told once a second.

package lab;

import static lab.LabWorker.*;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Counts by member, topic and partition. */
class Counts {
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

/** What went wrong, each sentence once a second. */
class Errors {
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
