"""Hostile values stop no topology and fail no neighbour: each message has the verdict that it has alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acktree import ArrowBolt, BasicBolt, Bolt, Config, CustomGrouping, Retry, Spout, TopologyBuilder
from acktree.errors import MisuseError
from acktree.spout import EndOfStream
from acktree.testing import LocalCluster
from tests.generated.hostile import COLUMNS, GROUPINGS, Line, column, columns, lines, makers


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


class Makes(ArrowBolt):
    """Emits the rows of the columns that it is named, and all other rows as they are."""

    outputs = ["key", "number"]

    def execute_batch(self, batch, collector):
        named: dict[object, list[int]] = {}
        for row, key in enumerate(batch["key"].to_pylist()):
            named.setdefault(key if key in COLUMNS else None, []).append(row)
        for key, taken in named.items():
            if key is None:
                collector.emit_batch(batch.take(pa.array(taken)), parents=taken)
                continue
            numbers = batch["number"].take(pa.array(taken))
            rows = [number % 10 for number in numbers.to_pylist()]
            parts = (
                [(slice(None), column(key))]
                if rows == [0, 1, 2]
                else [(slice(at, at + 1), column(key).slice(row, 1)) for at, row in enumerate(rows)]
            )
            for part, made in parts:
                collector.emit_batch(made.append_column("number", numbers[part]), parents=taken[part])


class Holds(Bolt):
    """Holds every tuple until the next micro-batch, and emits it then."""

    outputs = ["key", "number"]
    remembers = ["held"]
    tick_secs = 1

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        self.held.append(tup)

    def tick(self, tick):
        for tup in self.held:
            try:
                self.collector.emit(tup.values, anchors=tup)
                self.collector.ack(tup)
            except MisuseError as error:
                self.collector.fail(tup, str(error))
        self.held = []


class Last(BasicBolt):
    outputs = ["number", "shown"]

    def execute(self, tup, collector):
        repr(tup)
        collector.emit([tup["number"], shown(tup["key"])])


def shown(value: object) -> str:
    """A value as text: -0.0 and NaN are what they were, and a value whose own code raises is shown too."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # its own code
        return type(value).__name__


class Odd(CustomGrouping):
    def prepare(self, context, stream, target_task_ids):
        self.tasks = target_task_ids

    def choose_tasks(self, task_id, values):
        return [self.tasks[values[1] % len(self.tasks)]]


KINDS = {"basic": Basic, "hand": Hand, "arrow": Arrow, "holds": Holds, "makes": Makes}
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
                for each in getattr(emit, "numbers", (number,)):
                    self.note(each, "refused")
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


def verdicts_of(
    line: Line, emits: Sequence[tuple[int, Emit]], read: dict[int, set[str]] | None = None
) -> dict[int, str]:
    """The verdict of each message when these are emitted together.

    Args:
        read: Is given what the last bolt read of each message.
    """
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
        for number, text in cluster.tuples(source) if read is not None else ():
            read.setdefault(number, set()).add(text)
    return spout.verdicts


def one(number: int, make: Callable[[], object]) -> Emit:
    return lambda collector: collector.emit([make(), number], message_id=number)


def with_id(number: int, make: Callable[[], object]) -> Emit:
    return lambda collector: collector.emit(["key", number], message_id=(number, make()))


def rows(first: int, name: str, at: Sequence[int] = (0, 1, 2)) -> Emit:
    """Some of the three rows of a column."""

    def emit(collector):
        values = column(name)
        if len(at) == 1:
            values = values.slice(at[0], 1)
        batch = values.append_column("number", pa.array(numbers))
        collector.emit_batch(batch, message_ids=numbers)

    emit.numbers = numbers = [first + each for each in at]  # type: ignore[attr-defined]
    return emit


UNHASHABLE = ["months_in_extension", "timestamp_ns"]

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


# A type that is not hashable: a look at it for a quicker way failed rows that are fine.
@example(Line(("basic", "arrow"), "fields", retries=True, partitions=1, redelivers=False), UNHASHABLE)
@given(lines, st.lists(columns, min_size=1, max_size=4))
def test_a_row_of_a_batch_gets_the_verdict_it_gets_alone(line, names):
    alone: dict[int, str] = {}
    for place, name in enumerate(names):
        each = [verdicts_of(line, [(10 * place + at, rows(10 * place, name, [at]))]) for at in range(3)]
        verdicts = {number: verdict for one_row in each for number, verdict in one_row.items()}
        # A spout's batch is refused as a whole.
        is_refused = "refused" in verdicts.values()
        alone |= dict.fromkeys(verdicts, "refused") if is_refused else verdicts
    together = [(10 * place, rows(10 * place, name)) for place, name in enumerate(names)]
    together.append((100, one(100, lambda: 1)))
    assert verdicts_of(line, together) == {**alone, 100: "acked"}


def texts_of(first: int, name: str) -> dict[int, str]:
    """The values of a column as text, as Python reads them from Arrow; none for what it cannot read."""
    texts = {}
    for at in range(3):
        if (name, at) == ("dictionary_before", 1):  # pyarrow would read memory before the dictionary
            continue
        with suppress(Exception):
            texts[first + at] = shown(column(name).slice(at, 1).column(0).to_pylist()[0])
    return texts


BOLTS = [("arrow",), ("basic", "hand"), ("arrow", "holds"), ("makes",), ("makes", "holds")]


def share_of(grouping: str) -> list[str]:
    """The columns of one run: every eighth, so that each line of bolts meets all in its eight groupings."""
    if settings().max_examples > settings.get_profile("home").max_examples:
        return [*COLUMNS]
    return [*COLUMNS][GROUPINGS.index(grouping) :: len(GROUPINGS)]


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("bolts", BOLTS, ids="-".join)
def test_columns_side_by_side_stop_no_topology_fail_no_neighbour_and_are_read_as_they_were(bolts, grouping):
    line = Line(bolts, grouping, retries=grouping < "g", partitions=2, redelivers=False)
    emits: list[tuple[int, Emit]] = []
    written: dict[int, str] = {}
    for place, name in enumerate(share_of(grouping)):
        first = 10 * place
        if bolts[0] == "makes":
            emits += [(first + at, one(first + at, lambda name=name: name)) for at in range(3)]
        else:
            emits.append((first, rows(first, name)))
        emits.append((first + 9, one(first + 9, lambda name=name: f"beside {name}")))
        written[first + 9] = repr(f"beside {name}")
        written |= texts_of(first, name)
    read: dict[int, set[str]] = {}
    verdicts = verdicts_of(line, emits, read)
    assert {*verdicts} >= {number for number, _ in emits if number % 10 in {0, 9}}
    assert [number for number in verdicts if number % 10 == 9 and verdicts[number] != "acked"] == []
    acked = {number: texts for number, texts in read.items() if verdicts[number] == "acked"}
    assert acked == {number: {written.get(number)} for number in acked}
