"""What the tests of real time run, in one JVM: ``python -m tests.spark.realtime_driver FOLDER``.

Writes what happened to FOLDER/outcome.json. It needs a network of its own: loopback with a second address.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from acktree import BasicBolt, Config, KeyValueState, Topology, TopologyBuilder, bolt, submit
from acktree.checkpoint.logs.commit_log import Commit, CommitLog, Outcome
from acktree.checkpoint.logs.memory_log import MemoryLog
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.slices import Slice
from acktree.driver.batch import rows_by_kind
from acktree.driver.handle import SubmittedTopology
from acktree.errors import ConfigError
from acktree.spark.query.operators import Places
from acktree.spark.realtime.connections import ConnectionLostError
from acktree.spark.realtime.query import ResidentQuery
from acktree.spark.realtime.session import start_realtime_session, take_slots
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.combiner import combined
from acktree.testing import FeederSpout, LocalCluster
from acktree.testing.local_levels import LocalLevels
from tests.spark import test_exactly_once as exactly_once

PARTITIONS = 2


@bolt(outputs=["word"])
def split(tup):
    if tup["line"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    for word in tup["line"].split():
        yield [word]


class Count(BasicBolt):
    """Counts words in its memory. Each third "moon" fails its message, so a verdict shows the count."""

    outputs = ["word", "count"]
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = KeyValueState()

    def execute(self, tup, collector):
        word = tup["word"]
        self.counts[word] = count = self.counts.get(word, 0) + 1
        if word == "moon" and count % 3 == 0:
            raise ValueError(f"moon number {count}")
        collector.emit([word, count])


@bolt()
def show(tup):
    pass


def word_count() -> tuple[Topology, FeederSpout]:
    lines = FeederSpout(["line"])
    builder = TopologyBuilder("words")
    builder.set_spout("lines", lines)
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", ["word"])
    builder.set_bolt("show", show).global_grouping("count")
    return builder.create_topology(), lines


class OverSpark(LocalLevels):
    """The levels of a ``LocalCluster``, run by a resident query; it writes commits, as the sink does."""

    query: ResidentQuery
    commits: CommitLog

    def run(self, chunks, clock_ms, batch_id=None):
        rows = []
        for row in self._rows_of(chunks, clock_ms):
            if row.kind == Kind.CHUNK:  # a worker has no inbox here: the row carries the messages
                part = Slice.of_head(row.head)
                whole = {str(number): chunk for number, chunk in chunks}[part.chunk]
                body = whole.slice(part.first, part.end).to_bytes()
                row = part.row(row.partition, row.source, row.sequence, clock_ms, body)  # noqa: PLW2901
            rows.append(row)
        with suppress(ConnectionLostError):  # it is cut, and sent when the query starts again
            self.query.send(rows)
        return combined(self._plan, self.commit())

    def commit(self) -> list[WireRow]:
        """Wait for the epoch, starting the query again where it fails."""
        while True:
            try:
                number, rows = self.query.take()
                break
            except ConnectionLostError:
                self.query.start()
        self.commits.write(Commit(number, 0, -1), Outcome(rows_by_kind(rows)))
        self.query.committed(number)
        return [row for row in rows if row.kind != Kind.MEMORY]


def line_of(n: int) -> str:
    return "the cow jumped over the moon" if n % 2 else f"a line with number {n}"


class Cluster:
    """The word count in a ``LocalCluster``; its levels run in a resident query, if one is made."""

    def __init__(
        self, make: type[ResidentQuery] | None = None, folder: Path | None = None, session: Any = None
    ):
        topology, self.lines = word_count()
        self.cluster = LocalCluster()
        self.running = self.cluster.submit(topology, config=Config(partitions=PARTITIONS, run_salt=7))
        self.query: ResidentQuery | None = None
        if make is not None:
            assert folder is not None
            plan, levels = self.running.plan, self.running._levels
            shared = SharedPlan.write(plan, folder / "plan")
            places = Places("", str(folder), None, state=str(folder / "state"))
            levels.__class__ = OverSpark
            self.query = levels.query = make(session, plan, shared, places, -1)
            levels.commits = CommitLog(folder, [MemoryLog(folder / "state", 0)])
            levels.commits.recover(-1)

    def feed(self, numbers, *, together: bool) -> None:
        for n in numbers:
            self.lines.feed([line_of(n)], message_id=n)
            if not together:
                self.cluster.advance(secs=0)
        self.cluster.advance(secs=0)

    def verdicts(self) -> dict[str, Any]:
        failed = [(message_id, failure.reason) for message_id, failure in self.lines.failed]
        return {"acked": self.lines.acked[:], "failed": failed}


# ---- ports ------------------------------------------------------------------------------------------------


def listeners() -> dict[int, str]:
    """{port: address} of all sockets that listen here, the address in the kernel's hexadecimal."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].rsplit(":", 1)
                found[int(port, 16)] = address
    return found


class Watcher(Thread):
    """Notes each port on which somebody begins to listen, for however short a time."""

    def __init__(self, known: set[int]):
        super().__init__(daemon=True)
        self.known, self.ports, self.is_over = known, set[int](), False

    def run(self) -> None:
        while not self.is_over:
            self.ports |= listeners().keys() - self.known
            time.sleep(0.0005)


# ---- what is tried ----------------------------------------------------------------------------------------


def workers_of(pid: int) -> Iterator[int]:
    """The Python workers below a process: the children of Spark's daemons."""
    for child in children(pid):
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"-m\0acktree.spark.worker.daemon" in command:  # the JVM's command names it, too
            yield from children(child)
        else:
            yield from workers_of(child)


def kill_workers(pid: int) -> None:
    for worker in workers_of(pid):
        os.kill(worker, signal.SIGKILL)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def resident(folder: Path) -> Iterator[tuple[str, Any]]:
    """A resident query; yields (name, outcome)."""
    session = start_realtime_session("real time", 6)
    yield "too few slots", refusal(lambda: take_slots(session, "too many levels", 4, PARTITIONS))
    model, real = Cluster(), Cluster(ResidentQuery, folder, session)
    assert real.query is not None
    watcher = Watcher(set(listeners()))  # the driver's own is known
    watcher.start()
    real.query.start()

    def both(first: int, *, together: bool) -> dict[str, Any]:
        for cluster in (model, real):
            cluster.feed(range(first, first + 20), together=together)
        return {"model": model.verdicts(), "real": real.verdicts()}

    yield "one by one", both(0, together=False)
    yield "together", both(100, together=True)
    real.query.end_batch()
    yield "in the next batch", both(500, together=False)
    kill_workers(os.getpid())
    began = time.monotonic()
    yield "after a death", both(600, together=False)
    yield "seconds after a death", time.monotonic() - began
    before = [*workers_of(os.getpid())]
    os.kill(before[0], signal.SIGKILL)
    yield "after the death of one", both(700, together=False)
    yield "workers", {"before": before, "after": [*workers_of(os.getpid())]}
    watcher.is_over = True
    yield "ports", {"new": sorted(watcher.ports), "known": len(watcher.known)}
    real.query.stop()
    session.stop()


def settled(lines: FeederSpout) -> list[Any]:
    return sorted([*lines.acked, *(message_id for message_id, _ in lines.failed)])


def await_verdicts(running: SubmittedTopology, lines: FeederSpout, numbers: Iterable[int]) -> None:
    while not set(numbers) <= set(settled(lines)):
        assert running.is_running, running.await_termination(0)
        time.sleep(0.01)


def submitted(folder: Path) -> Iterator[tuple[str, Any]]:
    """Three runs on one checkpoint, the second one by micro-batches; in the third one workers die."""
    model = Cluster()
    for number, real_time in enumerate([True, False, True]):
        topology, lines = word_count()
        config = Config(partitions=PARTITIONS, real_time=real_time)
        with submit(topology, checkpoint=folder / "checkpoint", config=config) as running:
            first = 1000 + 20 * number
            for n in range(first, first + 20):
                lines.feed([line_of(n)], message_id=n)
            await_verdicts(running, lines, range(first, first + 20))
            if number == 2:
                kill_workers(os.getpid())
                lines.feed(["after a death"], message_id=1)
                await_verdicts(running, lines, [1])
                lines.feed(["kill"], message_id=2)
                lines.feed(["beside a killer"], message_id=3)
                await_verdicts(running, lines, [2, 3])
        model.feed(range(first, first + 20), together=True)
        failed = [(message_id, failure.reason) for message_id, failure in lines.failed]
        yield f"run {number}", {"acked": lines.acked[:], "failed": failed}
    yield "all runs", model.verdicts()


def run_exactly_once(folder: Path) -> None:
    """The topology of the exactly-once tests to its end: gates, a bolt behind one, a sink."""
    config = Config(partitions=PARTITIONS, real_time=True, max_spout_pending=4)
    topology = exactly_once.topology(folder)
    with submit(topology, checkpoint=folder / "checkpoint", config=config) as running:
        assert running.await_termination(timeout_secs=200), running.stats().table()


def rows_written(folder: Path) -> int:
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(folder / "words.db")) as database:
        return database.execute("SELECT count(*) FROM words").fetchone()[0]
    return 0


def await_rows(folder: Path, driver: subprocess.Popen[bytes], count: int) -> None:
    while rows_written(folder) < count and driver.poll() is None:
        time.sleep(0.005)


def killed(folder: Path) -> Iterator[tuple[str, Any]]:
    """The workers of a run are killed, then its driver; the next driver goes on to the end."""
    place = folder / "killed"
    place.mkdir()
    command = [sys.executable, "-m", "tests.spark.realtime_driver", str(place), "exactly once"]
    with (place / "log").open("w") as log:
        first = subprocess.Popen(command, stderr=log)
    await_rows(place, first, 8)
    kill_workers(first.pid)
    await_rows(place, first, rows_written(place) + 8)
    first.kill()
    again = (place / "log").read_text().count("the query of real time failed and starts again")
    yield "the driver died at", [first.wait(), again, rows_written(place)]
    subprocess.run(command, check=True)
    exactly_once.check(place)
    yield "killed", "each message was counted and written once"


def refusal(call: Callable[[], None]) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if sys.argv[2:]:
        run_exactly_once(place)
        sys.exit()
    outcome = {name: what for part in (resident, submitted, killed) for name, what in part(place)}
    (place / "outcome.json").write_text(json.dumps(outcome))
