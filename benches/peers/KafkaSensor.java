import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.SimpleRate;
import org.apache.kafka.common.utils.Time;

/**
 * Records bytes in a quota and checks the quota, like remote copies and fetches:
 * <pre>java -cp ... KafkaSensor WARMUP_SECONDS OPERATION THREADS RECORDS</pre>
 * Every round starts with a new sensor. RECORDS is the number per thread. The time is given, with
 * PER_MS records in a millisecond, or read from the clock for each record and each check.
 */
public final class KafkaSensor {
    private static final int SAMPLES = 11;
    private static final int WINDOW_MS = 1000;
    private static final double AMOUNT = 100;
    private static final int PER_MS = 100;
    private static final long FIRST_MS = 1_000_000;
    private static final double AMPLE = 1e12;
    private static final double TIGHT = 1000;

    private final int threads;
    private final int records;
    private final Metrics metrics = new Metrics();

    private KafkaSensor(int threads, int records) {
        this.threads = threads;
        this.records = records;
    }

    public static void main(String[] args) throws Exception {
        KafkaSensor bench = new KafkaSensor(Integer.parseInt(args[2]), Integer.parseInt(args[3]));
        Rounds.serve(Double.parseDouble(args[0]), bench.operation(args[1]));
    }

    private Rounds.Operation operation(String name) {
        switch (name) {
            case "given":
                return () -> given(AMPLE);
            case "exceeded":
                return () -> given(TIGHT);
            case "clock":
                return this::clock;
            default:
                throw new IllegalArgumentException("no operation " + name);
        }
    }

    /** Returns a sensor with a record in every sample before now, as after some use. */
    private Sensor sensor(double bound, long nowMs) {
        metrics.removeSensor("bytes");
        MetricConfig config = new MetricConfig().samples(SAMPLES)
            .timeWindow(WINDOW_MS, TimeUnit.MILLISECONDS).quota(Quota.upperBound(bound));
        Sensor sensor = metrics.sensor("bytes", config);
        sensor.add(rateName(), new SimpleRate());
        for (int before = SAMPLES; before > 0; before--) {
            sensor.record(AMOUNT, nowMs - before * WINDOW_MS, false);
        }
        return sensor;
    }

    private MetricName rateName() {
        return metrics.metricName("rate", "bench");
    }

    private Map<String, Long> given(double bound) throws Exception {
        Sensor sensor = sensor(bound, FIRST_MS);
        long exceeded = Rounds.inThreads(threads, number -> {
            long count = 0;
            for (int record = 0; record < records; record++) {
                long nowMs = FIRST_MS + record / PER_MS;
                sensor.record(AMOUNT, nowMs, false);
                count += exceeded(sensor, nowMs);
            }
            return count;
        });
        Map<String, Long> seen = new TreeMap<>();
        seen.put("exceeded", exceeded);
        if (threads == 1) {
            long lastMs = FIRST_MS + (records - 1) / PER_MS;
            KafkaMetric metric = metrics.metric(rateName());
            double rate = metric.measurable().measure(metric.config(), lastMs);
            seen.put("rate_milli", Math.round(rate * 1000));
        }
        return seen;
    }

    private static long exceeded(Sensor sensor, long nowMs) {
        try {
            sensor.checkQuotas(nowMs);
            return 0;
        } catch (QuotaViolationException violation) {
            return 1;
        }
    }

    private Map<String, Long> clock() throws Exception {
        Time time = Time.SYSTEM;
        Sensor sensor = sensor(AMPLE, time.milliseconds());
        return Map.of("exceeded", Rounds.inThreads(threads, number -> {
            long count = 0;
            for (int record = 0; record < records; record++) {
                sensor.record(AMOUNT, time.milliseconds(), false);
                count += exceeded(sensor, time.milliseconds());
            }
            return count;
        }));
    }
}
