package peer;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Sentences of a topic, split, count by word: every word goes through a topic of the broker to its count. Called
 * by kafka_streams_word_count.py, as --name value pairs.
 *
 * The application is paused while sentences are written to its topic, and is measured from its resumption until
 * all of their words are counted. Tasks that split may run ahead of those that count, so the words counted in
 * a fixed time would be too few.
 *
 * Says "measuring" on a line when the warm-up is over, later what it found as a line of JSON, and then waits
 * for its standard input to end, so that its CPU can be read while it lives.
 */
public class WordCount {
    static final int WORDS = 6;
    static final int FIRST_CHUNK = 200_000;
    static final String TOPIC = "sentences";
    static final byte[] NOTHING = {};
    static final LongAdder counted = new LongAdder();
    static byte[][] sentences;
    static long written;

    static Iterable<KeyValue<String, byte[]>> splitText(String sentence) {
        List<KeyValue<String, byte[]>> words = new ArrayList<>(WORDS);
        for (String word : sentence.split(" ")) words.add(KeyValue.pair(word, NOTHING));
        return words;
    }

    static Iterable<KeyValue<Bytes, byte[]>> splitBytes(Bytes sentence) {
        List<KeyValue<Bytes, byte[]>> words = new ArrayList<>(WORDS);
        byte[] bytes = sentence.get();
        int from = 0;
        for (int to = 0; to <= bytes.length; to++) {
            if (to == bytes.length || bytes[to] == ' ') {
                words.add(KeyValue.pair(Bytes.wrap(Arrays.copyOfRange(bytes, from, to)), NOTHING));
                from = to + 1;
            }
        }
        return words;
    }

    /** What count() does, and notes that it did. */
    static <W> void count(KStream<W, byte[]> words, Serde<W> serde, String store) {
        words.groupByKey(Grouped.with("words", serde, Serdes.ByteArray())).aggregate(
            () -> 0L,
            (word, nothing, count) -> {
                counted.increment();
                return count + 1;
            },
            Materialized.<W, Long>as(supplier(store)).withKeySerde(serde).withValueSerde(Serdes.Long()).withCachingEnabled());
    }

    /** Splits, and adds up words in a store of its task; each second it passes on what it has, and forgets it. */
    static class Combine implements Processor<Bytes, Bytes, Bytes, Long> {
        private ProcessorContext<Bytes, Long> context;
        private KeyValueStore<Bytes, Long> sums;

        @Override public void init(ProcessorContext<Bytes, Long> given) {
            context = given;
            sums = context.getStateStore("sums");
            context.schedule(Duration.ofSeconds(1), PunctuationType.WALL_CLOCK_TIME, this::passOn);
        }

        @Override public void process(Record<Bytes, Bytes> sentence) {
            for (KeyValue<Bytes, byte[]> word : splitBytes(sentence.value())) {
                Long before = sums.get(word.key);
                sums.put(word.key, before == null ? 1L : before + 1);
            }
        }

        private void passOn(long now) {
            List<KeyValue<Bytes, Long>> found = new ArrayList<>();
            try (KeyValueIterator<Bytes, Long> all = sums.all()) {
                all.forEachRemaining(found::add);
            }
            for (KeyValue<Bytes, Long> each : found) {
                context.forward(new Record<>(each.key, each.value, now));
                sums.delete(each.key);
            }
        }
    }

    static void countCombined(StreamsBuilder builder, KeyValueBytesStoreSupplier supplier) {
        Serde<Bytes> bytes = Serdes.Bytes();
        builder.addStateStore(
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("sums"), bytes, Serdes.Long()).withCachingEnabled());
        builder.stream(TOPIC, Consumed.with(bytes, bytes)).process(Combine::new, "sums")
            .groupByKey(Grouped.with("words", bytes, Serdes.Long())).aggregate(
                () -> 0L,
                (word, more, count) -> {
                    counted.add(more);
                    return count + more;
                },
                Materialized.<Bytes, Long>as(supplier).withKeySerde(bytes).withValueSerde(Serdes.Long()).withCachingEnabled());
    }

    static KeyValueBytesStoreSupplier supplier(String store) {
        return store.equals("memory") ? Stores.inMemoryKeyValueStore("counts") : Stores.persistentKeyValueStore("counts");
    }

    static Topology topology(Map<String, String> given) {
        StreamsBuilder builder = new StreamsBuilder();
        String store = given.get("store");
        if (given.get("combine").equals("yes")) {
            countCombined(builder, supplier(store));
        } else if (given.get("texts").equals("bytes")) {
            Serde<Bytes> bytes = Serdes.Bytes();
            KStream<Bytes, Bytes> lines = builder.stream(TOPIC, Consumed.with(bytes, bytes));
            count(lines.flatMap((key, sentence) -> splitBytes(sentence)), bytes, store);
        } else {
            Serde<String> text = Serdes.String();
            KStream<byte[], String> lines = builder.stream(TOPIC, Consumed.with(Serdes.ByteArray(), text));
            count(lines.flatMap((key, sentence) -> splitText(sentence)), text, store);
        }
        return builder.build();
    }

    /** Settings are given by their own names, with a prefix: --set.num.stream.threads 2. */
    static Properties settings(Map<String, String> given) {
        Properties settings = new Properties();
        settings.put("application.id", "word-count");
        settings.put("bootstrap.servers", given.get("servers"));
        settings.put("state.dir", given.get("state"));
        given.forEach((name, value) -> {
            if (name.startsWith("set.")) settings.put(name.substring(4), value);
        });
        return settings;
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, String> given) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", given.get("servers"), "batch.size", 262_144, "linger.ms", 50,
            "compression.type", given.get("compression"));
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** Write so many sentences while the application is paused. */
    static void fill(KafkaProducer<byte[], byte[]> producer, int partitions, long count) {
        for (long end = written + count; written < end; written++) {
            byte[] sentence = sentences[(int) (written % sentences.length)];
            producer.send(new ProducerRecord<>(TOPIC, (int) (written % partitions), null, sentence));
        }
        producer.flush();
    }

    /** Seconds from the resumption until all words that were written are counted. */
    static double drain(KafkaStreams streams) throws InterruptedException {
        long from = System.nanoTime(), latest = from, before = -1;
        streams.resume();
        for (long now = counted.sum(); now < written * WORDS; now = counted.sum()) {
            if (now > before) latest = System.nanoTime();
            else if (System.nanoTime() > latest + 90_000_000_000L) die("nothing was counted in 90 s");
            before = now;
            Thread.sleep(5);
        }
        double secs = (System.nanoTime() - from) / 1e9;
        streams.pause();
        return secs;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i < arguments.length; i += 2) given.put(arguments[i].substring(2), arguments[i + 1]);
        double warmUp = Double.parseDouble(given.get("warm-up")), secs = Double.parseDouble(given.get("secs"));
        int partitions = Integer.parseInt(given.get("partitions"));
        sentences = Files.readAllLines(Path.of(given.get("sentences"))).stream()
            .map(line -> line.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", given.get("servers")))) {
            admin.createTopics(List.of(new NewTopic(TOPIC, partitions, (short) 1))).all().get();
        }

        KafkaProducer<byte[], byte[]> producer = producer(given);
        KafkaStreams streams = new KafkaStreams(topology(given), settings(given));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            die("a thread of Kafka Streams ended");
            return null;
        });
        streams.pause();
        streams.start();
        double warmed = 0, rate = 0;
        long chunk = FIRST_CHUNK;
        do {
            fill(producer, partitions, chunk);
            double took = drain(streams);
            warmed += took;
            rate = chunk / took;
            chunk = Math.max(FIRST_CHUNK, (long) (rate * Math.min(5, warmUp)));
        } while (warmed < warmUp);
        chunk = (long) (rate * secs);
        fill(producer, partitions, chunk);
        System.out.println("measuring");
        System.out.flush();
        double took = drain(streams);
        System.out.printf(Locale.ROOT, "{\"roots\": %d, \"secs\": %.3f}%n", chunk, took);
        System.out.flush();
        while (System.in.read() >= 0) { } // until whoever started us has read our CPU
        Runtime.getRuntime().halt(0);
    }

    static void die(String why) {
        System.err.println(why);
        Runtime.getRuntime().halt(1);
    }
}
