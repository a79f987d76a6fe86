import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.LongUnaryOperator;
import java.util.stream.Collectors;

/**
 * Warms an operation up, then runs it once for every line that it reads. It answers with one line
 * of JSON: the nanoseconds of the run, its CPU nanoseconds and its result. The caller decides when
 * a round happens, so it can alternate the rounds with its own.
 */
final class Rounds {
    interface Operation {
        Map<String, Long> run() throws Exception;
    }

    private static final ExecutorService OTHERS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });

    private Rounds() {
    }

    static void serve(double warmupSeconds, Operation operation) throws Exception {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        // CPU time, so that the warm-up is the same on a busy machine.
        long warmUntil = threads.getCurrentThreadCpuTime() + (long) (warmupSeconds * 1e9);
        do {
            operation.run();
        } while (threads.getCurrentThreadCpuTime() < warmUntil);
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (requests.readLine() != null) {
            long start = System.nanoTime();
            long cpuStart = threads.getCurrentThreadCpuTime();
            Map<String, Long> seen = operation.run();
            long cpuNanos = threads.getCurrentThreadCpuTime() - cpuStart;
            long nanos = System.nanoTime() - start;
            System.out.printf(
                "{\"nanos\": %d, \"cpu_nanos\": %d, \"seen\": %s}%n", nanos, cpuNanos, json(seen));
        }
    }

    /** Adds the results of `work` for each thread number. The calling thread runs the first. */
    static long inThreads(int count, LongUnaryOperator work) throws Exception {
        List<Future<Long>> others = new ArrayList<>();
        for (long number = 1; number < count; number++) {
            long its = number;
            others.add(OTHERS.submit(() -> work.applyAsLong(its)));
        }
        long sum = work.applyAsLong(0);
        for (Future<Long> other : others) {
            sum += other.get();
        }
        return sum;
    }

    private static String json(Map<String, Long> seen) {
        return seen.entrySet().stream()
            .map(field -> "\"" + field.getKey() + "\": " + field.getValue())
            .collect(Collectors.joining(", ", "{", "}"));
    }
}
