"""The rows of a frame: decoded when read, and one handle for all of them that behaves as many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import bolt
from acktree.core.data.values import encode_rows, unpickled_columns
from acktree.core.tracking.lineage import Sparse
from acktree.tasks.bolts.rows import frame_rows as rows_module
from acktree.tasks.bolts.rows.frame_rows import InboundRows
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench

CELLS = st.one_of(st.text(max_size=3), st.integers(), st.none(), st.tuples(st.integers(0, 9)))


def rows_of(fields, rows):
    """Rows as they come off the wire."""
    columns = unpickled_columns(encode_rows(fields, rows))
    return InboundRows("a", "s", 1, tuple(fields), Sparse.untracked(len(rows)), columns)


@given(st.integers(0, 3).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), max_size=5)), st.data())
def test_in_whatever_way_rows_are_read_they_are_what_was_emitted(given_rows, data):
    fields = [f"f{place}" for place in range(len(given_rows[0]) if given_rows else 0)]
    rows = rows_of(fields, given_rows)
    reads = {
        "whole": lambda: [rows.values_of(row) for row in range(len(given_rows))],
        "by field": lambda: [tuple(rows.handle(row)[f] for f in fields) for row in range(len(given_rows))],
        "by place": lambda: [
            tuple(rows.handle(row)[place - len(fields)] for place in range(len(fields)))
            for row in range(len(given_rows))
        ],
        "all": lambda: list(rows.values),
        "each": lambda: [tuple(rows.handle(row)) for row in range(len(given_rows))],
    }
    for way in data.draw(st.permutations(list(reads))):
        read = reads[way]()
        assert read == given_rows
        assert [[*map(type, row)] for row in read] == [[*map(type, row)] for row in given_rows]


def test_a_field_is_decoded_when_somebody_reads_it_and_once(monkeypatch):
    decoded = []

    def signals_wait(column, where):
        decoded.append(str(column.type))
        return column.to_pylist()

    monkeypatch.setattr(rows_module, "decoded", signals_wait)
    rows = rows_of(["word", "count"], [("a", 1), ("b", 2)])
    assert [rows.handle(row)["count"] for row in (0, 1)] == [1, 2]
    assert rows.handle(1)[-1] == 2
    assert decoded == ["int64"]
    assert rows.values == rows.values == [("a", 1), ("b", 2)]
    assert decoded == ["int64", "string"]


KEEPING = {
    "itself": (lambda tup: tup, lambda kept: kept["value"]),
    "in a tuple": (lambda tup: (tup,), lambda kept: kept[0].values[0]),
    "one of its methods": (lambda tup: tup.__getitem__, lambda kept: kept(0)),
    "a generator over it": (
        lambda tup: (value for value in [tup] for _ in range(9)),
        lambda kept: next(kept)["value"],
    ),
    "an exception": (KeyError, lambda kept: kept.args[0]["value"]),
}


def remembered(way, tup, kept):
    """Keep a tuple in some way; returns what all that were kept say now."""
    keep, read = KEEPING[way]
    kept.append(keep(tup))
    return [*map(read, kept)]


@pytest.mark.parametrize("way", KEEPING)
@pytest.mark.parametrize("kind", ["basic", "generator", "hand"])
def test_a_tuple_that_somebody_keeps_stays_the_tuple_that_it_was(kind, way):
    def basic(bolt, tup, collector, kept=[]):  # noqa: B006  # for the life of the task, as a cache is
        return remembered(way, tup, kept)

    def hand(bolt, tup, kept=[]):  # noqa: B006
        bolt.collector.emit([remembered(way, tup, kept)], anchors=tup)
        bolt.collector.ack(tup)

    @bolt(outputs=["value"])
    def generator(tup, kept=[]):  # noqa: B006
        yield [remembered(way, tup, kept)]

    made = {"basic": Calls(basic), "hand": CallsByHand(hand), "generator": generator}[kind]
    with bench(made) as running:
        running.feed(1, 2, 3)
        assert running.tuples("b0") == [[1], [1, 2], [1, 2, 3]]
        assert running.acked == [1, 2, 3]


def test_a_tuple_that_waits_in_a_failures_traceback_stays_the_tuple_that_it_was():
    def execute(bolt, tup, collector, kept=[]):  # noqa: B006
        for error in kept:
            collector.emit([error.__traceback__.tb_next.tb_frame.f_locals["tup"]["value"]])
        kept.append(ValueError(tup["value"]))
        raise kept[-1]

    with bench(Calls(execute)) as running:
        running.feed(1, 2, 3)
        assert running.tuples("b0") == [1, 1, 2]
        assert {message: failure.reason for message, failure in running.failures.items()} == {
            number: f"ValueError: {number}" for number in (1, 2, 3)
        }


def test_two_tuples_of_one_frame_that_are_both_open_are_acked_each_for_itself():
    def execute(bolt, tup, kept=[]):  # noqa: B006
        kept.append(tup)
        if tup["value"] == 3:
            first, second, third = kept
            bolt.collector.ack(second)
            bolt.collector.fail(first, "the first")
            bolt.collector.emit(["joined"], anchors=[third])
            bolt.collector.ack(third)

    with bench(CallsByHand(execute)) as running:
        running.feed(1, 2, 3)
        assert running.acked == [2, 3]
        assert {message: failure.reason for message, failure in running.failures.items()} == {1: "the first"}
