import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.util.ToolRunner;

/**
 * A real HDFS in one JVM: {@code HdfsCluster FOLDER DATANODES}. Prints {@code ready PORT}, then
 * answers each line of standard input (words between tabs) with one line: {@code ok}, {@code ok
 * EXIT BASE64} for a shell command, or {@code failed WHY}. Ends with its standard input.
 */
public final class HdfsCluster {
    private static final Map<String, MiniDFSCluster.DataNodeProperties> STOPPED = new HashMap<>();
    private static Configuration settings;
    private static MiniDFSCluster cluster;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        settings = new HdfsConfiguration();
        settings.set("dfs.blocksize", "4m");
        settings.set("dfs.namenode.fs-limits.min-block-size", "1m");
        settings.set("dfs.replication", "2");
        settings.set("dfs.ls.limit", "50");
        settings.set("dfs.permissions.enabled", "true");
        // Nobody pulls the plug: no fsync of the edit log.
        settings.set("dfs.namenode.edits.noeditlogchannelflush", "true");
        cluster = new MiniDFSCluster.Builder(settings, new File(arguments[0]))
            .numDataNodes(Integer.parseInt(arguments[1]))
            .build();
        cluster.waitActive();
        out.println("ready " + cluster.getNameNodePort());
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok " + obey(line.split("\t", -1));
            } catch (Exception error) {
                answer = "failed " + error.toString().replace('\n', ' ');
            }
            out.println(answer.strip());
        }
        Runtime.getRuntime().halt(0);
    }

    private static String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "stop-namenode":
                cluster.shutdownNameNode(0);
                return "";
            case "start-namenode":
                cluster.restartNameNode(0, true);
                return "";
            case "stop-datanode":
                STOPPED.put(words[1], cluster.stopDataNode(words[1]));
                return "";
            case "start-datanode":
                cluster.restartDataNode(STOPPED.remove(words[1]), true);
                // Not waitActive, which waits for those that are still down, too.
                cluster.waitDatanodeFullyStarted(
                    cluster.getDataNodes().get(cluster.getDataNodes().size() - 1), 30_000);
                return "";
            case "datanodes":
                StringBuilder names = new StringBuilder();
                cluster.getDataNodes().forEach(
                    node -> names.append(node.getDatanodeId().getXferAddr()).append(' '));
                return names.toString();
            case "shell":
                return shell(Arrays.copyOfRange(words, 1, words.length));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String shell(String[] words) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true));
        int exit;
        try {
            Configuration client = new Configuration(settings);
            client.set("fs.defaultFS", "hdfs://127.0.0.1:" + cluster.getNameNodePort());
            exit = ToolRunner.run(new FsShell(client), words);
        } finally {
            System.out.flush();
            System.setOut(before);
        }
        return exit + " " + Base64.getEncoder().encodeToString(printed.toByteArray());
    }
}
