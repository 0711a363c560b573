package acktree.realtime;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.scheduler.MapStatus$;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.streaming.StreamingShuffleManager;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.storage.BlockManagerId$;
import org.apache.spark.util.TaskCompletionListener;

/**
 * A streaming shuffle inside of one JVM; spark.shuffle.manager.incremental names it.
 *
 * Real time runs on master local[N] alone, so all tasks are threads of this JVM. A writer hands its rows to queues, one
 * for each reader. Nothing listens on a port, where Spark's own streaming shuffle listens on all interfaces and serves
 * whoever asks; and a row is neither serialized nor encrypted nor sent.
 *
 * Rules of this file
 * ------------------
 * 1. Rows of one writer reach a reader in the order in which they were written.
 * 2. A writer waits while more than MOST_BYTES wait for a reader, so a slow level holds back those before it.
 * 3. A reader ends when all writers have ended. A task that is killed waits no longer.
 *
 * Spark's own Janino compiles this file, which knows neither lambdas nor inferred generics.
 */
public class ClosedShuffle extends StreamingShuffleManager {
    static final long MOST_BYTES = 32L << 20;
    static final long LOOK_MS = 200;  // how often a task that waits looks whether it was killed
    static final int KIND = 2;        // columns, see frames.py
    static final int EPOCH = 3;
    static final int MARKER = 1;      // kinds
    static final int PUSH = 2;

    private final ConcurrentHashMap queues = new ConcurrentHashMap();  // Queue[] by the number of the shuffle

    public ClosedShuffle(SparkConf conf, boolean isDriver) {
        String master = conf.get("spark.master", "");
        if (!master.equals("local") && !master.startsWith("local[")) {
            throw new IllegalArgumentException("acktree's real time runs on master local[N] alone, not on " + master);
        }
    }

    @Override
    public ShuffleHandle registerShuffle(int shuffleId, ShuffleDependency dependency) {
        queues.put(Integer.valueOf(shuffleId), queuesOf(
            dependency.partitioner().numPartitions(), dependency.rdd().getNumPartitions()));
        return super.registerShuffle(shuffleId, dependency);
    }

    static Queue[] queuesOf(int readers, int writers) {
        Queue[] ofReaders = new Queue[readers];
        for (int i = 0; i < readers; i++) {
            ofReaders[i] = new Queue(writers);
        }
        return ofReaders;
    }

    @Override
    public boolean unregisterShuffle(int shuffleId) {
        queues.remove(Integer.valueOf(shuffleId));
        return super.unregisterShuffle(shuffleId);
    }

    private Queue[] of(ShuffleHandle handle) {
        return (Queue[]) queues.get(Integer.valueOf(handle.shuffleId()));
    }

    @Override
    public ShuffleWriter getWriter(
            ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
        Partitioner partitioner = ((BaseShuffleHandle) handle).dependency().partitioner();
        return new Writer(of(handle), partitioner, mapId, context);
    }

    @Override
    public ShuffleReader getReader(
            ShuffleHandle handle, int startMap, int endMap, int start, int end, TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        return new Reader(of(handle)[start], context);
    }

    /** The rows on their way to a reader. */
    static class Queue {
        final int writers;
        private final ArrayDeque rows = new ArrayDeque();
        private long bytes;
        private int ended;
        private boolean isClosed;

        Queue(int writers) {
            this.writers = writers;
        }

        /** Adds a row. Waits while too much waits for the reader. */
        synchronized void put(UnsafeRow row, TaskContext context) throws InterruptedException {
            while (bytes > MOST_BYTES && !isClosed) {
                look(context);
            }
            if (!isClosed) {
                rows.add(row);
                bytes += row.getSizeInBytes();
                notifyAll();
            }
        }

        /** A writer has ended. */
        synchronized void end() {
            ended++;
            notifyAll();
        }

        /** The next row, as soon as there is one; null if all writers have ended. */
        synchronized UnsafeRow take(TaskContext context) throws InterruptedException {
            while (rows.isEmpty() && ended < writers) {
                look(context);
            }
            UnsafeRow row = (UnsafeRow) rows.poll();
            if (row != null && bytes > MOST_BYTES) {
                notifyAll();  // a writer may wait
            }
            bytes -= row == null ? 0 : row.getSizeInBytes();
            return row;
        }

        /** The reader is gone. */
        synchronized void close() {
            isClosed = true;
            rows.clear();
            notifyAll();
        }

        private void look(TaskContext context) throws InterruptedException {
            wait(LOOK_MS);
            if (context != null) {
                context.killTaskIfInterrupted();
            }
        }
    }

    static class Writer extends ShuffleWriter {
        final Queue[] queues;
        final Partitioner partitioner;
        final long mapId;
        final TaskContext context;

        Writer(Queue[] queues, Partitioner partitioner, long mapId, TaskContext context) {
            this.queues = queues;
            this.partitioner = partitioner;
            this.mapId = mapId;
            this.context = context;
        }

        @Override
        public void write(scala.collection.Iterator records) {
            try {
                while (records.hasNext()) {
                    scala.Product2 record = (scala.Product2) records.next();
                    UnsafeRow row = ((UnsafeRow) record._2()).copy();  // Spark writes the next one into it
                    queues[partitioner.getPartition(record._1())].put(row, context);
                }
            } catch (InterruptedException error) {
                throw ended(context, error);
            }
            for (int i = 0; i < queues.length; i++) {
                queues[i].end();
            }
        }

        /** What Spark wants to know of a shuffle's output. Nobody reads it: there are no blocks. */
        @Override
        public scala.Option stop(boolean success) {
            return new scala.Some(MapStatus$.MODULE$.apply(
                BlockManagerId$.MODULE$.apply("driver", "localhost", 1, scala.Option.apply(null)),
                getPartitionLengths(), mapId, MapStatus$.MODULE$.apply$default$4()));
        }

        @Override
        public long[] getPartitionLengths() {
            return new long[queues.length];
        }
    }

    static class Reader implements ShuffleReader, TaskCompletionListener {
        final Queue queue;
        final TaskContext context;

        Reader(Queue queue, TaskContext context) {
            this.queue = queue;
            this.context = context;
            context.addTaskCompletionListener((TaskCompletionListener) this);
        }

        @Override
        public scala.collection.Iterator read() {
            return new Rows(queue, context);
        }

        @Override
        public void onTaskCompletion(TaskContext ended) {
            queue.close();
        }
    }

    /**
     * The rows of a reader, with pushes behind each epoch.
     *
     * Spark makes an Arrow batch of as many rows as there are writers, and one more. It looks for the next row before it
     * hands a batch on. So behind the last marker of an epoch come rows that mean nothing: what the batch lacks, and one
     * more, which is the first row of the next batch. An epoch of one row from each writer is one batch.
     */
    static class Rows extends scala.collection.AbstractIterator {
        static final UnsafeRow NOTHING = nothing();
        final Queue queue;
        final TaskContext context;
        private final Map markers = new HashMap();  // by epoch how many have come
        private long given;
        private int pushes;
        private UnsafeRow row;

        Rows(Queue queue, TaskContext context) {
            this.queue = queue;
            this.context = context;
        }

        private static UnsafeRow nothing() {
            StructType schema = StructType.fromDDL("target INT, sender INT, kind INT, epoch BIGINT, body BINARY");
            Object[] values = {Integer.valueOf(0), Integer.valueOf(0), Integer.valueOf(PUSH), Long.valueOf(0), new byte[0]};
            return UnsafeProjection.create(schema).apply(new GenericInternalRow(values)).copy();
        }

        @Override
        public boolean hasNext() {
            if (row == null) {
                row = following();
            }
            return row != null;
        }

        @Override
        public Object next() {
            hasNext();
            UnsafeRow found = row;
            row = null;
            given++;
            return new scala.Tuple2(null, found);
        }

        private UnsafeRow following() {
            if (pushes > 0) {
                pushes--;
                return NOTHING;
            }
            UnsafeRow found;
            try {
                found = queue.take(context);
            } catch (InterruptedException error) {
                throw ended(context, error);
            }
            if (found != null && found.getInt(KIND) == MARKER && isWhole(Long.valueOf(found.getLong(EPOCH)))) {
                int batch = queue.writers + 1;
                pushes = batch - (int) (given % batch);  // with this row and those the next one begins
            }
            return found;
        }

        private boolean isWhole(Long epoch) {
            Integer before = (Integer) markers.remove(epoch);
            int count = before == null ? 1 : before.intValue() + 1;
            if (count < queue.writers) {
                markers.put(epoch, Integer.valueOf(count));
            }
            return count == queue.writers;
        }
    }

    /** What a task ends with that was interrupted: Spark's own exception, if it was killed. */
    static RuntimeException ended(TaskContext context, InterruptedException error) {
        if (context != null) {
            context.killTaskIfInterrupted();
        }
        return new RuntimeException("the task was interrupted", error);
    }
}
