"""Hostile values stop no topology and fail no neighbour: each message has the verdict that it has alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ArrowBolt, BasicBolt, Bolt, Config, CustomGrouping, Retry, Spout, TopologyBuilder
from acktree.errors import MisuseError
from acktree.spout import EndOfStream
from acktree.testing import LocalCluster
from tests.generated.hostile import COLUMNS, Line, columns, lines, makers


class Basic(BasicBolt):
    outputs = ["key", "number"]

    def execute(self, tup, collector):
        collector.emit(list(tup.values))


class Hand(Bolt):
    outputs = ["key", "number"]

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        self.collector.emit([tup["key"], tup["number"]], anchors=tup)
        self.collector.ack(tup)


class Arrow(ArrowBolt):
    outputs = ["key", "number"]

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch, parents=range(batch.num_rows))


class Last(BasicBolt):
    def execute(self, tup, collector):
        repr(tup)


class Odd(CustomGrouping):
    def prepare(self, context, stream, target_task_ids):
        self.tasks = target_task_ids

    def choose_tasks(self, task_id, values):
        return [self.tasks[values[1] % len(self.tasks)]]


KINDS = {"basic": Basic, "hand": Hand, "arrow": Arrow}
Emit = Callable[[object], None]


class Script(Spout):
    """Emits what a script says, one message a call; a message that is refused is followed by the next."""

    outputs = ["key", "number"]

    def __init__(self, emits: Sequence[tuple[int, Emit]], *, redelivers: bool) -> None:
        self.emits, self.redelivers = list(emits), redelivers
        self.verdicts: dict[int, str] = {}

    def __deepcopy__(self, memo: object) -> Script:
        return self

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        while self.emits:
            number, emit = self.emits.pop(0)
            try:
                emit(self.collector)
            except MisuseError:
                self.note(number, "refused")
            else:
                return
        raise EndOfStream

    def note(self, number: int, verdict: str) -> None:
        assert number not in self.verdicts, "two verdicts"
        self.verdicts[number] = verdict

    def ack(self, message_id):
        self.note(number_of(message_id), "acked")

    def fail(self, message_id, failure):
        if failure.final or not self.has_retry:
            self.note(number_of(message_id), "failed")


def number_of(message_id):
    return message_id[0] if isinstance(message_id, tuple) else message_id


def verdicts_of(line: Line, emits: Sequence[tuple[int, Emit]]) -> dict[int, str]:
    """The verdict of each message when these are emitted together."""
    spout = Script(emits, redelivers=line.redelivers)
    spout.has_retry = line.retries
    builder = TopologyBuilder("hostile")
    policy = Retry(max_attempts=2, backoff_secs=(1, 1), jitter=False) if line.retries else None
    builder.set_spout("spout", spout, retry=policy)
    source = "spout"
    for at, bolt in enumerate([*(KINDS[kind]() for kind in line.bolts), Last()]):
        declarer = builder.set_bolt(f"b{at}", bolt, parallelism=2)
        further = {"fields": (["key"],), "partial_key": (["key"],), "custom": (Odd(),)}.get(line.grouping, ())
        getattr(declarer, f"{line.grouping}_grouping")(source, *further)
        source = f"b{at}"
    # What is recorded changes no verdict: about half of the runs trace every message.
    config = Config(partitions=line.partitions, trace_sample_rate=float(line.partitions > 1))
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=config)
        cluster.advance(10)
        for letter in running.dead_letters:
            letter.story()
        cluster.advance(100)
    return spout.verdicts


def one(number: int, make: Callable[[], object]) -> Emit:
    return lambda collector: collector.emit([make(), number], message_id=number)


def with_id(number: int, make: Callable[[], object]) -> Emit:
    return lambda collector: collector.emit(["key", number], message_id=(number, make()))


def rows(first: int, column: str, at: Sequence[int] = (0, 1, 2)) -> Emit:
    """Some of the three rows of a column."""

    def emit(collector):
        values = COLUMNS[column]()
        if len(at) == 1:
            values = values.slice(at[0], 1)
        numbers = [first + each for each in at]
        batch = pa.RecordBatch.from_arrays([values, pa.array(numbers)], names=["key", "number"])
        collector.emit_batch(batch, message_ids=numbers)

    return emit


messages = st.lists(
    st.one_of(st.tuples(st.just("value"), makers), st.tuples(st.just("id"), makers)), max_size=6
)


def drawn_emits(drawn) -> list[tuple[int, Emit]]:
    return [
        (number, (one if kind == "value" else with_id)(number, make))
        for number, (kind, make) in enumerate(drawn)
    ]


@given(lines, messages)
def test_a_message_gets_the_verdict_it_gets_alone_whatever_its_neighbours_are(line, drawn):
    emits = [*drawn_emits(drawn), (100, one(100, lambda: 1)), (101, one(101, lambda: "text"))]
    alone = {number: verdict for each in emits for number, verdict in verdicts_of(line, [each]).items()}
    assert {*alone} == {number for number, _ in emits}
    assert (alone[100], alone[101]) == ("acked", "acked")
    assert verdicts_of(line, emits) == alone


@given(lines, st.lists(columns, min_size=1, max_size=4))
def test_a_row_of_a_batch_gets_the_verdict_it_gets_alone(line, names):
    alone: dict[int, str] = {}
    for place, name in enumerate(names):
        for at in range(3):
            alone |= verdicts_of(line, [(10 * place + at, rows(10 * place, name, [at]))])
    together = [(10 * place, rows(10 * place, name)) for place, name in enumerate(names)]
    together.append((100, one(100, lambda: 1)))
    assert verdicts_of(line, together) == {**alone, 100: "acked"}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("grouping", ["shuffle", "fields"])
def test_no_column_stops_a_topology(name, grouping):
    line = Line(("basic", "arrow", "hand"), grouping, retries=True, partitions=2, redelivers=False)
    delivered = verdicts_of(line, [(0, rows(0, name)), (100, one(100, lambda: 1))])
    assert {*delivered} == {0, 1, 2, 100}
    assert delivered[100] == "acked"
