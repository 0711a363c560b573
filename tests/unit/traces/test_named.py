"""A spout names messages to be traced, and the trace outside that they belong to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import BasicBolt, Config, MisuseError, Retry, Spout, TopologyBuilder
from acktree.core.tracking.attempts import MOST_ATTEMPTS, NAMED, is_traced, number_of
from acktree.core.tracking.trace_parent import TraceParent
from acktree.tasks.spouts.trace_marks import TraceMarks
from acktree.testing import LocalCluster
from acktree.traces.spans import span_id_of, spans_of

OUTSIDE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = OUTSIDE[:-1] + "0"
RATE = 1e-9  # no message of these tests by itself
SEEN = []


class Emits(Spout):
    """Emits what it is given: (message id, attempt, trace)."""

    outputs = ["n"]

    def __init__(self, *messages):
        self.messages = [*messages]

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.messages:
            name, attempt, trace = self.messages.pop(0)
            self.collector.emit([name], message_id=name, attempt=attempt, trace=trace)


class Split(BasicBolt):
    outputs = ["n", "attempt"]

    def execute(self, tup, collector):
        for _ in range(3):
            collector.emit([tup["n"], tup.attempt])


class Check(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        SEEN.append((tup["n"], tup["attempt"], tup.attempt))
        if tup["n"].startswith("bad"):
            raise ValueError("bad")


def all_traces_of(*messages, rate=RATE, retry=None, acker_executors=None, advance=0, spout=Emits):
    SEEN.clear()
    builder = TopologyBuilder("named")
    builder.set_spout("source", spout(*messages), retry=retry)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("source")
    builder.set_bolt("check", Check(), 2).shuffle_grouping("split")
    config = Config(trace_sample_rate=rate, partitions=2, acker_executors=acker_executors)
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=config)
        cluster.advance(advance)
        return [running.traces.get(each.root) for each in running.traces.find()]


def traces_of(*messages, **settings):
    found = all_traces_of(*messages, **settings)
    return {f"{each.message.message_id} {each.message.attempt}": each for each in found}


def test_a_named_message_is_traced_with_its_whole_tree_and_others_are_not():
    found = traces_of(("a", 1, True), ("b", 1, False), ("c", 1, OUTSIDE), ("d", 1, UNSAMPLED), ("e", 1, "x"))
    assert found.keys() == {"'a' 1", "'c' 1"}
    for trace in found.values():
        assert [each.component for each in trace.tuples] == ["source", "split", *["check"] * 3]
        assert trace.message.verdict == "ACKED"
    assert (found["'a' 1"].message.traceparent, found["'c' 1"].message.traceparent) == (None, OUTSIDE)


@pytest.mark.parametrize("fails", [False, True])
def test_messages_of_a_chunk_beyond_the_bound_have_all_but_their_ids(monkeypatch, fails):
    monkeypatch.setattr("acktree.traces.recorder._MOST_IDS", 1)

    class Together(Emits):
        def next_tuple(self):
            while self.messages:
                super().next_tuple()

    messages = [(f"{'bad' if fails else 'good'} {n}", 1, OUTSIDE) for n in range(4)]
    found = all_traces_of(*messages, rate=0.02, spout=Together, retry=Retry(max_attempts=2), advance=60)
    traces = [each.message for each in found]
    assert {each.verdict for each in traces} == {"FAILED" if fails else "ACKED"}
    assert {each.traceparent for each in traces} == {OUTSIDE}
    assert [each.attempt for each in traces] == ([2] * 4 if fails else []) + [1] * 4
    assert [each.message_id for each in traces].count(None) == 3  # each retry is a chunk of its own


def test_no_user_sees_the_mark_in_an_attempt():
    found = traces_of(("a", 1, True), ("b", 7, True), ("c", 7, False))
    assert found.keys() == {"'a' 1", "'b' 7", "'c' 7"}
    assert {*SEEN} == {("a", 1, 1), ("b", 7, 7), ("c", 7, 7)}


def test_attempts_that_are_used_up_are_counted_without_the_mark():
    found = traces_of(("a", 2, True), ("b", 4, True), retry=Retry(max_attempts=3))
    assert found.keys() == {"'a' 2"}
    assert {name for name, *_ in SEEN} == {"a"}


@pytest.mark.parametrize("attempt", [1, 7])
def test_the_retries_of_a_named_message_are_traced_at_any_rate(attempt):
    given = [("bad", attempt, True), ("bad too", attempt, False), ("c", attempt, True)]
    found = traces_of(*given, retry=Retry(max_attempts=attempt + 2), advance=600)
    later = {f"'bad too' {attempt + nth}" for nth in range(3) if attempt + nth > 1}  # not for their names
    assert found.keys() == {f"'bad' {attempt + nth}" for nth in range(3)} | {f"'c' {attempt}"} | later
    assert {(name, number) for name, *numbers in SEEN for number in numbers} >= {("bad", attempt + 2)}


def test_messages_with_the_same_id_have_their_own_traceparents():
    other = OUTSIDE.replace("4bf92f", "5bf92f")
    given = [("a", 1, OUTSIDE), ("a", 2, other), ("a", 3, True), ("b", 1, False), ("a", 4, other)]
    found = traces_of(*given)
    seen = {name: trace.message.traceparent for name, trace in found.items()}
    assert seen == {"'a' 1": OUTSIDE, "'a' 2": other, "'a' 3": None, "'a' 4": other}


def test_a_message_id_that_has_no_hash_is_traced_beside_one_with_a_traceparent():
    found = traces_of((["no hash"], 1, True), ("b", 1, OUTSIDE))
    assert {each.message.traceparent for each in found.values()} == {None, OUTSIDE}


def test_another_attempt_has_the_next_number_and_belongs_to_the_same_trace_outside():
    found = traces_of(("bad", 1, OUTSIDE), retry=Retry(max_attempts=2), advance=60)
    assert found.keys() == {"'bad' 1", "'bad' 2"}
    for trace in found.values():
        first = next(iter(spans_of(trace, "named", {})))
        parent = TraceParent.of(OUTSIDE)
        assert (first.trace_id, first.parent_id) == (parent.trace_id, parent.span_id)
        assert first.span_id == span_id_of(trace.message.root)
        assert {span.trace_id for span in spans_of(trace, "named", {})} == {parent.trace_id}


def test_the_off_switch_and_no_ackers_win():
    assert traces_of(("a", 1, True), rate=0) == {}
    assert traces_of(("a", 1, True), ("b", 1, OUTSIDE), acker_executors=0) == {}
    assert {name for name, *_ in SEEN} == {"a", "b"}


@pytest.mark.parametrize(("name", "trace"), [(None, True), ("a", 5), ("a", b"00-..")])
def test_what_cannot_be_traced_is_refused(name, trace):
    class Wrong(Emits):
        def next_tuple(self):
            if self.messages:
                self.messages.clear()
                with pytest.raises(MisuseError, match="message id"):
                    self.collector.emit([1], message_id=name, trace=trace)
                self.collector.emit([2], message_id="right")

    builder = TopologyBuilder("wrong")
    builder.set_spout("source", Wrong("one"))
    builder.set_bolt("split", Split()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        cluster.advance()
        assert running.stats()["source"].total.emitted == 1


@given(st.lists(st.integers(1, MOST_ATTEMPTS), min_size=1), st.floats(1e-9, 0.9))
def test_the_mark_names_a_message_at_any_rate_and_changes_no_number(numbers, rate):
    plain = np.array(numbers, dtype=np.int32)
    marked = plain | np.int32(NAMED)
    names = np.arange(len(numbers), dtype=np.int64)
    assert number_of(marked).tolist() == numbers
    for share in (rate, 0.0):
        put_on = TraceMarks(lambda: share, 1e-9, 1e-9, lambda: None).put_on  # noqa: B023  # called at once
        found = put_on(marked, names, names, 0)
        assert is_traced(found).tolist() == [bool(share)] * len(numbers)
        assert number_of(found).tolist() == numbers


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_traceparent_is_read_as_it_is_written(trace_id, span_id, sampled):
    parent = TraceParent(trace_id, span_id, sampled)
    assert TraceParent.of(str(parent)) == parent
    assert TraceParent.of(f"cc-{str(parent)[3:]}-later") == parent


@given(st.text() | st.text("0123456789abcdef-", min_size=50, max_size=60))
def test_any_other_text_is_no_traceparent(text):
    found = TraceParent.of(text)
    assert found is None or text[:2] != "ff"


@pytest.mark.parametrize(
    "text",
    ["", OUTSIDE.upper(), f"ff{OUTSIDE[2:]}", f"{OUTSIDE}-x", f"00-{'0' * 32}{OUTSIDE[35:]}", f" {OUTSIDE}"],
)
def test_wrong_headers_are_none(text):
    assert TraceParent.of(text) is None
