"""Our Java classes in a JVM without Spark's session: ``python -m tests.spark.realtime_java FOLDER``.

Janino's own main compiles and runs them, each with a class of this file behind it. It writes
FOLDER/outcome.json, and needs a network of its own: loopback alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from acktree.spark.realtime import session
from acktree.spark.realtime.connections import END, FRAME, FRAME_TYPE, Connections
from tests.services.kafka import java, pyspark_jars
from tests.spark.realtime_driver import listeners

SHUFFLE = """
/** A queue of the shuffle for two writers, and its reader. */
public class ShuffleMain {
    static UnsafeRow row(int sender, int kind, long epoch, int size) {
        StructType schema = StructType.fromDDL("target INT, sender INT, kind INT, epoch BIGINT, body BINARY");
        Object[] values = {Integer.valueOf(0), Integer.valueOf(sender), Integer.valueOf(kind),
            Long.valueOf(epoch), new byte[size]};
        return UnsafeProjection.create(schema).apply(new GenericInternalRow(values)).copy();
    }

    static class Sender extends Thread {
        final ClosedShuffle.Queue queue;
        final int count;
        final int size;
        volatile int sent;

        Sender(ClosedShuffle.Queue queue, int count, int size) {
            this.queue = queue;
            this.count = count;
            this.size = size;
            setDaemon(true);
        }

        public void run() {
            try {
                for (; sent < count; sent++) {
                    queue.put(row(0, 0, sent, size), null);
                }
            } catch (InterruptedException error) {
                throw new RuntimeException(error);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        ClosedShuffle.Queue queue = ClosedShuffle.queuesOf(1, 2)[0];
        ClosedShuffle.Rows rows = new ClosedShuffle.Rows(queue, null);
        Sender flood = null;
        java.io.BufferedReader in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("put")) {
                int sender = Integer.parseInt(words[1]);
                queue.put(row(sender, Integer.parseInt(words[2]), Long.parseLong(words[3]), 9), null);
                System.out.println("put");
            } else if (words[0].equals("manager")) {
                SparkConf conf = new SparkConf(false).set("spark.master", "local[2]");
                System.out.println(new ClosedShuffle(conf, true));
            } else if (words[0].equals("end")) {
                queue.end();
                System.out.println("end");
            } else if (words[0].equals("close")) {
                queue.close();
                System.out.println("closed");
            } else if (words[0].equals("flood")) {
                flood = new Sender(queue, Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                flood.start();
                System.out.println("flooded");
            } else if (words[0].equals("sent")) {
                flood.join(Long.parseLong(words[1]));
                System.out.println(flood.sent);
            } else if (rows.hasNext()) {
                UnsafeRow row = (UnsafeRow) ((scala.Product2) rows.next())._2();
                System.out.println(row.getInt(1) + " " + row.getInt(2) + " " + row.getLong(3));
            } else {
                System.out.println("over");
            }
        }
        System.exit(0);
    }
}
"""

READER = """
/** A reader of the source: prints the size of a row's body for each line that comes, and "end" at the end. */
public class ReaderMain {
    public static void main(String[] args) throws Exception {
        java.util.HashMap options = new java.util.HashMap();
        options.put("host", args[0]);
        options.put("port", args[1]);
        options.put("token", args[2]);
        options.put("incarnation", args[3]);
        options.put("partitions", "1");
        FrameSource.Frames frames = new FrameSource.Frames(new CaseInsensitiveStringMap(options));
        InputPartition part = frames.planInputPartitions(frames.initialOffset())[0];
        FrameSource.FrameReader reader =
            (FrameSource.FrameReader) new FrameSource.Readers().createReader(part);
        java.io.BufferedReader in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (reader.nextWithTimeout(Long.valueOf(0), Long.valueOf(1)).hasRecord()) {
                InternalRow row = (InternalRow) reader.get();
                if (row.getInt(2) == FrameSource.PUSH) {
                    System.out.println("push");
                    continue;
                }
                System.out.println(row.getInt(0) + " " + row.getInt(1) + " " + row.getInt(2) + " "
                    + row.getLong(3) + " " + row.getBinary(4).length);
            } else {
                System.out.println("end " + ((FrameSource.Batches) reader.getOffset()).json());
            }
        }
        reader.close();
        System.exit(0);
    }
}
"""


class Program:
    """A running Java program that answers a line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.line()


@contextmanager
def program(folder: Path, source: str, main: str, *args: object) -> Iterator[Program]:
    """Compile one of our sources with a main class behind it, and run that."""
    name = main.partition("public class ")[2].split()[0]
    file = folder / f"{name}.java"
    file.write_text((session._SOURCES / source).read_text() + main)
    command = [java(), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-cp", f"{pyspark_jars()}/*"]
    command += ["org.codehaus.janino.SimpleCompiler", str(file), f"acktree.realtime.{name}", *map(str, args)]
    with (folder / f"{name}.log").open("w") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
            yield Program(process)


EPOCHS = ["1 1 7", "0 1 7", "1 0 8", "1 1 8", "1 1 9", "0 0 8", "0 1 8", "0 0 9", "0 0 9", "0 1 9", "0 1 10"]
"""What two writers write, in the order of arrival: sender, kind and epoch. The last epoch is not whole."""


def epochs(folder: Path) -> dict[str, Any]:
    """What a reader of the shuffle is given of some epochs, until all writers have ended."""
    with program(folder, "ClosedShuffle.java", SHUFFLE) as shuffle:
        shuffle.ask("manager")
        for row in EPOCHS:
            shuffle.ask(f"put {row}")
        shuffle.ask("end")
        shuffle.ask("end")
        given = [shuffle.ask("next")]
        while given[-1] != "over":
            given.append(shuffle.ask("next"))
        return {"given": given, "ports": [*listeners()]}


def flood(folder: Path) -> dict[str, Any]:
    """A writer of more than the shuffle holds, whose reader reads, and one whose reader ends."""
    count, size = 96, 1 << 20
    found: dict[str, Any] = {"bytes": count * size}
    for how in ("read", "close"):
        with program(folder, "ClosedShuffle.java", SHUFFLE) as shuffle:
            shuffle.ask(f"flood {count} {size}")
            last, waiting = -1, 0
            while last != waiting:  # until it rests
                last, waiting = waiting, int(shuffle.ask("sent 1000"))
            found[f"sent before {how}"] = waiting * size
            if how == "read":
                found["rows"] = [shuffle.ask("next") for _ in range(count)]
            else:
                shuffle.ask("close")
            found[f"sent after {how}"] = int(shuffle.ask("sent 60000")) * size
    return found


def pressure(folder: Path) -> dict[str, Any]:
    """Send rows to a reader that takes one, and then the others."""
    count, size = 64, 1 << 20
    connections = Connections(1, lambda *_: None)
    sent = [0]

    def send() -> None:
        for epoch in range(count):
            connections.send(0, FRAME.pack(FRAME_TYPE, size, 0, 7, 1, epoch) + bytes(size))
            sent[0] += 1
        connections.send(0, END)

    with program(folder, "FrameSource.java", READER, *connections.begin()) as reader:
        assert connections.await_readers(60)
        sender = Thread(target=send, daemon=True)
        sender.start()
        rows, last = [reader.ask("next")], -1
        while last != sent[0] and sender.is_alive():  # until it rests
            last = sent[0]
            sender.join(1)
        waiting = sent[0]
        while rows[-1] != "end 1":
            rows.append(reader.ask("next"))
    connections.close()
    every = [f"0 7 1 {epoch} {size}" for epoch in range(count)]
    return {"sent while it waits": waiting, "rows": rows, "all": every}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = {"epochs": epochs(place), "flood": flood(place), "pressure": pressure(place)}
    (place / "outcome.json").write_text(json.dumps(found))
