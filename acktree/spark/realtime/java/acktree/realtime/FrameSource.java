package acktree.realtime;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.util.Collections;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source of a real-time query: rows that the driver sends over a socket.
 *
 * Each partition has one reader. It connects to the driver and says who it is; see HELLO in connections.py. Then the
 * driver sends, in the byte order of the network:
 *
 *   byte FRAME, int length, int target, int sender, int kind, long epoch, length bytes     a row
 *   byte END                                                                               Spark's batch is over
 *
 * The driver ends a batch, not Spark's clock, so a batch ends between two epochs. Nothing is buffered here but one
 * read of the socket: a reader whose consumer is slow leaves the bytes in the connection, and the driver's send waits.
 *
 * Behind each marker come pushes, for the same reason as behind an epoch in ClosedShuffle.java.
 *
 * An offset is the number of batches that ended. The driver knows what it sent, so no row is ever asked for again.
 *
 * Spark's own Janino compiles this file, which knows neither lambdas nor inferred generics.
 */
public class FrameSource implements TableProvider {
    static final StructType SCHEMA =
        StructType.fromDDL("target INT, sender INT, kind INT, epoch BIGINT, body BINARY");
    static final int END = 0;
    static final int FRAME = 1;
    static final int SOURCE_LEVEL = -1;  // the level that a reader names in its hello
    static final int MARKER = 1;         // kinds of rows, see frames.py
    static final int PUSH = 2;

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new Frames(new CaseInsensitiveStringMap(properties));
    }

    /** The table, its scan and its stream: Spark asks each of them for the next. */
    static class Frames implements SupportsRead, ScanBuilder, Scan, MicroBatchStream, SupportsRealTimeMode {
        final CaseInsensitiveStringMap options;

        Frames(CaseInsensitiveStringMap options) {
            this.options = options;
        }

        @Override
        public String name() {
            return "acktree";
        }

        @Override
        public StructType schema() {
            return SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Collections.singleton(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap ofScan) {
            return new Frames(ofScan);
        }

        @Override
        public Scan build() {
            return this;
        }

        @Override
        public StructType readSchema() {
            return SCHEMA;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return this;
        }

        @Override
        public Offset initialOffset() {
            return new Batches(0);
        }

        @Override
        public Offset latestOffset() {
            return initialOffset();
        }

        @Override
        public Offset deserializeOffset(String json) {
            return new Batches(Long.parseLong(json));
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start) {
            InputPartition[] parts = new InputPartition[options.getInt("partitions", 1)];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = new Part(options, i, ((Batches) start).ended);
            }
            return parts;
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            throw new UnsupportedOperationException("acktree's source is for real-time mode alone");
        }

        /** All readers of a batch read until its end, so their offsets are equal. */
        @Override
        public Offset mergeOffsets(PartitionOffset[] offsets) {
            return (Batches) offsets[0];
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers();
        }

        @Override
        public void commit(Offset end) {
        }

        @Override
        public void stop() {
        }
    }

    /** The number of Spark's batches that have ended. */
    static class Batches extends Offset implements PartitionOffset {
        final long ended;

        Batches(long ended) {
            this.ended = ended;
        }

        @Override
        public String json() {
            return Long.toString(ended);
        }
    }

    /** What a reader needs: where the driver is, and what to say there. */
    static class Part implements InputPartition {
        final String host;
        final int port;
        final String token;
        final int incarnation;
        final int partition;
        final int batch;  // how many rows Spark makes an Arrow batch of
        final long ended;

        Part(CaseInsensitiveStringMap options, int partition, long ended) {
            this.host = options.get("host");
            this.port = options.getInt("port", 0);
            this.token = options.get("token");
            this.incarnation = options.getInt("incarnation", 0);
            this.partition = partition;
            this.batch = options.getInt("partitions", 1) + 1;
            this.ended = ended;
        }
    }

    static class Readers implements PartitionReaderFactory, Serializable {
        @Override
        public PartitionReader createReader(InputPartition part) {
            try {
                return new FrameReader((Part) part);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    static class FrameReader implements SupportsRealTimeRead {
        private final Part part;
        private final SocketChannel channel;  // not a Socket: Spark interrupts the thread of a task that it ends
        private final DataInputStream in;
        private final UnsafeProjection projection = UnsafeProjection.create(SCHEMA);
        private InternalRow row;
        private long given;
        private int pushes;

        FrameReader(Part part) throws IOException {
            this.part = part;
            this.channel = SocketChannel.open(new InetSocketAddress(part.host, part.port));
            channel.setOption(StandardSocketOptions.TCP_NODELAY, Boolean.TRUE);
            byte[] token = part.token.getBytes("US-ASCII");
            ByteBuffer hello = ByteBuffer.allocate(token.length + 12);
            hello.put(token).putInt(part.incarnation).putInt(SOURCE_LEVEL).putInt(part.partition);
            Channels.newOutputStream(channel).write(hello.array());
            this.in = new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), 1 << 16));
        }

        /** Waits for the next row, or for the end of the batch, however long that is. */
        @Override
        public RecordStatus nextWithTimeout(Long startTimeMs, Long timeoutMs) throws IOException {
            if (pushes > 0) {
                pushes--;
                return given(0, 0, PUSH, 0, new byte[0]);
            }
            int type = in.read();
            if (type == END) {
                return RecordStatus.newStatusWithoutArrivalTime(false);
            }
            if (type != FRAME) {
                throw new EOFException("the driver closed the connection of partition " + part.partition);
            }
            byte[] body = new byte[in.readInt()];
            int target = in.readInt();
            int sender = in.readInt();
            int kind = in.readInt();
            long epoch = in.readLong();
            in.readFully(body);
            if (kind == MARKER) {
                pushes = part.batch - (int) (given % part.batch);  // with this row and those the next batch begins
            }
            return given(target, sender, kind, epoch, body);
        }

        private RecordStatus given(int target, int sender, int kind, long epoch, byte[] body) {
            Object[] values = {target, sender, kind, epoch, body};
            row = projection.apply(new GenericInternalRow(values));
            given++;
            return RecordStatus.newStatusWithArrivalTimeMs(System.currentTimeMillis());
        }

        @Override
        public boolean next() {
            throw new UnsupportedOperationException("acktree's source is for real-time mode alone");
        }

        @Override
        public Object get() {
            return row;
        }

        @Override
        public PartitionOffset getOffset() {
            return new Batches(part.ended + 1);
        }

        @Override
        public void close() throws IOException {
            channel.close();
        }
    }
}
