package peer;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.annotation.FunctionHint;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.TableFunction;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.util.Collector;

/**
 * Sentences, split, count by word, in a mini cluster in this JVM, by the DataStream API or by SQL. Called by
 * flink_word_count.py, as --name value pairs.
 *
 * Says "measuring" on a line when the warm-up is over, later what it found as a line of JSON, and then waits
 * for its standard input to end, so that its CPU can be read while it lives.
 */
public class WordCount {
    static final int WORDS = 6;
    static final Queue<AtomicLong> counters = new ConcurrentLinkedQueue<>();
    static String[] sentences;
    static RowData[] rows;

    /** The words that a task has done. It alone writes the number, so it needs no locked addition. */
    static AtomicLong newCounter() {
        AtomicLong counter = new AtomicLong();
        counters.add(counter);
        return counter;
    }

    static long wordsDone() {
        return counters.stream().mapToLong(AtomicLong::get).sum();
    }

    /** A number's sentence. Flink's source saves the number with each checkpoint. */
    public static class Sentences implements GeneratorFunction<Long, String> {
        @Override public String map(Long number) { return sentences[(int) (number % sentences.length)]; }
    }

    /** The same as rows of Flink SQL, so that no String is converted. */
    public static class Rows implements GeneratorFunction<Long, RowData> {
        @Override public RowData map(Long number) { return rows[(int) (number % rows.length)]; }
    }

    public static class Split implements FlatMapFunction<String, String> {
        @Override public void flatMap(String sentence, Collector<String> out) {
            for (String word : sentence.split(" ")) out.collect(word);
        }
    }

    public static class Count extends KeyedProcessFunction<String, String, Void> {
        transient ValueState<Long> count;
        transient AtomicLong counter;
        transient long words;

        @Override public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            counter = newCounter();
        }

        @Override public void processElement(String word, Context context, Collector<Void> out) throws IOException {
            Long before = count.value();
            count.update(before == null ? 1L : before + 1);
            counter.lazySet(++words);
        }
    }

    /** Over bytes, as SQL has its texts; UNNEST(SPLIT(sentence, ' ')) took a tenth more CPU in all. */
    @FunctionHint(output = @DataTypeHint(value = "STRING", bridgedTo = StringData.class))
    public static class SplitBytes extends TableFunction<StringData> {
        transient AtomicLong counter;
        transient long words;

        @Override public void open(FunctionContext context) { counter = newCounter(); }

        public void eval(@DataTypeHint(value = "STRING", bridgedTo = StringData.class) StringData sentence) {
            byte[] bytes = sentence.toBytes();
            int from = 0;
            for (int to = 0; to <= bytes.length; to++) {
                if (to == bytes.length || bytes[to] == ' ') {
                    collect(BinaryStringData.fromBytes(bytes, from, to - from));
                    words++;
                    from = to + 1;
                }
            }
            counter.lazySet(words); // the aggregation runs in the thread of the split, and has taken them
        }
    }

    static JobClient startStream(StreamExecutionEnvironment environment) throws Exception {
        source(environment, new Sentences(), Types.STRING)
            .flatMap(new Split()).returns(Types.STRING)
            .keyBy(word -> word, Types.STRING)
            .process(new Count()).returns(Types.VOID)
            .sinkTo(new DiscardingSink<>());
        return environment.executeAsync("word-count");
    }

    static JobClient startSql(StreamExecutionEnvironment environment) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        RowType type = RowType.of(new VarCharType[] {VarCharType.STRING_TYPE}, new String[] {"sentence"});
        tables.createTemporaryView("sentences", source(environment, new Rows(), InternalTypeInfo.of(type)));
        tables.createTemporarySystemFunction("split", SplitBytes.class);
        tables.executeSql("CREATE TABLE counts (word STRING, n BIGINT) WITH ('connector' = 'blackhole')");
        String words = "sentences, LATERAL TABLE(split(sentence)) AS words (word)";
        String count = "INSERT INTO counts SELECT word, COUNT(*) FROM " + words + " GROUP BY word";
        return tables.executeSql(count).getJobClient().orElseThrow();
    }

    static <T> DataStream<T> source(StreamExecutionEnvironment environment, GeneratorFunction<Long, T> sentence, TypeInformation<T> type) {
        DataGeneratorSource<T> endless = new DataGeneratorSource<>(sentence, Long.MAX_VALUE, type);
        return environment.fromSource(endless, WatermarkStrategy.noWatermarks(), "sentences");
    }

    static Configuration configuration(Map<String, String> given) {
        Map<String, String> settings = new HashMap<>();
        settings.put("pipeline.object-reuse", "true");
        settings.put("restart-strategy.type", "none"); // a failure is shown; it is no part of the measurement
        settings.put("state.backend.type", "hashmap"); // on the heap: Flink's fastest
        settings.put("execution.buffer-timeout.interval", given.get("buffer-timeout-ms") + " ms");
        if (!given.get("checkpoint-ms").equals("0")) {
            settings.put("execution.checkpointing.interval", given.get("checkpoint-ms") + " ms");
            settings.put("execution.checkpointing.mode", "EXACTLY_ONCE");
            settings.put("execution.checkpointing.dir", Path.of(given.get("checkpoints")).toUri().toString());
        }
        if (!given.get("mini-batch-ms").equals("0")) {
            settings.put("table.exec.mini-batch.enabled", "true");
            settings.put("table.exec.mini-batch.allow-latency", given.get("mini-batch-ms") + " ms");
            settings.put("table.exec.mini-batch.size", given.get("mini-batch-rows"));
            settings.put("table.optimizer.agg-phase-strategy", "TWO_PHASE");
        }
        return Configuration.fromMap(settings);
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i < arguments.length; i += 2) given.put(arguments[i].substring(2), arguments[i + 1]);
        long warmUpMillis = (long) (Double.parseDouble(given.get("warm-up")) * 1000);
        double secs = Double.parseDouble(given.get("secs"));
        Path checkpoints = Path.of(given.get("checkpoints"));
        List<String> lines = Files.readAllLines(Path.of(given.get("sentences")));
        sentences = lines.toArray(new String[0]);
        rows = lines.stream().map(line -> GenericRowData.of(BinaryStringData.fromBytes(line.getBytes()))).toArray(RowData[]::new);

        int parallelism = Integer.parseInt(given.get("parallelism"));
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration(given));
        JobClient job = given.get("api").equals("sql") ? startSql(environment) : startStream(environment);
        job.getJobExecutionResult().whenComplete((result, error) -> die("the job ended: " + error));
        long deadline = System.nanoTime() + 90_000_000_000L;
        while (wordsDone() == 0) {
            if (System.nanoTime() > deadline) die("nothing was done in 90 s");
            Thread.sleep(50);
        }
        Thread.sleep(warmUpMillis);
        System.out.println("measuring");
        System.out.flush();
        long from = System.nanoTime(), before = wordsDone(), checkpointBefore = latestIn(checkpoints);
        Thread.sleep((long) (secs * 1000));
        double took = (System.nanoTime() - from) / 1e9;
        long roots = (wordsDone() - before) / WORDS;
        System.out.printf(
            Locale.ROOT, "{\"roots\": %d, \"secs\": %.3f, \"checkpoints\": %d}%n",
            roots, took, latestIn(checkpoints) - checkpointBefore);
        System.out.flush();
        while (System.in.read() >= 0) { } // until whoever started us has read our CPU
        Runtime.getRuntime().halt(0);
    }

    /** The number of the latest checkpoint; 0 if there is none. Files of old ones vanish meanwhile. */
    static long latestIn(Path checkpoints) {
        long latest = 0;
        for (File job : Objects.requireNonNullElse(checkpoints.toFile().listFiles(), new File[0])) {
            for (String name : Objects.requireNonNullElse(job.list(), new String[0])) {
                if (name.startsWith("chk-")) latest = Math.max(latest, Long.parseLong(name.substring(4)));
            }
        }
        return latest;
    }

    static void die(String why) {
        System.err.println(why);
        Runtime.getRuntime().halt(1);
    }
}
