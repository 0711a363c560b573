"""Tasks of an ArrowBolt: what is acked, failed and emitted by its batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acktree import ArrowBolt
from acktree.core.tracking.verdicts import FailureCause
from tests.unit.tasks.bolts.bolt_harness import Calls, Says, bench


class Words(ArrowBolt):
    """Splits lines; raises on a batch with "boom", fails lines without words."""

    outputs = pa.schema([("word", pa.string())])

    def execute_batch(self, batch, collector):
        words = pc.split_pattern(batch["value"], " ")
        emitted = pa.record_batch({"word": pc.list_flatten(words)})
        collector.emit_batch(emitted, parents=pc.list_parent_indices(words))
        if "boom" in batch["value"].to_pylist():
            raise RuntimeError("boom")
        empty = pc.indices_nonzero(pc.equal(batch["value"], ""))
        collector.fail_rows(empty, "no words")
        collector.fail_rows(empty, "the first reason counts")
        collector.fail_rows([], "nothing")


def test_an_arrow_bolt_acks_its_rows_but_for_those_that_it_fails():
    with bench(Words(), Calls(lambda bolt, tup, collector: None)) as running:
        running.feed("a b", "", "c")
        assert running.acked == ["a b", "c"]
        failure = running.failures[""]
        assert (failure.reason, failure.cause, failure.others) == ("no words", FailureCause.FAILED_BY_BOLT, 0)
        assert running.tuples("b0") == ["a", "b", "", "c"]


def test_an_arrow_bolt_that_raises_fails_its_batch_and_what_it_emitted_stands():
    with bench(Words(), Calls(lambda bolt, tup, collector: None)) as running:
        running.feed("a b")
        running.feed("c", "boom", "")
        running.feed("d")
        assert running.acked == ["a b", "d"]
        assert {key: f.reason for key, f in running.failures.items()} == dict.fromkeys(
            ["c", "boom", ""], "RuntimeError: boom"
        )
        assert running.tuples("b0") == ["a", "b", "c", "boom", "", "d"]


OUT = pa.record_batch({"value": ["x", "y", "z"]})
ARROW_MISUSE = {
    "too few parents": (lambda b, c: c.emit_batch(OUT, parents=[0, 1]), "3 rows with parents"),
    "a parent beyond the batch": (lambda b, c: c.emit_batch(OUT, parents=[0, 1, 2]), "the input row"),
    "a negative parent": (lambda b, c: c.emit_batch(OUT, parents=[0, -1, 1]), "the input row"),
    "a parent that is null": (
        lambda b, c: c.emit_batch(OUT, parents=pa.array([0, None, 1])),
        "the input row",
    ),
    "parents that are no numbers": (lambda b, c: c.emit_batch(OUT, parents=["a", "b", "c"]), "the input row"),
    "parents that are truths": (lambda b, c: c.emit_batch(OUT, parents=[True, False, True]), "the input row"),
    "another column": (lambda b, c: c.emit_batch(pa.record_batch({"x": [1]}), parents=[0]), "columns ['x']"),
    "no batch": (lambda b, c: c.emit_batch([1], parents=[0]), "emit_batch() of a list"),
    "an unknown stream": (lambda b, c: c.emit_batch(OUT, parents=None, stream="s"), "stream 's'"),
    "a row beyond the batch": (lambda b, c: c.fail_rows([2], "x"), "fail_rows([2]) of a batch with 2 rows"),
    "a row before the batch": (lambda b, c: c.fail_rows(pa.array([-1])), "fail_rows([-1])"),
}


@pytest.mark.parametrize(("say", "expected"), ARROW_MISUSE.values(), ids=ARROW_MISUSE.keys())
def test_misuse_by_an_arrow_bolt_fails_its_batch_and_emits_nothing(say, expected):
    with bench(Says(say)) as running:
        running.feed(1, 2)
        assert running.acked == []
        assert {f.cause for f in running.failures.values()} == {FailureCause.MISUSE}
        assert expected in running.failures[1].reason
        assert running.tuples("b0") == []


@pytest.mark.parametrize(
    "parents",
    [
        [2, 0, 2],
        np.array([2, 0, 2], dtype=np.uint8),
        pa.array([2, 0, 2]),
        pa.chunked_array([[2, 0], [2]]),
    ],
    ids=["list", "numpy", "arrow", "chunked"],
)
def test_parents_may_come_in_any_order_and_form(parents):
    def raises_on_y(bolt, tup, collector):
        if tup["value"] == "y":
            raise ValueError("y")

    with bench(Says(lambda b, c: c.emit_batch(OUT, parents=parents)), Calls(raises_on_y)) as running:
        running.feed("a", "b", "c")
        assert running.acked == ["b", "c"]
        assert [*running.failures] == ["a"]


def test_rows_emitted_without_parents_hang_on_nothing():
    def raises(bolt, tup, collector):
        raise ValueError(tup["value"])

    with bench(Says(lambda b, c: c.emit_batch(OUT, parents=None)), Calls(raises)) as running:
        running.feed("a")
        assert running.acked == ["a"]


@pytest.mark.parametrize("parents", [None, [], pa.array([], pa.int64())])
def test_a_batch_without_rows_is_nothing(parents):
    empty = OUT.slice(0, 0)
    with bench(Says(lambda b, c: c.emit_batch(empty, parents=parents)), Words()) as running:
        running.feed("a")
        assert running.acked == ["a"]
        assert running.running.stats()["b0"].total.emitted == 0


def test_an_arrow_bolt_that_reports_an_error_fails_nothing():
    with bench(Says(lambda b, c: c.report_error(ValueError("said")))) as running:
        running.feed("a")
        assert running.acked == ["a"]
        assert running.reasons("b0") == ["ValueError: said"]


class Typed(ArrowBolt):
    """Casts what it is given to its declared type."""

    outputs = pa.schema([pa.field("value", pa.int32(), nullable=False)])

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch, parents=range(batch.num_rows))


def test_a_batch_is_cast_to_the_declared_types_and_refused_if_it_does_not_fit():
    with bench(Typed(), outputs=("value",)) as running:
        for values in ([1, 2], [1.0], [2.5], ["x"], [2**40], [None]):
            running.feed(*(([value], str(value)) for value in values))
        assert sorted(running.acked) == ["1", "1.0", "2"]
        assert all(f.cause is FailureCause.MISUSE for f in running.failures.values())
        assert running.tuples("b0") == [1, 2, 1]


def test_a_value_that_arrow_has_no_type_for_fails_its_tuple_alone_before_an_arrow_bolt():
    with bench(Says(lambda b, c: None)) as running:
        running.feed(([{1: 2}], "a"), (["text"], "b"))
        assert running.acked == ["b"]
        assert "Arrow finds no common type" in running.failures["a"].reason
