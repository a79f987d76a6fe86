import java.util.HexFormat;
import java.util.Scanner;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;

/**
 * Kafka's own reading of metadata records, a line of hex each: the bytes it writes for what it has
 * read, and its text of that; or "refused". A line "partition ID NUMBER COUNT" asks its partitioner.
 */
public class MetadataSerde {
    public static void main(String[] arguments) {
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String line = lines.nextLine();
            System.out.println(line.startsWith("partition ") ? place(line.split(" ")) : read(serde, line));
        }
    }

    private static String read(RemoteLogMetadataSerde serde, String line) {
        try {
            RemoteLogMetadata event = serde.deserialize(HexFormat.of().parseHex(line));
            return HexFormat.of().formatHex(serde.serialize(event)) + " " + event;
        } catch (RuntimeException error) {
            return "refused " + error.getClass().getSimpleName();
        }
    }

    private static String place(String[] words) {
        TopicIdPartition partition = new TopicIdPartition(
            Uuid.fromString(words[1]), new TopicPartition("any", Integer.parseInt(words[2])));
        return "" + new RemoteLogMetadataTopicPartitioner(Integer.parseInt(words[3])).metadataPartition(partition);
    }
}
