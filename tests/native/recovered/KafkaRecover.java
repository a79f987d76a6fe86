import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * Kafka's own recovery, one segment per line of input:
 * <pre>DIRECTORY BASE_OFFSET INDEX_INTERVAL_BYTES SNAPSHOT_FILE_OR_DASH</pre>
 * The directory holds the `.log` alone; the index files, and a snapshot named `end.snapshot` if any
 * batch was found, are there afterwards. Answers with the end offset, the first offset of the
 * oldest open transaction (-1: none), the largest timestamp, and epoch:start pairs.
 */
public final class KafkaRecover {
    public static void main(String[] args) throws IOException {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BufferedReader jobs =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            String[] job = line.split("\t");
            System.out.println(
                recover(new File(job[0]), Long.parseLong(job[1]), job[2], job[3], scheduler));
        }
        System.exit(0);
    }

    private static String recover(
        File directory, long baseOffset, String interval, String snapshot, KafkaScheduler scheduler)
        throws IOException {
        TopicPartition partition = new TopicPartition("recovered", 0);
        LeaderEpochFileCache epochs = new LeaderEpochFileCache(
            partition,
            new LeaderEpochCheckpointFile(
                LeaderEpochCheckpointFile.newFile(directory), new LogDirFailureChannel(1)),
            scheduler);
        ProducerStateManager producers = new ProducerStateManager(
            partition, directory, 900_000, new ProducerStateManagerConfig(86_400_000, false),
            Time.SYSTEM);
        if (!snapshot.equals("-")) {
            for (ProducerStateEntry entry : ProducerStateManager.readSnapshot(new File(snapshot))) {
                producers.loadProducerEntry(entry);
            }
        }
        producers.updateMapEndOffset(baseOffset);
        LogConfig config = new LogConfig(Map.of("index.interval.bytes", interval));
        long largest;
        try (LogSegment log =
                LogSegment.open(directory, baseOffset, config, Time.SYSTEM, true, 0, false, "")) {
            log.recover(producers, epochs);
            largest = log.largestRecordTimestamp().orElse(-1);
        }
        ProducerStateManager.writeSnapshot(
            new File(directory, "end.snapshot"), producers.activeProducers(), false);
        String found = epochs.epochEntries().stream()
            .map(entry -> entry.epoch() + ":" + entry.startOffset())
            .collect(Collectors.joining(","));
        return String.join("\t",
            Long.toString(producers.mapEndOffset()),
            Long.toString(producers.firstUndecidedOffset().orElse(-1)),
            Long.toString(largest),
            found);
    }
}
