package peer;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.Recorder;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.ShellBolt;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.IRichBolt;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * Sentences, split, count by word, in a LocalCluster. Called by storm_word_count.py, as --name value pairs.
 *
 * Says "measuring" on a line when the warm-up is over, later what it found as a line of JSON, and then waits
 * for its standard input to end, so that its CPU can be read while it lives.
 */
public class WordCount {
    static final int WORDS = 6;
    static final LongAdder acked = new LongAdder(), failed = new LongAdder(), counted = new LongAdder();
    static final Recorder latencies = new Recorder(3);
    static volatile boolean recording = false;
    static String[] sentences;

    /** Emits from memory; at a rate (sentences a second), or as fast as it may where the rate is 0. */
    public static class Sentences extends BaseRichSpout {
        static final int RING = 1 << 20; // more than can be open
        final boolean tracked;
        final double rate;
        transient SpoutOutputCollector collector;
        transient long[] dueNanos;
        transient ArrayDeque<Long> again;
        transient long next, started;

        public Sentences(boolean tracked, double rate) {
            this.tracked = tracked;
            this.rate = rate;
        }

        @Override public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector out) {
            collector = out;
            dueNanos = new long[RING];
            again = new ArrayDeque<>();
            started = System.nanoTime();
        }

        @Override public void nextTuple() {
            long now = System.nanoTime();
            Long failedOne = again.poll();
            long id = failedOne != null ? failedOne : next;
            long due = rate > 0 ? started + (long) (id * 1e9 / rate) : now;
            if (failedOne == null) {
                if (now < due) return;
                next++;
                dueNanos[(int) (id % RING)] = due;
            }
            Values values = new Values(sentences[(int) (id % sentences.length)]);
            if (tracked) collector.emit(values, id);
            else collector.emit(values);
        }

        @Override public void ack(Object id) {
            acked.increment();
            if (recording) latencies.recordValue(Math.max(0, System.nanoTime() - dueNanos[(int) ((Long) id % RING)]));
        }

        @Override public void fail(Object id) {
            failed.increment();
            again.add((Long) id);
        }

        @Override public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("sentence"));
        }
    }

    public static class Split extends BaseRichBolt {
        final boolean tracked;
        transient OutputCollector collector;

        public Split(boolean tracked) { this.tracked = tracked; }

        @Override public void prepare(Map<String, Object> conf, TopologyContext context, OutputCollector out) {
            collector = out;
        }

        @Override public void execute(Tuple tuple) {
            for (String word : tuple.getString(0).split(" ")) {
                if (tracked) collector.emit(tuple, new Values(word));
                else collector.emit(new Values(word));
            }
            if (tracked) collector.ack(tuple);
        }

        @Override public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    public static class Count extends BaseRichBolt {
        final boolean tracked;
        transient OutputCollector collector;
        transient HashMap<String, Long> counts;

        public Count(boolean tracked) { this.tracked = tracked; }

        @Override public void prepare(Map<String, Object> conf, TopologyContext context, OutputCollector out) {
            collector = out;
            counts = new HashMap<>();
        }

        @Override public void execute(Tuple tuple) {
            counts.merge(tuple.getString(0), 1L, Long::sum);
            counted.increment();
            if (tracked) collector.ack(tuple);
        }

        @Override public void declareOutputFields(OutputFieldsDeclarer declarer) { }
    }

    /** A bolt in Python, through Storm's multilang. */
    public static class InPython extends ShellBolt implements IRichBolt {
        final String[] outputs;

        public InPython(String python, String script, String... outputs) {
            super(python, script);
            this.outputs = outputs;
        }

        @Override public void declareOutputFields(OutputFieldsDeclarer declarer) {
            if (outputs.length > 0) declarer.declare(new Fields(outputs));
        }

        @Override public Map<String, Object> getComponentConfiguration() { return null; }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i < arguments.length; i += 2) given.put(arguments[i].substring(2), arguments[i + 1]);
        boolean tracked = given.get("tracked").equals("yes"), python = !given.get("bolts").equals("java");
        long warmUpMillis = (long) (Double.parseDouble(given.get("warm-up")) * 1000);
        double secs = Double.parseDouble(given.get("secs"));
        List<String> lines = Files.readAllLines(Path.of(given.get("sentences")));
        sentences = lines.toArray(new String[0]);

        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("sentences", new Sentences(tracked, Double.parseDouble(given.get("rate"))), 1);
        String library = given.get("bolts").equals("pystorm") ? "pystorm_" : "";
        IRichBolt split = python ? new InPython(given.get("python"), library + "split.py", "word") : new Split(tracked);
        IRichBolt count = python ? new InPython(given.get("python"), library + "count.py") : new Count(tracked);
        builder.setBolt("split", split, 1).localOrShuffleGrouping("sentences");
        builder.setBolt("count", count, Integer.parseInt(given.get("counts"))).fieldsGrouping("split", new Fields("word"));

        Config config = new Config();
        config.setNumWorkers(1);
        config.setNumAckers(tracked ? 1 : 0);
        config.setMessageTimeoutSecs(30);
        config.put(Config.TOPOLOGY_EVENTLOGGER_EXECUTORS, 0);
        config.put(Config.TOPOLOGY_PRODUCER_BATCH_SIZE, Integer.parseInt(given.get("batch")));
        if (tracked) config.setMaxSpoutPending(Integer.parseInt(given.get("pending")));

        new LocalCluster().submitTopology("word-count", config, builder.createTopology());
        LongAdder done = tracked ? acked : counted;
        long deadline = System.nanoTime() + 90_000_000_000L;
        while (done.sum() == 0) {
            if (System.nanoTime() > deadline) die("nothing was done in 90 s");
            Thread.sleep(50);
        }
        Thread.sleep(warmUpMillis);
        System.out.println("measuring");
        System.out.flush();
        latencies.reset();
        recording = true;
        long from = System.nanoTime(), doneBefore = done.sum(), failedBefore = failed.sum();
        Thread.sleep((long) (secs * 1000));
        double took = (System.nanoTime() - from) / 1e9;
        long roots = (done.sum() - doneBefore) / (tracked ? 1 : WORDS);
        Histogram found = latencies.getIntervalHistogram();
        System.out.printf(
            Locale.ROOT,
            "{\"roots\": %d, \"secs\": %.3f, \"failed\": %d, \"p50_ms\": %.3f, \"p90_ms\": %.3f, \"p99_ms\": %.3f}%n",
            roots, took, failed.sum() - failedBefore,
            found.getValueAtPercentile(50) / 1e6, found.getValueAtPercentile(90) / 1e6, found.getValueAtPercentile(99) / 1e6);
        System.out.flush();
        while (System.in.read() >= 0) { } // until whoever started us has read our CPU
        end(0);
    }

    static void die(String why) {
        System.err.println(why);
        end(1);
    }

    /** LocalCluster's own shutdown takes longer than the measurement; nothing here is worth keeping. */
    static void end(int status) {
        ProcessHandle.current().descendants().forEach(ProcessHandle::destroyForcibly);
        Runtime.getRuntime().halt(status);
    }
}
