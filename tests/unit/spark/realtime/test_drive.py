"""A run by epochs, through ``submit``, without Spark: recovery, restarts, and the logs that Spark reads."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext

from acktree import Config
from acktree import submit as submit_topology
from acktree.core.data.frames import Kind, WireRow
from acktree.driver.handle import SubmittedTopology
from acktree.driver.spouts.spout_threads import SpoutThread
from acktree.errors import AcktreeError, CheckpointError, ConfigError
from acktree.spark import submit as submitting
from acktree.spark.realtime import drive
from acktree.spark.realtime.connections import ConnectionLostError
from acktree.spark.realtime.epochs import MOST_UNDER_WAY
from acktree.spark.realtime.session import refuse_unfit
from acktree.spark.worker import scratch
from acktree.spark.worker.isolation import UNGUARDED
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import FeederSpout
from tests.spark import test_exactly_once as exactly_once
from tests.spark.realtime_driver import Cluster, await_verdicts, line_of, settled, word_count
from tests.unit.spark.realtime.resident import Tasks, ThreadedQuery

CONFIG = Config(partitions=2, real_time=True, message_timeout_secs=600)


_made = count()


class ThreadedRun:
    """Submits the word count on one checkpoint, again and again."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.queries: list[ThreadedQuery] = []

    def make_query(self, *args: object) -> ThreadedQuery:
        self.queries.append(ThreadedQuery(*args))
        return self.queries[-1]

    def submit_exact(self) -> SubmittedTopology:
        """The topology of the exactly-once tests: gates, a bolt behind one, a sink."""
        folder = self.checkpoint.parent
        return submit_topology(exactly_once.topology(folder), checkpoint=self.checkpoint, config=CONFIG)

    def submit(self) -> tuple[SubmittedTopology, FeederSpout]:
        topology, lines = word_count()
        return submit_topology(topology, checkpoint=self.checkpoint, config=CONFIG), lines

    @property
    def logged(self) -> dict[str, list[int]]:
        spark = self.checkpoint / "spark"
        return {
            log: sorted(int(file.name) for file in (spark / log).iterdir()) for log in ("offsets", "commits")
        }


def session(slots: int = 32, shuffle: str = "acktree.realtime.ClosedShuffle") -> SimpleNamespace:
    """What ``submit`` asks a session for."""
    context = SimpleNamespace(
        master=f"local[{slots}]",
        defaultParallelism=slots,
        environment={},
        applicationId=f"local-{next(_made)}",
    )
    settings = {"spark.shuffle.manager.incremental": shuffle}
    return SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=settings.get))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThreadedRun:
    made = ThreadedRun(tmp_path)
    monkeypatch.setenv(UNGUARDED, "1")  # a task here is a thread: no child process is forked from it
    monkeypatch.setattr(submitting, "ResidentQuery", made.make_query)
    monkeypatch.setattr(submitting, "refuse_unseen", lambda *_: None)  # it asks the JVM
    monkeypatch.setattr(submitting, "_session", lambda *_, **__: (session(), lambda: None))
    return made


def feed(running: SubmittedTopology, lines: FeederSpout, numbers: range) -> None:
    for n in numbers:
        lines.feed([line_of(n)], message_id=n)
    await_verdicts(running, lines, numbers)


def moons(lines: FeederSpout) -> list[str]:
    return [failure.reason.partition(" in ")[0] for _, failure in lines.failed]


def assert_as_the_model(lines: FeederSpout, numbers: range) -> None:
    """Each message has a verdict, and those are the ``LocalCluster``'s."""
    assert settled(lines) == list(numbers)
    model = Cluster()
    model.feed(numbers, together=True)
    assert sorted(moons(lines)) == sorted(moons(model.lines))


def test_each_message_has_its_verdict_and_each_epoch_is_in_both_logs(run):
    running, lines = run.submit()
    with running:
        feed(running, lines, range(30))
    assert_as_the_model(lines, range(30))
    assert run.logged["offsets"] == run.logged["commits"]
    metadata = json.loads((run.checkpoint / "spark" / "metadata").read_text())
    assert list(metadata) == ["id"]


def test_an_epoch_with_a_large_fixed_cost_may_be_as_long_as_a_micro_batch(run, monkeypatch):
    readers = []

    class Noting(drive._Reader):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)
            readers.append(self)

    monkeypatch.setattr(drive, "_Reader", Noting)
    running, _ = run.submit()
    with running:
        pass
    (reader,), secs = readers, 0.0
    for _ in range(60):
        messages = reader._pace.allowance
        secs = 0.15 + messages * 1e-6
        reader.ran(messages, secs)
    assert 1 < secs < 1.1 * CONFIG.batch_interval_secs


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a run does, in its order: the offsets of an epoch logged, its commit, its verdicts told."""
    done: list[tuple[str, int]] = []
    log, dispatch = drive.Drive._log, SpoutThread.dispatch

    def logging_it(self: drive.Drive, name: str, number: int, *lines: str) -> None:
        done.append((name, number))
        log(self, name, number, *lines)

    def dispatching(self: SpoutThread, verdicts: VerdictBatch | None, number: int) -> None:
        done.append(("verdicts", number))
        dispatch(self, verdicts, number)

    monkeypatch.setattr(drive.Drive, "_log", logging_it)
    monkeypatch.setattr(SpoutThread, "dispatch", dispatching)
    return done


def run_two_at_a_time(run: ThreadedRun, monkeypatch: pytest.MonkeyPatch, last: int) -> set[int]:
    """Run epochs up to this number, each while the one before it is under way. Returns how many were."""
    running, lines = run.submit()
    send, inbox, under_way = ThreadedQuery.send, running._run.inbox, set[int]()

    def sending(self: ThreadedQuery, rows: list[WireRow]) -> int:
        """Send, and let the spout emit another message before the epoch is over."""
        number, before = send(self, rows), inbox._next
        under_way.add(self.under_way)
        if 0 < number < last:
            lines.feed([line_of(number)], message_id=number)
            while inbox._next == before:
                time.sleep(0.001)
        return number

    with running:
        while not running.is_warm:
            time.sleep(0.01)
        monkeypatch.setattr(ThreadedQuery, "send", sending)
        feed(running, lines, range(100, 101))
        await_verdicts(running, lines, range(1, last))
    return under_way


def test_at_most_one_epoch_is_logged_and_not_committed(run, monkeypatch, steps):
    """Though two are under way: of two, Spark would run the second one alone after a crash."""
    assert max(run_two_at_a_time(run, monkeypatch, 20)) == 2
    logged = [step for step in steps if step[0] != "verdicts"]
    assert logged == [(name, number) for number in range(len(logged) // 2) for name in ("offsets", "commits")]


def test_verdicts_of_an_epoch_go_out_before_the_offsets_of_the_next_one_are_logged(run, monkeypatch, steps):
    """A spout waits for its verdicts; for the offsets of an epoch that is under way nobody waits."""
    assert max(run_two_at_a_time(run, monkeypatch, 20)) == 2
    order = ("offsets", "commits", "verdicts")
    steps.remove(("verdicts", -1))  # a start tells those of an earlier run
    assert steps == [(name, number) for number in range(len(steps) // 3) for name in order]


def test_large_rows_and_chunks_do_not_travel_and_the_files_of_an_epoch_end_with_the_next(run, monkeypatch):
    """A level reads them from the inbox, and from the scratch folder of the run."""
    travelled, cut, left = [], [], []
    put, send = scratch.put_into, ThreadedQuery.send

    def noting(folder: str, name: str, rows: list[WireRow]) -> Iterator[WireRow]:
        for row in put(folder, name, rows):
            travelled.append(len(row.head) + len(row.body))
            yield row
        left.append({int(file.name.split(".")[0]) for file in Path(folder).iterdir()})

    def sending(self: ThreadedQuery, rows: list[WireRow]) -> int:
        cut.extend(rows)
        return send(self, rows)

    monkeypatch.setattr(scratch, "LARGE", 1)  # all are large
    monkeypatch.setattr(scratch, "put_into", noting)
    monkeypatch.setattr(ThreadedQuery, "send", sending)
    running, lines = run.submit()
    with running:
        feed(running, lines, range(30))
    assert_as_the_model(lines, range(30))
    assert {len(row.body) for row in cut if row.kind == Kind.CHUNK} == {0}
    assert max(travelled) < 100
    assert max(max(epochs) - min(epochs) for epochs in left if epochs) <= MOST_UNDER_WAY


def test_the_next_run_goes_on_where_the_last_one_was(run):
    model, found = Cluster(), []
    for first in (0, 20, 40):
        running, lines = run.submit()
        with running:
            feed(running, lines, range(first, first + 20))
        assert settled(lines) == list(range(first, first + 20))
        found += moons(lines)
        model.feed(range(first, first + 20), together=True)
    assert sorted(found) == sorted(moons(model.lines))


def test_a_query_that_fails_starts_again_and_loses_nothing(run):
    running, lines = run.submit()
    with running:
        feed(running, lines, range(10))
        for first in (10, 20):
            run.queries[0]._query.die()
            feed(running, lines, range(first, first + 10))
    assert_as_the_model(lines, range(30))


def test_a_death_counts_once_though_there_is_more_to_cut(run, monkeypatch, caplog):
    """What is cut of a query that failed would be sent to nobody, and that would count as another failure."""
    running, lines = run.submit()
    with running:
        feed(running, lines, range(10))
        take, died = ThreadedQuery.take, []

        def dying(self: ThreadedQuery, *given: object) -> tuple[int, list[WireRow]] | None:
            if self.under_way == 1 and len(died) < 3:
                died.append(self.under_way)
                inbox, before = running._run.inbox, running._run.inbox._next
                lines.feed([line_of(50 + len(died))], message_id=50 + len(died))
                while inbox._next == before:
                    time.sleep(0.001)
                self._query.die()
                raise ConnectionLostError("a worker died")
            return take(self, *given)

        monkeypatch.setattr(ThreadedQuery, "take", dying)
        feed(running, lines, range(50, 51))
        await_verdicts(running, lines, range(50, 54))
    assert caplog.text.count("the query of real time failed and starts again") == len(died) == 3


class Failed:
    """A query of Spark's that failed before its readers were there."""

    isActive = False  # noqa: N815  # Spark's name

    def awaitTermination(self, secs: float) -> bool:  # noqa: N802  # Spark's name
        raise ValueError("a worker died while it started")

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("deaths", [drive.MOST_FIRST_STARTS - 1, drive.MOST_FIRST_STARTS])
def test_a_worker_may_die_while_the_query_starts_for_the_first_time(run, monkeypatch, deaths):
    started, starts = ThreadedQuery._started, count()
    monkeypatch.setattr(
        ThreadedQuery,
        "_started",
        lambda self, address: Failed() if next(starts) < deaths else started(self, address),
    )
    running, lines = run.submit()
    if deaths == drive.MOST_FIRST_STARTS:
        with pytest.raises(AcktreeError, match="4 times while it started") as ended:
            running.await_termination(60)
        assert "a worker died while it started" in str(ended.value)
        return
    with running:
        feed(running, lines, range(10))
    assert settled(lines) == list(range(10))


def test_a_query_that_fails_over_and_over_ends_the_run_with_its_reason(run, monkeypatch):
    running, lines = run.submit()
    feed(running, lines, range(10))
    query = run.queries[0]
    take = query.take

    def dying(*given: object) -> object:
        query._query.die()
        return take(*given)

    monkeypatch.setattr(query, "take", dying)
    lines.feed(["once more"], message_id=99)
    with pytest.raises(AcktreeError, match=f"failed {drive.MOST_STARTS} times over one epoch"):
        running.await_termination(60)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("reason", "what", "starts"),
    [
        (FULL, "no space left on a disk that", 0),
        (ValueError("state/7/000000000041 is bad"), "state/7/000000000041 is bad", drive.MOST_STARTS - 1),
    ],
)
def test_the_error_of_a_query_that_fails_over_and_over_says_what_a_level_met(
    run, monkeypatch, caplog, reason, what, starts
):
    """A full disk is explained as with micro-batches, and at once; a damaged file is named."""
    running, lines = run.submit()
    feed(running, lines, range(3))
    query = run.queries[0]
    take = query.take

    def failing(*given: object) -> object:
        query._query.die()
        return take(*given)

    def ended(self: Tasks, secs: float) -> bool:
        raise reason

    monkeypatch.setattr(query, "take", failing)
    monkeypatch.setattr(Tasks, "awaitTermination", ended)
    lines.feed(["once more"], message_id=99)
    with pytest.raises(AcktreeError, match=what) as stopped:
        running.await_termination(60)
    assert str(run.checkpoint) in str(stopped.value)
    assert caplog.text.count("the query of real time failed and starts again") == starts


def test_a_full_disk_while_the_query_starts_for_the_first_time_is_told_at_once(run, monkeypatch, caplog):
    def ended(self: Failed, secs: float) -> bool:
        raise FULL

    monkeypatch.setattr(ThreadedQuery, "_started", lambda self, address: Failed())
    monkeypatch.setattr(Failed, "awaitTermination", ended)
    running, _ = run.submit()
    with pytest.raises(CheckpointError, match="no space left on a disk that") as stopped:
        running.await_termination(60)
    assert str(run.checkpoint) in str(stopped.value)
    assert "starts again" not in caplog.text


LASTING = [
    CheckpointError(
        "the sink has other rows: this checkpoint is an older copy", "sink 'table'", "bring it back"
    ),
    ConfigError("no such model", "model 'x'", "name one that is there"),
]


@pytest.mark.parametrize("error", LASTING)
def test_an_error_that_each_start_would_meet_again_ends_the_run_at_once(run, monkeypatch, caplog, error):
    """Spark tells it in a text of its own; the user gets its three lines alone."""
    running, lines = run.submit()
    feed(running, lines, range(3))
    query = run.queries[0]
    take, text = query.take, "".join(traceback.format_exception(error))

    def failing(*given: object) -> object:
        query._query.die()
        return take(*given)

    def ended(self: Tasks, secs: float) -> bool:
        raise RuntimeError(f"Traceback (most recent call last):\n  File\n{text}\n=== Streaming Query ===")

    monkeypatch.setattr(query, "take", failing)
    monkeypatch.setattr(Tasks, "awaitTermination", ended)
    lines.feed(["once more"], message_id=99)
    with pytest.raises(type(error)) as stopped:
        running.await_termination(60)
    assert str(stopped.value) == str(error)
    assert "Streaming Query" not in "".join(traceback.format_exception(stopped.value))
    assert "starts again" not in caplog.text


def test_a_jvm_that_was_killed_is_told_and_the_query_does_not_start_again(run, monkeypatch, caplog):
    """Its connections are closed, and each call of it is refused."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as java:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))

        def refused(*_: object) -> bool:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

        running, lines = run.submit()
        feed(running, lines, range(3))
        java.kill()
        monkeypatch.setattr(Tasks, "awaitTermination", refused)
        monkeypatch.setattr(Tasks, "stop", refused)
        run.queries[0]._query.die()
        with pytest.raises(AcktreeError, match=f"Spark's Java process {java.pid} was ended by signal 9, and"):
            running.await_termination(60)
    assert "starts again" not in caplog.text
    assert "could not be stopped in order" not in caplog.text


def test_what_spark_prints_of_tasks_that_a_second_signal_ends_is_not_shown(run, monkeypatch):
    """As with micro-batches. It is muted before the connections of the tasks are closed."""
    did, interrupt, waits = [], ThreadedQuery.interrupt, Event()
    monkeypatch.setattr(drive, "mute_stderr", lambda: did.append("muted"))
    monkeypatch.setattr(ThreadedQuery, "interrupt", lambda self: (did.append("closed"), interrupt(self)))
    running, lines = run.submit()
    feed(running, lines, range(3))
    running.kill()
    assert did == []

    def waiting(self: ThreadedQuery, *_: object) -> None:
        """No epoch becomes whole."""
        if self.under_way:
            waits.set()
        time.sleep(0.01)

    running, lines = run.submit()
    feed(running, lines, range(3, 6))
    monkeypatch.setattr(ThreadedQuery, "take", waiting)
    lines.feed(["is not over"], message_id=99)
    assert waits.wait(60)
    running._supervisor.hurry()
    assert running.await_termination(60)
    assert did == ["muted", "closed"]


def test_an_epoch_that_was_logged_and_not_committed_runs_again_as_it_was(run, monkeypatch):
    running, lines = run.submit()
    feed(running, lines, range(10))
    log = drive.Drive._log

    def dying(self: drive.Drive, name: str, number: int, *entry: str) -> None:
        if name == "commits":
            raise OSError("the driver dies here")
        log(self, name, number, *entry)

    with monkeypatch.context() as patch:
        patch.setattr(drive.Drive, "_log", dying)
        lines.feed(["of the epoch that is not committed"], message_id=99)
        with pytest.raises(OSError, match="dies here"):
            running.await_termination(60)
    last = run.logged["offsets"][-1]
    assert last == run.logged["commits"][-1] + 1
    assert 99 not in settled(lines), "no verdict before the commit"
    entry = (run.checkpoint / "spark" / "offsets" / str(last)).read_text()
    running, lines = run.submit()
    with running:
        feed(running, lines, range(99, 100))  # as its queue delivers it again
    assert (run.checkpoint / "spark" / "offsets" / str(last)).read_text() == entry
    assert run.logged["offsets"][-1] == run.logged["commits"][-1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["offsets", "commits"])
def test_a_driver_that_dies_at_this_step_loses_nothing_and_counts_nothing_twice(run, monkeypatch, step, when):
    """The next run goes on from what is logged; the queue delivers again what has no verdict."""
    running, lines = run.submit()
    feed(running, lines, range(10))
    log, told = drive.Drive._log, []

    def dying(self: drive.Drive, name: str, number: int, *entry: str) -> None:
        if name == step and when == "before":
            raise OSError("the driver dies here")
        log(self, name, number, *entry)
        if name == step:
            raise OSError("the driver dies here")

    with monkeypatch.context() as patch:
        patch.setattr(drive.Drive, "_log", dying)
        lines.feed([line_of(99)], message_id=99)
        with pytest.raises(OSError, match="dies here"):
            running.await_termination(60)
    told += settled(lines)
    assert 99 not in told or (step, when) == ("commits", "after"), "no verdict before the commit"
    found = moons(lines)
    running, lines = run.submit()
    with running:
        feed(running, lines, range(100, 110))
        if 99 not in told:
            feed(running, lines, range(99, 100))
    assert sorted([*told, *settled(lines)]) == [*range(10), *range(99, 110)]
    model = Cluster()
    model.feed([*range(10), *range(99, 110)], together=True)
    assert sorted(found + moons(lines)) == sorted(moons(model.lines))


def test_a_batch_of_sparks_ends_between_two_epochs_and_loses_nothing(run, monkeypatch, caplog):
    """With a batch that is over at once, one ends after each epoch: memory is loaded anew each time."""
    ended = []
    end = ThreadedQuery.end_batch
    monkeypatch.setattr(ThreadedQuery, "end_batch", lambda self: (ended.append(self.under_way), end(self)))
    monkeypatch.setattr(drive, "BATCH_SECS", 0.05)
    caplog.set_level(logging.INFO, "acktree")
    running, lines = run.submit()
    with running:
        for first in range(0, 30, 5):
            feed(running, lines, range(first, first + 5))
    assert_as_the_model(lines, range(30))
    assert ended
    assert set(ended) == {0}, "no epoch is under way then"
    assert "a batch of Spark's ended between two epochs" in caplog.text


def test_an_epoch_tells_where_its_time_went(run, caplog):
    caplog.set_level(logging.DEBUG, "acktree.epochs")
    running, lines = run.submit()
    with running:
        feed(running, lines, range(5))
    epochs = [record.times for record in caplog.records if record.name == "acktree.epochs"]
    assert epochs
    number, phases = running._supervisor._query.last_phases()
    assert (number >= len(epochs) - 1, {*phases}) == (True, {"queryPlanning", "addBatch", "commitOffsets"})
    for times in epochs:
        assert times.begun <= times.sent <= times.whole <= times.judged <= times.committed
        assert sorted(times.levels) == [(level, part) for level in range(3) for part in range(2)]
        for moments in times.levels.values():
            assert times.begun <= moments.whole <= moments.ran <= times.whole
            assert moments.spent > 0


def test_exactly_once_bolts_and_sinks_count_each_message_once_though_the_query_fails_again_and_again(
    run, monkeypatch
):
    """A sink's mark names the last epoch that it wrote, so one epoch is under way."""
    take, under_way, taken = ThreadedQuery.take, set(), count(1)

    def dying(self: ThreadedQuery, *given: object) -> tuple[int, list[WireRow]] | None:
        found = take(self, *given)
        if found is None:
            return None
        under_way.add(self.under_way)
        if next(taken) % 4 == 0:  # its tasks have run, and run again
            self._query.die()
            raise ConnectionLostError("a worker died")
        return found

    monkeypatch.setattr(ThreadedQuery, "take", dying)
    running = run.submit_exact()
    assert running.await_termination(timeout_secs=120), running.stats().table()
    exactly_once.check(run.checkpoint.parent)
    assert under_way == {1}


@pytest.mark.parametrize(
    ("checkpoint", "version", "what"),
    [("hdfs://names/orders", "4.3.0", "in a folder"), ("/tmp/there", "4.2.1", "PySpark 4.3.x alone")],
)
def test_what_real_time_cannot_run_is_refused_before_anything_starts(monkeypatch, checkpoint, version, what):
    import pyspark  # noqa: PLC0415

    monkeypatch.setattr(pyspark, "__version__", version)
    topology, _ = word_count()
    with pytest.raises(ConfigError, match=what):
        submit_topology(topology, checkpoint=checkpoint, config=CONFIG)


def test_rows_of_a_dataframe_are_refused():
    spout = SimpleNamespace(id="orders", is_dataframe=True)
    with pytest.raises(ConfigError, match="'orders'") as refusal:
        refuse_unfit(SimpleNamespace(spouts=[spout]), is_folder=True)
    assert "leave real_time out" in str(refusal.value)


def test_two_topologies_do_not_share_slots(run, monkeypatch):
    """A second one would never begin, and a query of micro-batches would wait for ever."""
    one = session(slots=6)
    monkeypatch.setattr(submitting, "_session", lambda *_, **__: (one, lambda: None))
    running, lines = run.submit()
    with running:
        feed(running, lines, range(3))
        topology, _ = word_count()
        other = run.checkpoint.parent / "other"
        taken = f"needs 6 slots, .* has 6, of which topology {topology.name!r} has 6"
        with pytest.raises(ConfigError, match=taken) as refusal:
            submit_topology(topology, checkpoint=other, config=CONFIG)
        assert "a program of its own" in str(refusal.value)
        with pytest.raises(ConfigError, match="are taken in real time") as refusal:
            submit_topology(topology, checkpoint=other, config=Config(partitions=2))
        assert "a program of its own" in str(refusal.value)
    running, lines = run.submit()
    with running:
        feed(running, lines, range(3, 6))
    assert settled(lines) == [3, 4, 5], "they are given back"


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        (session(slots=5), "needs 6 slots, for 3 levels x 2 partitions, and this session has 5", "local"),
        (session(shuffle="streaming"), "open to everybody", "let submit"),
    ],
)
def test_a_session_that_does_not_fit_is_refused_and_the_checkpoint_is_as_it_was(
    run, monkeypatch, given, what, fix
):
    monkeypatch.setattr(submitting, "_session", lambda *_, **__: (given, lambda: None))
    with pytest.raises(ConfigError, match=what) as refusal:
        run.submit()
    assert fix in str(refusal.value)
    assert not (run.checkpoint / "spark").exists()
