"""A sink in a topology: each row is written once, and fails only if it is known not to be there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from acktree import (
    CheckpointError,
    Config,
    ConnectorError,
    MisuseError,
    Retry,
    Sink,
    TopologyBuilder,
    Unavailable,
)
from acktree.tasks.bolts import sink_task
from acktree.tasks.bolts.bolt_tasks import bolt_task
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from acktree.tasks.plan import Plan
from acktree.testing import FeederSpout, LocalCluster

QUICK = Retry(max_attempts=3, backoff_secs=(0.01, 0.01))


class Server:
    """A database: rows, a mark for each writer, and what goes wrong next."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []
        self.marks: dict[object, tuple[bytes, dict[int, str]]] = {}
        self.wrong: list[str] = []
        self.refuse: Callable[[tuple[object, ...]], str | None] = lambda row: None
        self.calls = Counter[str]()

    def call(self, name: str) -> None:
        self.calls[name] += 1
        if self.wrong and self.wrong[0].startswith(name):
            wrong = self.wrong.pop(0)
            if wrong.endswith("in vain"):
                raise Unavailable("server")
            can_retry = not wrong.endswith("for good")
            raise ConnectorError(f"{name} went wrong", "the server", "wait", can_retry=can_retry)


_SERVER = Server()


class Rows(Sink):
    def open(self, config, context):
        _SERVER.call("open")
        self.writer = context.checkpoint_id, context.component_id, context.task_id

    def last_mark(self):
        _SERVER.call("ask")
        return _SERVER.marks.get(self.writer, (None, {}))[0]

    def write(self, batch, mark):
        _SERVER.call("write")
        if _SERVER.marks.get(self.writer, (None, {}))[0] != mark:
            rows = [tuple(row.values()) for row in batch.to_pylist()]
            told = {at: reason for at, row in enumerate(rows) if (reason := _SERVER.refuse(row))}
            _SERVER.rows += [row for at, row in enumerate(rows) if at not in told]
            _SERVER.marks[self.writer] = mark, told
        _SERVER.call("commit")
        return _SERVER.marks[self.writer][1]

    def close(self):
        _SERVER.call("close")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(_SERVER, "__dict__", vars(Server()))
    monkeypatch.setattr(sink_task, "_PAUSES_SECS", (1e-9, 1e-9, 1e-9))
    return _SERVER


class Run:
    def __init__(self, *, fields=("n",), parallelism=1, retry=QUICK):
        self.feeder = FeederSpout(list(fields))
        builder = TopologyBuilder("written")
        builder.set_spout("rows", self.feeder)
        sink = builder.set_sink("sink", Rows(), parallelism, retry=retry)
        sink.fields_grouping("rows", [fields[0]])
        self.cluster = LocalCluster()
        self.running = self.cluster.submit(builder.create_topology())

    def feed(self, *rows):
        for number, row in enumerate(rows):
            self.feeder.feed(list(row), message_id=number)
        for _ in range(10):
            self.cluster.advance(secs=1)
        self.cluster.__exit__(None, None, None)
        return [letter.reason for letter in self.running.dead_letters]


def task_of(monitor):
    """The task of a sink in a micro-batch."""
    builder = TopologyBuilder("written")
    builder.set_spout("rows", FeederSpout(["n"]))
    builder.set_sink("sink", Rows(), retry=QUICK).shuffle_grouping("rows")
    topology = builder.create_topology()
    plan = Plan.of(topology, Config(), 1, 0)
    [task] = topology.tasks["sink"]
    level = plan.level_of["sink"]
    outputs = Outputs(plan, 0, level, 0, monitor=monitor, batch_id=7)
    return bolt_task(topology.components["sink"], task, outputs, None, are_questions=False)


def test_rows_are_written_and_a_refused_one_fails_alone_and_is_tried_again(server):
    came = Counter()

    def refuse(row):
        came[row] += 1
        return "not yet" if row == (2,) and came[row] < 3 else "never" if row == (3,) else None

    server.refuse = refuse
    run = Run(parallelism=2)
    assert run.feed((1,), (2,), (3,), (4,)) == ["never"]
    assert Counter(server.rows) == Counter([(1,), (2,), (4,)])
    assert came[2,] == came[3,] == 3
    [letter] = run.running.dead_letters
    assert letter.spout == "__gate/sink/rows/default"


@pytest.mark.parametrize(("final", "attempts"), [(ConnectorError, 1), (MisuseError, 3)])
def test_a_refused_row_is_given_up_at_once_if_final_says_so_and_the_others_are_written(
    server, final, attempts
):
    server.refuse = lambda row: f"no {row[0]}" if row[0] % 2 else None
    run = Run(retry=replace(QUICK, final=(final,)))
    assert sorted(run.feed((1,), (2,), (3,))) == ["no 1", "no 3"]
    letters = list(run.running.dead_letters)
    assert [letter.attempts for letter in letters] == [attempts] * 2
    assert {letter.exception_type for letter in letters} == {"acktree.ConnectorError"}
    assert "final=(ConnectorError,)" in letters[0].traceback
    assert server.rows == [(2,)]


WRONG = [
    ["open"], ["ask"], ["write"], ["commit"], ["open", "ask", "write"], ["commit", "open", "ask"],
    ["write", "ask", "open"], ["commit for good"], ["commit", "commit"], ["write"] * 4, ["ask"] * 3,
    ["open"] * 3, ["write in vain"] * 3, ["write in vain", "ask"], ["commit", "write in vain", "ask"],
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=", ".join)
def test_each_row_is_written_once_whatever_goes_wrong(server, wrong):
    server.wrong = [*wrong]
    run = Run()
    assert run.feed((1,), (2,)) == []
    assert Counter(server.rows) == Counter([(1,), (2,)])
    assert not server.wrong
    assert run.feeder.acked == [0, 1]


@pytest.mark.parametrize("wrong", [["ask for good"], ["commit", *["ask"] * 9]], ids=str)
def test_rows_of_which_nothing_is_known_do_not_fail_the_run_ends(server, wrong):
    server.wrong = [*wrong]
    with pytest.raises(ConnectorError, match="ask went wrong"):
        Run().feed((1,))


AWAY = [["open"], ["ask"], ["write in vain"]]


@pytest.mark.parametrize("away", AWAY, ids=", ".join)
def test_rows_of_which_it_is_certain_that_they_are_not_written_wait_at_once_and_use_up_no_attempt(
    server, away
):
    server.wrong = away * 1000
    run = Run()
    run.feeder.feed([1], message_id=1)
    for _ in range(9):
        run.cluster.advance(secs=30)
    asked = server.calls["open"]
    assert asked < 30, "once in each micro-batch in which some row is tried again"
    stats = run.running.stats()["__gate/sink/rows/default"]
    assert stats.outage.dependency == ("server" if away == ["write in vain"] else "sink")
    assert stats.outage.tries > QUICK.max_attempts
    assert not run.running.dead_letters
    server.wrong = []
    assert run.feed() == []
    for _ in range(9):
        run.cluster.advance(secs=30)
    assert server.rows == [(1,)]


@dataclass
class Seen(ExecutionMonitor):
    """A monitor of which operators see that a sink waits; after some tries the server works again."""

    server: Server
    may_have_run: bool = True
    tries: int = 0
    is_over: bool = False

    def __post_init__(self):
        super().__init__()

    def waits(self, component, task, error, tries):
        assert component == "sink"
        assert error.can_retry
        self.tries = tries
        if tries == 50:
            self.server.wrong = []
        return True

    def waits_no_more(self):
        self.is_over = True


@pytest.mark.parametrize("away", [*AWAY, ["write"]], ids=", ".join)
@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not written"])
def test_rows_that_an_earlier_attempt_may_have_written_are_waited_for_as_long_as_it_takes(
    server, away, is_written, monkeypatch
):
    monkeypatch.setattr(sink_task, "_LONGEST_PAUSE_SECS", 1e-9)
    rows = pa.record_batch({"n": [1, 2]})
    task = task_of(monitor := Seen(server))
    mark = b"m"
    if is_written:
        sink = Rows()
        sink.open(None, task.context)
        sink.write(rows, mark)
    server.wrong = away * 1000
    monkeypatch.setattr(task, "_refuse_other", lambda last, mark: None)
    assert task._settle(rows, mark) == {}
    assert server.rows == [(1,), (2,)]
    assert monitor.is_over
    assert monitor.tries == 50


@dataclass
class Marking(ExecutionMonitor):
    """A monitor that knows which hook is called."""

    hook: str = ""

    def __post_init__(self):
        super().__init__()

    def enter(self, component, hook):
        assert component.id == "sink"
        self.hook = hook

    def end(self):
        self.hook = ""


def test_each_call_of_a_sink_is_marked_and_no_pause_is(server, monkeypatch):
    """What is marked is told if it does not return, and is named if it ends its process."""
    task, called = task_of(monitor := Marking()), []
    monkeypatch.setattr(server, "call", lambda name: called.append((name, monitor.hook)))
    monkeypatch.setattr(task, "_refuse_other", lambda last, mark: called.append(("engine", monitor.hook)))
    task._settle(pa.record_batch({"n": [1]}), b"m")
    task._leave()
    assert called == [
        ("open", "open"), ("ask", "last_mark"), ("engine", ""), ("write", "write"), ("commit", "write"),
        ("close", "close"),
    ]  # fmt: skip
    assert not monitor.hook


@pytest.mark.parametrize("wrong", ["open", "ask", "write", "close"])
def test_a_call_of_a_sink_that_raises_is_over(server, wrong):
    server.wrong = [f"{wrong} for good"]
    task = task_of(monitor := Marking())
    with suppress(ConnectorError):
        task._settle(pa.record_batch({"n": [1]}), b"m")
    task._leave()
    assert not server.wrong
    assert not monitor.hook


def test_a_sink_that_cannot_work_as_it_is_stops_the_topology_and_makes_no_letter(server):
    server.wrong = ["write for good"]
    run = Run()
    with pytest.raises(ConnectorError, match="write went wrong"):
        run.feed((1,), (2,))
    assert server.rows == []
    assert not run.running.dead_letters


def test_values_of_two_kinds_are_not_made_one(server):
    given = [1, b"bytes", "a text", 2.5]
    reasons = Run().feed(*[(value,) for value in given])
    written = [(type(value), value) for [value] in server.rows]
    assert {*written} <= {(type(value), value) for value in given}
    assert len(written) + len(reasons) == 4


@pytest.mark.parametrize(
    "given",
    [
        [Decimal("1.50"), Decimal("100.5"), None, Decimal("123456789.123")],
        [1, 2**40, None, -(2**62)],
        ["a", "b" * 9, None],
        [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    ],
    ids=["decimals", "integers", "texts", "times"],
)
def test_values_of_one_kind_are_written_whatever_their_width_or_precision(server, given):
    assert Run().feed(*[(value,) for value in given]) == []
    written = [value for [value] in server.rows]
    assert len(written) == len(given)
    assert all(value in written for value in given)


def test_types_that_arrow_joins_without_another_value_are_of_one_kind():
    kinds = [
        [pa.int8(), pa.uint64()], [pa.float16(), pa.float64()], [pa.string(), pa.large_string()],
        [pa.binary(), pa.large_binary(), pa.binary(4)], [pa.decimal128(5, 2), pa.decimal256(50, 9)],
        [pa.timestamp("s"), pa.timestamp("us")], [pa.time32("s"), pa.time64("ns")],
        [pa.date32(), pa.date64()],
        [pa.list_(pa.int8()), pa.list_(pa.int64())], [pa.bool_()], [pa.null()], [pa.struct([])],
    ]  # fmt: skip
    names = [{sink_task._kind(each) for each in alike} for alike in kinds]
    assert [len(each) for each in names] == [1] * len(kinds)
    assert len(set.union(*names)) == len(kinds)


def test_a_row_that_cannot_be_given_to_a_sink_and_one_of_another_type_fail_alone(server):
    reasons = Run().feed((1,), (object,), ("a text",), (2,))
    assert Counter(server.rows) <= Counter([(1,), (2,), ("a text",)])
    assert len(server.rows) + len(reasons) == 4
    assert reasons


def test_a_mark_that_does_not_fit_ends_the_run_before_a_row_is_written(server):
    run = Run()
    [task] = run.running.plan.topology.tasks["sink"]
    writer = run.running.plan.context(run.running.plan.topology.components["sink"], task, None)
    for mark in (b"of another program", sink_task._MARK.pack(b"1", 999, bytes(16))):
        server.marks[writer.checkpoint_id, "sink", task] = mark, {}
        with pytest.raises(CheckpointError, match="an older copy"):
            run.feed((1,))
    assert server.rows == []


def test_a_sink_that_refuses_rows_that_it_was_not_given_is_told_so(server):
    server.marks = _Lying()
    with pytest.raises(MisuseError, match="refuses rows that are not there"):
        Run().feed((1,))


class _Lying(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, (value[0], {7: "seven"}))
