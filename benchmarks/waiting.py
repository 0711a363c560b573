"""Work that waits: calls of a service that answers after some time.

    python -m benchmarks waiting --kind async              # beside a plain asyncio program, same server
    python -m benchmarks waiting --celery --rounds 5       # and beside Celery with RabbitMQ, in turn
    python -m benchmarks waiting --kind threads --calls 1000
    python -m benchmarks waiting --calls 1000 --faults     # 1 % raise, 1 % hang, a worker is killed
    python -m benchmarks waiting --slow 8 --calls 200       # one call takes 8 s longer than the others
    python -m benchmarks waiting --kind plain --calls 160 --parallelism 8 --grouping fields

The service is a separate process on loopback: it reads a line and answers it after ``--ms``. A run of
acktree is timed from the first ``next_tuple``, when the topology is warm, to the last verdict. The plain
program has ``--at-once`` workers with a connection each, like a bolt's task; it does not track. Celery has
as many worker processes as the bolt has tasks, and acks each call after the work; it is timed from the first
call that is sent to the last that is executed. With ``--rounds`` they run in turn in one session, and shares
are medians of the rounds. One line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final

from acktree import BasicBolt, Config, EndOfStream, Spout, TopologyBuilder, submit
from acktree.bolt import BasicOutputCollector
from acktree.core.data.context import TaskContext
from acktree.core.data.tuples import Tuple
from acktree.core.tracking.verdicts import Failure
from acktree.spout import SpoutOutputCollector
from benchmarks import machine
from benchmarks.peers.celery_calls import VERSIONS, celery
from benchmarks.report import Report, add_keep_argument, print_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: Final = ("async", "threads", "plain")
_PERCENT: Final = 100
_RAISES, _HANGS = 1, 2
"""With faults, calls raise or hang if their number has this remainder modulo a hundred."""
_FAULT_TIMEOUT_SECS: Final = 0.5


class Calls(Spout):
    """Emits all numbers at once; the verdicts and their times go to ``verdicts``."""

    outputs = ["number"]

    def __init__(self, count: int, verdicts: Verdicts) -> None:
        self.count, self.verdicts, self.emitted = count, verdicts, 0

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        self.verdicts.begin()
        if self.emitted < self.count:
            for _ in range(min(_PERCENT, self.count - self.emitted)):
                self.collector.emit([self.emitted], message_id=self.emitted)
                self.emitted += 1
        elif len(self.verdicts.secs) == self.count:
            self.verdicts.end()
            raise EndOfStream

    def ack(self, message_id: Any) -> None:  # noqa: ANN401  # any hashable
        self.verdicts.note(message_id, "ACKED")

    def fail(self, message_id: Any, failure: Failure) -> None:  # noqa: ANN401
        self.verdicts.note(message_id, str(failure.cause))


class Verdicts:
    """The verdict of each call, and its time in seconds since the first ``next_tuple``."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.clock, self.cpu_secs = machine.Clock(), 0.0
        self.secs: dict[int, float] = {}
        self.of: dict[int, str] = {}

    def __deepcopy__(self, memo: Mapping[int, object]) -> Verdicts:
        """The spout's task works on a copy of the spout, and on this very object."""
        return self

    def begin(self) -> None:
        """The first call of ``next_tuple``."""
        if self.began is None:
            self.clock, self.began = machine.Clock(), perf_counter()

    def end(self) -> None:
        """The last verdict has come."""
        self.cpu_secs = self.cpu_secs or self.clock.cost().ours

    def note(self, number: int, what: str) -> None:
        """The verdict of a call."""
        assert self.began is not None, "verdicts come after next_tuple"
        assert number not in self.of, "one verdict a message"
        self.secs[number], self.of[number] = perf_counter() - self.began, what


class _Faults:
    """The faults of some calls."""

    def __init__(self, flag: str | None, slow_secs: float) -> None:
        self.flag, self.slow_secs = flag, slow_secs

    def strike(self, number: int) -> float:
        """Raise, kill the worker once, or return the seconds to hang."""
        if number == _PERCENT // 2:
            if self.flag is not None and not Path(self.flag).exists():
                Path(self.flag).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return self.slow_secs
        if self.flag is not None and number % _PERCENT == _RAISES:
            raise ValueError(number)
        return 3600.0 if self.flag is not None and number % _PERCENT == _HANGS else 0.0


class AsyncCalls(BasicBolt):
    """Calls the service from coroutines; connections are kept for the next call and micro-batch."""

    def __init__(self, port: int, at_once: int, faults: _Faults) -> None:
        self.port, self.max_concurrency, self.faults = port, at_once, faults

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.pool = context.cached("pool", lambda: Connections(self.port))

    async def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        await self.pool.call(tup["number"])
        await asyncio.sleep(self.faults.strike(tup["number"]))


class BlockingCalls(BasicBolt):
    """Calls the service from threads, or one after another."""

    def __init__(self, port: int, at_once: int | None, faults: _Faults) -> None:
        self.port, self.threads, self.faults = port, at_once, faults

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.mine = context.cached("connections", threading.local)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if not hasattr(self.mine, "file"):
            self.mine.file = socket.create_connection(("127.0.0.1", self.port)).makefile("rwb")
        self.mine.file.write(b"%d\n" % tup["number"])
        self.mine.file.flush()
        assert int(self.mine.file.readline()) == tup["number"]
        sleep(self.faults.strike(tup["number"]))


class Connections:
    """Idle connections to the service, on one loop."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, number: int) -> None:
        """One call and its answer."""
        reader, writer = (
            self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        )
        writer.write(b"%d\n" % number)
        assert int(await reader.readline()) == number
        self.idle.append((reader, writer))


def _serve(ms: float, parent: Connection) -> None:
    """The service's process."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await asyncio.sleep(ms / 1000)
            writer.write(line)

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        parent.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def service(ms: float) -> Iterator[int]:
    """A service that answers after this number of milliseconds; yields its port."""
    mine, its = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(ms, its), daemon=True)
    process.start()
    try:
        yield mine.recv()
    finally:
        process.terminate()
        process.join()


def plainly(port: int, calls: int, at_once: int) -> float:
    """Seconds of a plain asyncio program for the same calls."""

    async def work(pool: Connections, numbers: Iterator[int]) -> None:
        for number in numbers:
            await pool.call(number)

    async def run() -> float:
        pool, numbers = Connections(port), iter(range(calls))
        began = perf_counter()
        await asyncio.gather(*(work(pool, numbers) for _ in range(at_once)))
        return perf_counter() - began

    return asyncio.run(run())


def tracked(port: int, given: argparse.Namespace, folder: Path, session: SparkSession) -> Verdicts:
    """The same calls in a topology."""
    faults = _Faults(str(folder / "killed") if given.faults else None, given.slow)
    each = max(1, given.at_once // given.parallelism)
    bolt: BasicBolt = AsyncCalls(port, each, faults)
    if given.kind != "async":
        bolt = BlockingCalls(port, each if given.kind == "threads" else None, faults)
    verdicts = Verdicts()
    builder = TopologyBuilder("waiting")
    builder.set_spout("calls", Calls(given.calls, verdicts))
    declared = builder.set_bolt("service", bolt, parallelism=given.parallelism)
    if given.faults or given.timeout_secs:
        declared.set_execute_timeout_secs(given.timeout_secs or _FAULT_TIMEOUT_SECS)
    if given.grouping == "fields":
        declared.fields_grouping("calls", ["number"])
    else:
        declared.shuffle_grouping("calls")
    with submit(builder.create_topology(), checkpoint=folder / "checkpoint", spark=session) as running:
        running.await_termination(600)
    return verdicts


@dataclass(frozen=True)
class Round:
    """The verdicts of the topology, and for each system seconds, and CPU seconds of all processes."""

    verdicts: Verdicts
    secs: Mapping[str, float]
    cpu_secs: Mapping[str, float]


def rounds(port: int, given: argparse.Namespace) -> Iterator[Round]:
    """Run each in turn."""
    from benchmarks.sessions import session_on  # noqa: PLC0415  # so that --help does not wait for Spark

    others: dict[str, Callable[[], float]] = {}
    if given.kind == "async" and not (given.faults or given.slow):
        others["plain"] = lambda: plainly(port, given.calls, given.at_once)
    with ExitStack() as opened:
        if given.celery:
            peer = opened.enter_context(celery(port, given.at_once, given.parallelism))
            others["celery"] = lambda: peer.run("call", given.calls)
        session = session_on(given.master)
        opened.callback(session.stop)
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as folder:
                verdicts = tracked(port, given, Path(folder), session)
            secs, cpu_secs = {"acktree": max(verdicts.secs.values())}, {"acktree": verdicts.cpu_secs}
            for name, other in others.items():
                clock = machine.Clock()
                secs[name] = other()
                cpu_secs[name] = clock.cost().ours
            measured = {name: f"{each:.2f} s, CPU {cpu_secs[name]:.2f} s" for name, each in secs.items()}
            print(f"  {measured}", file=sys.stderr, flush=True)
            yield Round(verdicts, secs, cpu_secs)


def found(each: Sequence[Round], calls: int) -> dict[str, Any]:
    """The numbers of the round with the median time, and by round what is compared."""
    ordered = sorted(each, key=lambda one: one.secs["acktree"])
    numbers = _numbers(ordered[(len(ordered) - 1) // 2].verdicts, calls)
    numbers["secs_by_round"] = {name: [round(one.secs[name], 2) for one in each] for name in each[0].secs}
    numbers["cpu_ms_per_call"] = {
        name: round(statistics.median(one.cpu_secs[name] for one in each) / calls * 1000, 3)
        for name in each[0].secs
    }
    for name in each[0].secs.keys() - {"acktree"}:
        shares = [one.secs[name] / one.secs["acktree"] for one in each]
        numbers[f"share_of_{name}"] = round(statistics.median(shares), 2)
        numbers[f"shares_of_{name}"] = [round(share, 2) for share in shares]
    return numbers


def _numbers(verdicts: Verdicts, calls: int) -> dict[str, Any]:
    times = sorted(verdicts.secs.values())
    return {
        "secs": round(times[-1], 2),
        "calls_per_sec": round(calls / times[-1]),
        "median_verdict_secs": round(times[len(times) // 2], 2),
        "verdicts": dict(Counter(verdicts.of.values())),
        "wrong": sorted(number for number, what in verdicts.of.items() if what != _right(number, verdicts))[
            :10
        ],
    }


def _right(number: int, verdicts: Verdicts) -> str:
    """What the verdict of a call must be, if there were faults at all."""
    has_faults = any(what == "EXCEPTION" for what in verdicts.of.values())
    wanted = {_RAISES: "EXCEPTION", _HANGS: "HUNG"}.get(number % _PERCENT, "ACKED")
    return wanted if has_faults else verdicts.of[number]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks waiting", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="async", help="how the bolt calls the service")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--ms", type=float, default=100, help="after how long the service answers")
    parser.add_argument("--at-once", type=int, default=100, help="calls at once, of all tasks")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--grouping", choices=("shuffle", "fields"), default="shuffle")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--faults", action="store_true", help="1 %% raise, 1 %% hang, a worker is killed")
    parser.add_argument("--slow", type=float, default=0, help="seconds that one call takes longer")
    parser.add_argument("--timeout-secs", type=float, help="the bolt's execute timeout")
    parser.add_argument("--celery", action="store_true", help="also in Celery, with a RabbitMQ of its own")
    parser.add_argument("--rounds", type=int, default=1, help="how often each runs, in turn")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    names = (
        "kind",
        "calls",
        "ms",
        "at_once",
        "parallelism",
        "grouping",
        "faults",
        "slow",
        "timeout_secs",
        "rounds",
    )
    report = Report("waiting", {name: getattr(given, name) for name in names})
    clock = machine.Clock()
    with service(given.ms) as port:
        numbers = found(list(rounds(port, given)), given.calls)
    numbers["others_cores"] = round(clock.cost().others, 2)
    print_line(report.line(numbers, VERSIONS if given.celery else None), keep=given.keep)


if __name__ == "__main__":
    main(sys.argv[1:])
