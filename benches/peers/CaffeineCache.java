import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import java.time.Duration;
import java.util.Map;

/**
 * Caffeine with a weigher and expire-after-access, as Kafka's RemoteIndexCache builds it:
 * <pre>java -cp ... CaffeineCache WARMUP_SECONDS OPERATION THREADS ENTRIES PROBES REPEATS</pre>
 * The cache holds ENTRIES of weight 1. Each thread uses PROBES keys REPEATS times: it gets keys in
 * a pseudo-random order, or puts keys that were evicted since their last put.
 */
public final class CaffeineCache {
    private static final Duration TTL = Duration.ofMinutes(15);

    private final int threads;
    private final int repeats;
    private final String[] probes;
    private final Cache<String, Long> cache;

    private CaffeineCache(int threads, int entries, int repeats, String[] probes) {
        this.threads = threads;
        this.repeats = repeats;
        this.probes = probes;
        cache = Caffeine.newBuilder().maximumWeight(entries).weigher((key, value) -> 1)
            .expireAfterAccess(TTL).build();
        for (int number = 0; number < entries; number++) {
            cache.put(key(number), (long) number);
        }
        cache.cleanUp();
    }

    public static void main(String[] args) throws Exception {
        boolean put = args[1].equals("put");
        int entries = Integer.parseInt(args[3]);
        int count = Integer.parseInt(args[4]);
        CaffeineCache bench = new CaffeineCache(
            Integer.parseInt(args[2]),
            entries,
            Integer.parseInt(args[5]),
            put ? inOrder(entries, count) : atRandom(entries, count));
        Rounds.serve(Double.parseDouble(args[0]), put ? bench::put : bench::get);
    }

    private static String key(int number) {
        return String.format("segment-%014d", number);
    }

    /** Pseudo-random keys of entries, the same in every language: xorshift of 64 bits. */
    private static String[] atRandom(int entries, int count) {
        String[] probes = new String[count];
        long state = 88172645463325252L;
        for (int index = 0; index < count; index++) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            probes[index] = key((int) ((state >>> 11) % entries));
        }
        return probes;
    }

    private static String[] inOrder(int first, int count) {
        String[] probes = new String[count];
        for (int index = 0; index < count; index++) {
            probes[index] = key(first + index);
        }
        return probes;
    }

    private Map<String, Long> get() throws Exception {
        return Map.of("hits", Rounds.inThreads(threads, number -> {
            long hits = 0;
            long sum = 0;
            for (int repeat = 0; repeat < repeats; repeat++) {
                for (String probe : probes) {
                    Long value = cache.getIfPresent(probe);
                    if (value != null) {
                        hits++;
                        sum += value;
                    }
                }
            }
            sink = sum;
            return hits;
        }));
    }

    /** Keeps the compiler from removing a computation whose result is not used. */
    private static volatile long sink;

    private Map<String, Long> put() {
        for (int repeat = 0; repeat < repeats; repeat++) {
            for (String probe : probes) {
                cache.put(probe, 0L);
            }
        }
        cache.cleanUp();
        return Map.of("entries", cache.estimatedSize());
    }
}
