import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * Runs Kafka's own classes on one segment, one operation per process; see Rounds:
 * <pre>java -cp ... KafkaScan WARMUP_SECONDS OPERATION SEGMENT</pre>
 */
public final class KafkaScan {
    private final Path segment;
    private final BufferSupplier buffers = BufferSupplier.create();
    private ByteBuffer memory;

    private KafkaScan(Path segment) {
        this.segment = segment;
    }

    public static void main(String[] args) throws Exception {
        KafkaScan scan = new KafkaScan(Path.of(args[2]));
        Rounds.serve(Double.parseDouble(args[0]), scan.operation(args[1]));
    }

    private Rounds.Operation operation(String name) throws IOException {
        switch (name) {
            case "scan-memory":
                load();
                return () -> walk(memoryBatches(), true);
            case "headers-memory":
                load();
                return () -> walk(memoryBatches(), false);
            case "records-memory":
                load();
                return this::records;
            case "scan-file":
                return () -> walkFile(true);
            case "headers-file":
                return () -> walkFile(false);
            case "recover":
                return this::recover;
            default:
                throw new IllegalArgumentException("no operation " + name);
        }
    }

    private void load() throws IOException {
        memory = ByteBuffer.wrap(Files.readAllBytes(segment));
    }

    private Iterable<? extends RecordBatch> memoryBatches() {
        return MemoryRecords.readableRecords(memory.duplicate()).batches();
    }

    /** Reads like log recovery: a small read per header, and another read per checked batch. */
    private Map<String, Long> walkFile(boolean verify) throws IOException {
        try (FileRecords records = FileRecords.open(segment.toFile(), false)) {
            return walk(records.batches(), verify);
        }
    }

    /** Checks the checksum of every batch, or reads every field that a header scan returns. */
    private static Map<String, Long> walk(Iterable<? extends RecordBatch> batches, boolean verify) {
        long count = 0;
        long bytes = 0;
        long lastOffset = -1;
        long fields = 0;
        for (RecordBatch batch : batches) {
            if (verify) {
                batch.ensureValid();
            } else {
                fields += batch.baseOffset() + batch.maxTimestamp() + batch.partitionLeaderEpoch()
                    + batch.producerId() + batch.producerEpoch() + batch.baseSequence()
                    + batch.compressionType().id + batch.countOrNull();
            }
            count++;
            bytes += batch.sizeInBytes();
            lastOffset = batch.lastOffset();
        }
        Map<String, Long> seen = new TreeMap<>();
        seen.put("batches", count);
        seen.put("bytes", bytes);
        seen.put("last_offset", lastOffset);
        sink = fields;
        return seen;
    }

    /** Keeps the compiler from removing a computation whose result is not used. */
    private static volatile long sink;

    private Map<String, Long> records() {
        long count = 0;
        long payload = 0;
        long offsets = 0;
        long lastTimestamp = 0;
        for (RecordBatch batch : memoryBatches()) {
            try (CloseableIterator<Record> records = batch.streamingIterator(buffers)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    count++;
                    offsets += record.offset();
                    lastTimestamp = record.timestamp();
                    payload += Math.max(record.keySize(), 0) + Math.max(record.valueSize(), 0);
                }
            }
        }
        Map<String, Long> seen = new TreeMap<>();
        seen.put("records", count);
        seen.put("payload_bytes", payload);
        seen.put("offset_sum", offsets);
        seen.put("last_timestamp_ms", lastTimestamp);
        return seen;
    }

    /** Recovers a segment like a broker after a crash. SEGMENT has its own directory. */
    private Map<String, Long> recover() throws IOException {
        File directory = segment.getParent().toFile();
        Time time = Time.SYSTEM;
        TopicPartition partition = new TopicPartition("bench", 0);
        LeaderEpochFileCache epochs = new LeaderEpochFileCache(
            partition,
            new LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.newFile(directory), new LogDirFailureChannel(1)),
            new KafkaScheduler(1));
        ProducerStateManager producers = new ProducerStateManager(
            partition, directory, 900_000, new ProducerStateManagerConfig(86_400_000, false), time);
        LogConfig config = new LogConfig(Map.of("segment.index.bytes", "10485760"));
        try (LogSegment log = LogSegment.open(directory, 0, config, time, 0, false)) {
            long truncated = log.recover(producers, epochs);
            Map<String, Long> seen = new TreeMap<>();
            seen.put("bytes", log.size() - truncated);
            seen.put("offset_index_entries", (long) log.offsetIndex().entries());
            seen.put("time_index_entries", (long) log.timeIndex().entries());
            return seen;
        }
    }
}
