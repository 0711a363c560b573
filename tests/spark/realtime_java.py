"""Our Java classes in a JVM without Spark's session: ``python -m tests.spark.realtime_java FOLDER``.

Janino's own main compiles and runs them, each with a class of this file behind it. It writes
FOLDER/outcome.json, and needs a network of its own: loopback with a second address.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from acktree.spark.realtime import session
from acktree.spark.realtime.connections import END, FRAME, FRAME_TYPE, Connections
from tests.services.kafka import java, pyspark_jars
from tests.spark.realtime_driver import KNOCKS, OTHER_ADDRESS, knock

DOOR = """
/** A writer's server without a writer: prints its port, then answers each line. */
public class DoorMain {
    public static void main(String[] args) throws Exception {
        ClosedShuffle manager = new ClosedShuffle(new SparkConf(false).set("spark.master", "local[2]"), true);
        ErrorNotifier errors = new ErrorNotifier();
        ClosedShuffle.Door door =
            new ClosedShuffle.Door(new ClosedShuffle.Acks(), 0, 2, null, errors, manager.transportConf);
        org.apache.spark.network.server.TransportServer server =
            new TransportContext(manager.transportConf, door).createServer();
        System.out.println(server.getPort());
        java.io.BufferedReader in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.equals("connect")) {
                TransportClientBootstrap proof =
                    new AuthClientBootstrap(manager.transportConf, "acktree", new ClosedShuffle.Secret());
                TransportContext transport = new TransportContext(
                    manager.transportConf, new org.apache.spark.network.server.NoOpRpcHandler());
                TransportClient client = transport
                    .createClientFactory(Arrays.asList(new TransportClientBootstrap[] {proof}))
                    .createClient("127.0.0.1", server.getPort());
                System.out.println(client.isActive());
            } else {
                System.out.println(errors.getError().isDefined());
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


def strangers(folder: Path) -> dict[str, Any]:
    """What becomes of connections to a writer's port."""
    with program(folder, "ClosedShuffle.java", DOOR) as door:
        port = int(door.line())
        before = door.ask("connect")
        closed: list[list[str]] = []

        def try_it(kind: str, address: str) -> list[Any]:
            how = knock(port, kind, address)
            closed.append([kind, address])
            return [kind, address, *how]

        doors = [(kind, address) for kind in KNOCKS for address in ("127.0.0.1", OTHER_ADDRESS)]
        with ThreadPoolExecutor(len(doors)) as pool:
            knocks = list(pool.map(try_it, *zip(*doors, strict=True)))
        found = {"readers": [before, door.ask("connect")], "failed": door.ask("errors")}
        return {**found, "knocks": knocks, "last": closed[-1]}


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
        rows += [reader.ask("next") for _ in range(count)]
    connections.close()
    return {"sent while it waits": waiting, "rows": rows, "all": [f"0 7 1 {n} {size}" for n in range(count)]}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = {"strangers": strangers(place), "pressure": pressure(place)}
    (place / "outcome.json").write_text(json.dumps(found))
