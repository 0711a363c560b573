package acktree.realtime;

import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.util.AttributeKey;
import io.netty.util.ReferenceCountUtil;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.TaskContext;
import org.apache.spark.network.TransportContext;
import org.apache.spark.network.client.RpcResponseCallback;
import org.apache.spark.network.client.TransportClient;
import org.apache.spark.network.client.TransportClientBootstrap;
import org.apache.spark.network.client.TransportClientFactory;
import org.apache.spark.network.crypto.AuthClientBootstrap;
import org.apache.spark.network.crypto.AuthServerBootstrap;
import org.apache.spark.network.netty.SparkTransportConf;
import org.apache.spark.network.protocol.RpcRequest;
import org.apache.spark.network.sasl.SecretKeyHolder;
import org.apache.spark.network.server.AbstractAuthRpcHandler;
import org.apache.spark.network.server.RpcHandler;
import org.apache.spark.network.server.StreamManager;
import org.apache.spark.network.util.TransportConf;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.streaming.StreamingShuffleClientHandler;
import org.apache.spark.shuffle.streaming.StreamingShuffleHandle;
import org.apache.spark.shuffle.streaming.StreamingShuffleManager;
import org.apache.spark.shuffle.streaming.StreamingShuffleReader;
import org.apache.spark.shuffle.streaming.StreamingShuffleServerHandler;
import org.apache.spark.shuffle.streaming.StreamingShuffleWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.util.ErrorNotifier;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Spark's streaming shuffle for readers of this JVM alone; spark.shuffle.manager.incremental names it.
 *
 * Spark's writer listens on all interfaces, and serves whoever asks. It accepts a handler for its server, though. Ours
 * closes each connection that is not from loopback, and lets the others prove a secret with Spark's own protocol
 * (AuthServerBootstrap), which also encrypts them. Spark's handler gets the messages of proven connections alone, and
 * nothing that happens on another one: it would end the query. The secret is made in this JVM and never leaves it.
 *
 * Spark's own Janino compiles this file, which knows neither lambdas nor inferred generics.
 */
public class ClosedShuffle extends StreamingShuffleManager {
    /** What a connection may send, and how long it may last, before it has proven the secret. */
    static final int UNPROVEN_BYTES = 16384;
    static final int UNPROVEN_SECS = 10;
    static final AttributeKey PROOF = AttributeKey.valueOf("acktree.proof");

    final TransportConf transportConf;
    private final long readerBytes;

    public ClosedShuffle(SparkConf conf, boolean isDriver) {
        String master = conf.get("spark.master", "");
        if (!master.equals("local") && !master.startsWith("local[")) {
            throw new IllegalArgumentException("acktree's real time runs on master local[N] alone, not on " + master);
        }
        SparkConf own = conf.clone();
        own.set("spark.network.crypto.enabled", "true");
        own.set("spark.network.crypto.saslFallback", "false");
        own.set("spark.network.crypto.authEngineVersion", "2");
        own.set("spark.network.crypto.cipher", "AES/GCM/NoPadding");
        transportConf = SparkTransportConf.fromSparkConf(
            own, "acktree", 1, SparkTransportConf.fromSparkConf$default$4(), SparkTransportConf.fromSparkConf$default$5());
        readerBytes = ((Integer) conf.get(
            org.apache.spark.internal.config.package$.MODULE$.STREAMING_SHUFFLE_READER_MAX_MEMORY())).longValue();
    }

    @Override
    public ShuffleHandle registerShuffle(int shuffleId, ShuffleDependency dependency) {
        return new Handle(shuffleId, dependency, dependency.rdd().getNumPartitions());
    }

    @Override
    public ShuffleWriter getWriter(
            ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
        int readers = ((BaseShuffleHandle) handle).dependency().partitioner().numPartitions();
        ErrorNotifier errors = new ErrorNotifier();
        Acks acks = new Acks();
        Door door = new Door(acks, handle.shuffleId(), readers, context, errors, transportConf);
        acks.writer = new Writer(handle, mapId, context, new scala.Some(door), errors);
        return acks.writer;
    }

    @Override
    public ShuffleReader getReader(
            ShuffleHandle handle, int startMap, int endMap, int start, int end, TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        return new Reader(handle, context, new Notes((Handle) handle, transportConf, readerBytes));
    }

    /** Readers need the number of writers, and in a task a dependency does not know its RDD. */
    static class Handle extends StreamingShuffleHandle {
        final int writers;

        Handle(int shuffleId, ShuffleDependency dependency, int writers) {
            super(shuffleId, dependency);
            this.writers = writers;
        }
    }

    static class Secret implements SecretKeyHolder {
        private static final String KEY = key();

        private static String key() {
            byte[] bytes = new byte[32];
            new SecureRandom().nextBytes(bytes);
            return Arrays.toString(bytes);
        }

        @Override
        public String getSaslUser(String application) {
            return "acktree";
        }

        @Override
        public String getSecretKey(String application) {
            return KEY;
        }
    }

    // ---- the writer's side ------------------------------------------------------------------------------------

    /**
     * Spark's writer, which sends what it holds as soon as a marker is behind it. Spark's own sends it when a timer says
     * so: one that waits for a millisecond takes 1.5 % of a core in each task, also where there is nothing to send.
     */
    static class Writer extends StreamingShuffleWriter {
        Writer(ShuffleHandle handle, long mapId, TaskContext context, scala.Option door, ErrorNotifier errors) {
            super(handle, mapId, context, door, errors);
        }

        @Override
        public void write(scala.collection.Iterator records) {
            super.write(new Sending(records, this));
        }
    }

    /** Spark asks for the next record when it has taken the last one, and waits there. */
    static class Sending extends scala.collection.AbstractIterator {
        static final int KIND = 2;  // a column, see frames.py
        static final int PUSH = 2;  // the kind of a row that follows a marker
        final scala.collection.Iterator records;
        final StreamingShuffleWriter writer;
        boolean isWhole;

        Sending(scala.collection.Iterator records, StreamingShuffleWriter writer) {
            this.records = records;
            this.writer = writer;
        }

        @Override
        public boolean hasNext() {
            if (isWhole) {
                isWhole = false;
                StreamingShuffleWriter.ShardState[] targets = writer.shards();
                for (int i = 0; i < targets.length; i++) {
                    targets[i].send();  // nothing, where it holds nothing
                }
            }
            return records.hasNext();
        }

        @Override
        public Object next() {
            Object record = records.next();
            isWhole = ((InternalRow) ((scala.Product2) record)._2()).getInt(KIND) == PUSH;
            return record;
        }
    }

    /** Tells the writer what a reader has read. The writer needs its handler, and the handler its writer. */
    static class Acks extends scala.runtime.AbstractFunction2 {
        volatile StreamingShuffleWriter writer;

        @Override
        public Object apply(Object reader, Object sequence) {
            writer.onTerminationAckReceived(((Integer) reader).intValue(), ((Long) sequence).longValue());
            return scala.runtime.BoxedUnit.UNIT;
        }
    }

    /** The handler of the writer's server. A connection's proof is kept with its channel. */
    static class Door extends StreamingShuffleServerHandler {
        final TransportConf transportConf;

        Door(scala.Function2 acks, int shuffleId, int readers, TaskContext context, ErrorNotifier errors,
                TransportConf transportConf) {
            super(acks, shuffleId, readers, context, errors);
            this.transportConf = transportConf;
        }

        @Override
        public void channelActive(TransportClient client) {
            Channel channel = client.getChannel();
            if (!((InetSocketAddress) channel.remoteAddress()).getAddress().isLoopbackAddress()) {
                channel.close();
                return;
            }
            AbstractAuthRpcHandler proof = (AbstractAuthRpcHandler)
                new AuthServerBootstrap(transportConf, new Secret()).doBootstrap(channel, new Inside(this));
            channel.attr(PROOF).set(proof);
            channel.pipeline().addFirst(new Unproven(proof));              // counts bytes
            channel.pipeline().addBefore("handler", null, new Unproven(proof));  // sees messages
            channel.eventLoop().schedule(new Closer(proof, channel), UNPROVEN_SECS, TimeUnit.SECONDS);
        }

        private static AbstractAuthRpcHandler proofOf(TransportClient client) {
            return (AbstractAuthRpcHandler) client.getChannel().attr(PROOF).get();
        }

        private static boolean isProven(TransportClient client) {
            AbstractAuthRpcHandler proof = proofOf(client);
            return proof != null && proof.isAuthenticated();
        }

        @Override
        public void receive(TransportClient client, ByteBuffer message, RpcResponseCallback callback) {
            if (proofOf(client) != null) {
                proofOf(client).receive(client, message, isProven(client) ? callback : new Silent(client, callback));
            }
        }

        void receiveProven(TransportClient client, ByteBuffer message, RpcResponseCallback callback) {
            super.receive(client, message, callback);
        }

        @Override
        public void exceptionCaught(Throwable cause, TransportClient client) {
            if (isProven(client)) {
                super.exceptionCaught(cause, client);
            } else {
                client.getChannel().close();
            }
        }
    }

    /** Where Spark's proof hands on what a proven connection sends. */
    static class Inside extends RpcHandler {
        final Door door;

        Inside(Door door) {
            this.door = door;
        }

        @Override
        public void receive(TransportClient client, ByteBuffer message, RpcResponseCallback callback) {
            door.receiveProven(client, message, callback);
        }

        @Override
        public StreamManager getStreamManager() {
            return null;
        }
    }

    /** Closes a connection that sends much, or anything but a proof, before it has proven the secret. */
    static class Unproven extends ChannelInboundHandlerAdapter {
        final AbstractAuthRpcHandler proof;
        long bytes;

        Unproven(AbstractAuthRpcHandler proof) {
            this.proof = proof;
        }

        private boolean isProof(Object message) {
            if (message instanceof ByteBuf) {
                bytes += ((ByteBuf) message).readableBytes();
                return bytes <= UNPROVEN_BYTES;
            }
            return message instanceof RpcRequest;
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) throws Exception {
            if (proof.isAuthenticated() || isProof(message)) {
                super.channelRead(context, message);
            } else {
                ReferenceCountUtil.release(message);
                context.close();
            }
        }
    }

    /** Closes a connection that has proven nothing in time. */
    static class Closer implements Runnable {
        final AbstractAuthRpcHandler proof;
        final Channel channel;

        Closer(AbstractAuthRpcHandler proof, Channel channel) {
            this.proof = proof;
            this.channel = channel;
        }

        @Override
        public void run() {
            if (!proof.isAuthenticated()) {
                channel.close();
            }
        }
    }

    /** Answers a proof; a failed one by nothing, where Spark would send its stack trace. */
    static class Silent implements RpcResponseCallback {
        final TransportClient client;
        final RpcResponseCallback callback;

        Silent(TransportClient client, RpcResponseCallback callback) {
            this.client = client;
            this.callback = callback;
        }

        @Override
        public void onSuccess(ByteBuffer response) {
            callback.onSuccess(response);
        }

        @Override
        public void onFailure(Throwable error) {
            client.getChannel().close();
        }
    }

    // ---- the reader's side ------------------------------------------------------------------------------------

    /** What a reader needs. Threads of its superclass call createClient before a field of Reader could be set. */
    static class Notes extends ErrorNotifier {
        final Handle handle;
        final TransportConf transportConf;
        final long readerBytes;
        final LinkedBlockingQueue queue = new Patient();

        Notes(Handle handle, TransportConf transportConf, long readerBytes) {
            this.handle = handle;
            this.transportConf = transportConf;
            this.readerBytes = readerBytes;
        }
    }

    /** What a reader has received. Spark looks every 10 ms whether its task has failed, which takes 0.3 % of a core. */
    static class Patient extends LinkedBlockingQueue {
        static final long LOOK_MS = 200;

        @Override
        public Object poll(long timeout, TimeUnit unit) throws InterruptedException {
            return super.poll(Math.max(unit.toMillis(timeout), LOOK_MS), TimeUnit.MILLISECONDS);
        }
    }

    static class Reader extends StreamingShuffleReader {
        Reader(ShuffleHandle handle, TaskContext context, Notes notes) {
            super(handle, context, scala.Option.apply(null), notes);
        }

        @Override
        public LinkedBlockingQueue messageQueue() {
            return ((Notes) errorNotifier()).queue;
        }

        /** Spark's, with a proof. The writer is in this JVM, whatever host it names. */
        @Override
        public TransportClient createClient(int writer, String host, int port) {
            Notes notes = (Notes) errorNotifier();
            Proven handler = new Proven(
                writer, context().partitionId(), messageQueue(), notes.handle.shuffleId(),
                Math.max(notes.readerBytes / notes.handle.writers, 1), context(), notes);
            handler.setOnTermAckResponseHandler(new Sent(this));
            TransportContext transport = new TransportContext(notes.transportConf, handler);
            TransportClientFactory factory = transport.createClientFactory(Arrays.asList(new TransportClientBootstrap[] {
                new AuthClientBootstrap(notes.transportConf, "acktree", new Secret()), handler}));
            context().addTaskCompletionListener((TaskCompletionListener) new End(factory, transport));
            try {
                return factory.createClient("127.0.0.1", port);
            } catch (Exception error) {
                throw new RuntimeException("no connection to writer " + writer + " at port " + port, error);
            }
        }
    }

    /** Spark's handler, which asks for rows as soon as it is connected. Here: as soon as both sides are proven. */
    static class Proven extends StreamingShuffleClientHandler implements TransportClientBootstrap {
        private volatile boolean isProven;

        Proven(int writer, int reader, LinkedBlockingQueue queue, int shuffleId, long mostBytes, TaskContext context,
                ErrorNotifier errors) {
            super(writer, reader, queue, shuffleId, mostBytes, context, errors);
        }

        @Override
        public void doBootstrap(TransportClient client, Channel channel) {
            isProven = true;
            super.channelActive(client);
        }

        @Override
        public void channelActive(TransportClient client) {
        }

        @Override
        public void receive(TransportClient client, ByteBuffer message, RpcResponseCallback callback) {
            if (isProven) {
                super.receive(client, message, callback);
            } else {
                client.getChannel().close();
            }
        }

        @Override
        public void channelInactive(TransportClient client) {
            if (isProven) {
                super.channelInactive(client);
            }
        }

        @Override
        public void exceptionCaught(Throwable cause, TransportClient client) {
            if (isProven) {
                super.exceptionCaught(cause, client);
            }
        }
    }

    static class Sent extends scala.runtime.AbstractFunction1 {
        final StreamingShuffleReader reader;

        Sent(StreamingShuffleReader reader) {
            this.reader = reader;
        }

        @Override
        public Object apply(Object writer) {
            reader.onTermAckResponse(((Integer) writer).intValue());
            return scala.runtime.BoxedUnit.UNIT;
        }
    }

    /** Closes what a reader's connection used when its task ends. */
    static class End implements TaskCompletionListener {
        final TransportClientFactory factory;
        final TransportContext transport;

        End(TransportClientFactory factory, TransportContext transport) {
            this.factory = factory;
            this.transport = transport;
        }

        @Override
        public void onTaskCompletion(TaskContext context) {
            factory.close();
            transport.close();
        }
    }
}
