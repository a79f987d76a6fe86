import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Iterator;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;

/**
 * Reads batches as Kafka's consumer does with check.crcs (class CompletedFetch): one line of hex in,
 * one line out. It holds the records, `offset,timestamp,key,value,header...` separated by blanks, and
 * at its end `!` and the error when Kafka refuses the batch.
 */
public class ConsumerRecords {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(read(ByteBuffer.wrap(HEX.parseHex(line))));
        }
    }

    private static String read(ByteBuffer bytes) {
        var out = new StringBuilder();
        long next = 0;
        try (var buffers = BufferSupplier.create()) {
            for (RecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                batch.ensureValid();
                try (var records = batch.streamingIterator(buffers)) {
                    while (records.hasNext()) {
                        Record record = records.next();
                        record.ensureValid();
                        if (record.offset() >= next && !batch.isControlBatch()) {
                            out.append(text(record)).append(' ');
                            next = record.offset() + 1;
                        }
                    }
                }
            }
        } catch (RuntimeException | Error error) {
            out.append("! ").append(error.toString().replace('\n', ' '));
        }
        return out.toString().strip();
    }

    private static String text(Record record) {
        var out = new StringBuilder();
        out.append(record.offset()).append(',').append(record.timestamp());
        out.append(',').append(hex(record.key())).append(',').append(hex(record.value()));
        for (Header header : record.headers()) {
            out.append(',').append(HEX.formatHex(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)));
            byte[] value = header.value();
            out.append('=').append(value == null ? "null" : HEX.formatHex(value));
        }
        return out.toString();
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "null";
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HEX.formatHex(copy);
    }
}
