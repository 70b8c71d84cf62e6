// What is due when.

package lab;

import static lab.LabWorker.*;

import com.fasterxml.jackson.databind.JsonNode;

/** How many records are due when; the same as headrace.lab.schedule. */
class Schedule {
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
