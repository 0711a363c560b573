"""The oracle runs until nothing moves, keeps its clock still, and sends all through the same codecs."""

from __future__ import annotations

import logging
import math
from decimal import Decimal
from enum import Enum
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config, EndOfStream, KeyValueState, Retry, Spout, TopologyBuilder, bolt
from acktree.core.tracking.verdicts import FailureKind
from acktree.dataframe_spout import DataFrameSpout
from acktree.errors import MisuseError, SpoutError
from acktree.testing import FeederSpout, LocalCluster, complete_topology, local_host
from tests.drawn import drawn
from tests.unit.tasks.bolts.bolt_harness import Calls, CallsByHand, bench, in_a_row


def test_the_example_of_the_docstring():
    with LocalCluster() as cluster:
        feeder = FeederSpout(["line"])
        split = Calls(
            lambda bolt, tup, collector: [collector.emit([word]) for word in tup["line"].split()] and None
        )
        cluster.submit(in_a_row(feeder, split), config=Config(message_timeout_secs=30))
        feeder.feed(["a b"], message_id=1)
        assert cluster.tuples("b0") == []
        cluster.advance(secs=0)
        assert feeder.acked == [1]
        assert feeder.failed == []
        assert cluster.tuples("b0") == [["a"], ["b"]]


# ---- values keep their types -----------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


odd = st.sampled_from(
    [
        *((1, 2), [1, 2], (), [], {}, {"a": (1,)}, {1, 2}, frozenset({1}), (1, [2.0, {"three": (3,)}])),
        *(None, 1, 1.0, True, False, 0, -0.0, math.inf, 2**80, -(2**63), 2**63, 1j, Decimal("1.10")),
        *("", "\ud800", b"", b"\xff", Fraction(1, 3), Colour.RED, range(3), slice(1, 2), ..., int),
        *(np.int8(3), np.float32(0.5), np.str_("x")),
    ]
)


def exactly(value):
    """A value with all its types, -0.0 and the order of dicts included."""
    return (
        repr(value),
        type(value),
        [exactly(item) for item in value] if isinstance(value, list | tuple) else None,
    )


@settings(max_examples=drawn(60))
@given(st.lists(st.lists(odd, min_size=2, max_size=2), min_size=1, max_size=6))
def test_untyped_values_arrive_exactly_as_emitted_beside_any_other_values(rows):
    def passes(bolt, tup, collector):
        collector.emit(tup.values)

    passing = Calls(passes)
    passing.outputs = ["a", "b"]
    with bench(passing, passing, outputs=("a", "b")) as running:
        running.feed(*((row, n) for n, row in enumerate(rows)))
        assert running.acked == [*range(len(rows))]
        for component in ("source", "b0", "b1"):
            assert exactly(running.tuples(component)) == exactly(rows)


def test_not_a_number_arrives_as_not_a_number():
    with bench(Calls(lambda bolt, tup, collector: tup["value"])) as running:
        running.feed(([math.nan], 1), ([1.5], 2))
        assert [math.isnan(value) for value in running.tuples("b0")] == [True, False]


def test_a_value_that_a_bolt_changes_is_not_changed_for_other_bolts():
    def changes(bolt, tup, collector):
        tup["value"].append("changed")
        return tup["value"]

    def build(builder):
        for name in ("one", "two"):
            builder.set_bolt(name, Calls(changes)).global_grouping("source")

    with bench(build=build) as running:
        running.feed((([["x"]]), 1))
        for name in ("one", "two"):
            assert running.tuples(name) == [["x", "changed"]]
        assert running.tuples("source") == [["x"]]


# ---- time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_secs", [1, 8, 30])
def test_a_message_times_out_never_before_the_timeout_and_at_the_latest_an_eighth_later(timeout_secs):
    with bench(
        CallsByHand(lambda bolt, tup: None), config=Config(message_timeout_secs=timeout_secs)
    ) as running:
        running.cluster.advance(timeout_secs * 0.37)
        running.feed("x")
        running.cluster.advance(timeout_secs * 0.999)
        assert running.failures == {}
        running.cluster.advance(timeout_secs * 0.127)
        failure = running.failures["x"]
        assert failure.kind is FailureKind.TIMED_OUT
        assert failure.reason.startswith(f"no verdict within message_timeout_secs={timeout_secs}: bolt 'b0' ")


def test_the_clock_moves_only_with_advance():
    with bench(CallsByHand(lambda bolt, tup: None)) as running:
        for n in range(5):
            running.feed(n)
        assert running.cluster.now_ms == running.running.now_ms == 0
        running.cluster.advance(2.5)
        assert running.cluster.now_ms == 2_500


@pytest.mark.parametrize("secs", [-5, "5", math.nan, math.inf, None], ids=repr)
def test_the_clock_never_goes_back_and_takes_only_seconds(secs):
    with LocalCluster() as cluster:
        running = cluster.submit(in_a_row(FeederSpout(["value"]), Calls(print)))
        cluster.advance(np.float64(7))
        with pytest.raises(MisuseError, match="the clock cannot advance by"):
            cluster.advance(secs)
        running.await_termination(-3)
        assert cluster.now_ms == 7_000


def test_the_clock_passes_through_every_deadline_on_its_way():
    retry = Retry(max_attempts=4, backoff_secs=(1, 100), jitter=False)

    def fails(bolt, tup, collector):
        raise ValueError(tup.attempt)

    with bench(Calls(fails), retry=retry) as running:
        running.feed("x")
        running.cluster.advance(10)
        assert running.failures["x"].attempt == 4
        assert [error.at_ms for error in running.running.errors] == [0, 1_000, 3_000, 7_000]


def test_several_topologies_share_one_clock_and_are_asked_for_by_component():
    with LocalCluster() as cluster:
        feeders = [FeederSpout(["value"]) for _ in range(2)]
        for number, feeder in enumerate(feeders):
            builder = TopologyBuilder(f"topology{number}")
            builder.set_spout(f"source{number}", feeder)
            builder.set_bolt("b", Calls(lambda bolt, tup, collector: tup["value"])).global_grouping(
                f"source{number}"
            )
            cluster.submit(builder.create_topology())
        feeders[0].feed([1], message_id=1)
        feeders[1].feed([2], message_id=2)
        cluster.advance(1)
        assert cluster.tuples("b") == [[1], [2]]
        assert cluster.tuples("source1") == [[2]]
        with pytest.raises(MisuseError, match="no topology here has a component 'c'"):
            cluster.tuples("c")


@pytest.mark.parametrize(
    ("component", "stream", "words", "fix"),
    [
        ("sorce", "default", "component 'sorce'", "did you mean 'source'?"),
        ("source", "erors", "component 'source' has no stream 'erors'", "did you mean 'errors'?"),
        ("source", "default", "component 'source' has no stream 'default'", "there is only 'errors'"),
        ("b0", "errors", "component 'b0' has no stream 'errors'", "there is only 'default'"),
    ],
)
def test_a_misspelt_name_is_no_empty_list_of_tuples(component, stream, words, fix):
    builder = TopologyBuilder("t")
    builder.set_spout("source", FeederSpout({"errors": ["value"]}))
    builder.set_bolt("b0", bolt()(print)).shuffle_grouping("source", stream="errors")
    topology = builder.create_topology()
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        for shown in (running, complete_topology(topology, {"source": {"errors": [[1]]}})):
            assert shown.tuples("b0") == []
            with pytest.raises(MisuseError, match=words) as refused:
                shown.tuples(component, stream)
            assert refused.value.fix == fix
        with pytest.raises(MisuseError):
            cluster.tuples(component, stream)


def test_the_fix_for_a_component_that_is_not_there_fits_the_cause():
    with LocalCluster() as cluster:
        with pytest.raises(MisuseError) as empty:
            cluster.tuples("b0")
        cluster.submit(in_a_row(FeederSpout(["value"]), Calls(print)))
        with pytest.raises(MisuseError) as misspelt:
            cluster.tuples("sorce")
    with pytest.raises(MisuseError) as closed:
        cluster.tuples("b0")
    assert empty.value.fix == "submit the topology first"
    assert misspelt.value.fix == "did you mean 'source'?"
    assert "before the `with` block ends" in closed.value.fix


# ---- spouts ----------------------------------------------------------------------------------------------


class Scripted(Spout):
    """Raises what it is given, or emits it."""

    outputs = ["value"]

    def __init__(self, *script, at_open=None):
        self.script, self.at_open, self.calls = list(script), at_open, []

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector = collector
        self.calls.append("open")
        if self.at_open is not None and len(self.calls) > 1:
            raise self.at_open

    def next_tuple(self):
        word = self.script.pop(0) if self.script else EndOfStream()
        if isinstance(word, BaseException):
            raise word
        self.collector.emit([word], message_id=word)

    def ack(self, message_id):
        self.calls.append(("ack", message_id))

    def close(self):
        self.calls.append("close")


def test_a_spout_that_raises_now_and_then_is_asked_again():
    spout = Scripted(*(ValueError(n) if n % 4 else n for n in range(1, 13)))
    with bench(Calls(lambda bolt, tup, collector: None), feeder=spout) as running:
        running.cluster.advance()
        assert [call for call in spout.calls if call[0] == "ack"] == [("ack", n) for n in (4, 8, 12)]
        assert running.running.has_ended
        assert running.running.stats()["source"].total.errors == 9


def test_a_spout_that_keeps_raising_does_not_stop_the_others():
    class Broken(Scripted):
        def next_tuple(self):
            raise ConnectionError("gone")

    feeder = FeederSpout(["value"])

    def build(builder):
        builder.set_spout("broken", Broken())
        builder.set_bolt("b", Calls(lambda bolt, tup, collector: None)).global_grouping(
            "source"
        ).global_grouping("broken")

    with bench(build=build, feeder=feeder) as running:
        running.feed(1)
        assert running.acked == [1]
        assert not running.running.has_ended
        assert running.running.stats()["broken"].total.errors >= len(running.reasons("broken")) >= 1


def test_an_open_that_raises_stops_the_topology_with_its_reason_and_closes_what_was_open():
    spout = Scripted(at_open=ConnectionError("no broker"))
    builder = TopologyBuilder("t")
    builder.set_spout("source", spout, parallelism=2)
    builder.set_bolt("b", Calls(print)).global_grouping("source")
    with LocalCluster() as cluster:
        with pytest.raises(
            SpoutError, match="spout 'source' could not be opened: ConnectionError: no broker"
        ) as stopped:
            cluster.submit(builder.create_topology())
        assert isinstance(stopped.value.__cause__, ConnectionError)
        assert spout.calls == ["open", "open", "close"]
        cluster.advance(100)  # nothing is left of it


def test_leaving_the_block_closes_every_spout():
    spout = Scripted("x")
    with bench(Calls(lambda bolt, tup, collector: None), feeder=spout) as running:
        running.cluster.advance()
    assert spout.calls == ["open", ("ack", "x"), "close"]
    with pytest.raises(RuntimeError, match="out of the block"), bench(Calls(print), feeder=Scripted()):
        raise RuntimeError("out of the block")


def test_a_dataframe_spout_is_refused_with_the_way_to_test():
    class Frame:
        columns, isStreaming = ["value"], True  # noqa: N815  # Spark's

    with LocalCluster() as cluster, pytest.raises(MisuseError, match="only Spark can run"):
        cluster.submit(in_a_row(DataFrameSpout(Frame()), Calls(print)))


def test_a_round_takes_a_bounded_number_of_messages_and_the_next_one_the_others(monkeypatch):
    monkeypatch.setattr(local_host, "ROUND_MESSAGES", 10)
    micro_batches = []
    with bench(Calls(lambda bolt, tup, collector: None)) as running:
        levels = running.running._levels
        run = levels.run
        monkeypatch.setattr(
            levels,
            "run",
            lambda chunks, at_ms, _: (
                micro_batches.append(sum(len(each) for _, each in chunks)) or run(chunks, at_ms)
            ),
        )
        running.feed(*range(35))
        assert running.acked == [*range(35)]
        assert micro_batches == [10, 10, 10, 5]


def test_no_chunk_is_kept_of_messages_that_have_their_verdict():
    with bench(Calls(lambda bolt, tup, collector: None), retry=Retry(max_attempts=2)) as running:
        running.feed(*(([n], n if n % 2 else None) for n in range(20)))
        assert running.running._inbox.chunks == {}


# ---- the handle ------------------------------------------------------------------------------------------


def test_a_topology_ends_when_its_spouts_have_and_every_message_has_its_verdict():
    hold = CallsByHand(lambda bolt, tup: None if tup["value"] == "hold" else bolt.collector.ack(tup))
    with bench(hold) as running:
        running.feed("x", "hold")
        assert not running.running.has_ended
        running.feeder.end()
        running.cluster.advance()
        assert not running.running.has_ended
        running.cluster.advance(40)
        assert running.running.has_ended


def test_the_statistics_say_what_is_open_and_since_when():
    with bench(CallsByHand(lambda bolt, tup: None)) as running:
        assert running.running.stats()["source"].oldest_open_secs is None
        running.feed("x")
        running.cluster.advance(2)
        running.feed("y")
        running.cluster.advance(1)
        source = running.running.stats()["source"]
        assert (source.open, source.oldest_open_secs) == (2, 3.0)
        assert "source" in running.running.stats().table()


def test_a_topology_may_be_stopped_and_started():
    with bench(Calls(lambda bolt, tup, collector: None)) as running:
        running.running.deactivate()
        running.feed(1)
        assert running.acked == []
        running.running.activate()
        running.cluster.advance()
        assert running.acked == [1]


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_partitions_change_no_count(partitions):
    def counts(bolt, tup, collector):
        bolt.counts[tup["value"]] = bolt.counts.get(tup["value"], 0) + 1
        return tup["value"], bolt.counts[tup["value"]]

    def build(builder):
        builder.set_bolt("pass", Calls(lambda b, t, c: t["value"]), parallelism=3).shuffle_grouping("source")
        counting = Calls(counts, remembers=("counts",), counts=KeyValueState)
        builder.set_bolt("count", counting, parallelism=3).fields_grouping("pass", ["value"])

    with bench(build=build, config=Config(partitions=partitions)) as running:
        for batch in range(3):
            running.feed(*(([n % 7], (batch, n)) for n in range(70)))
        assert len(running.acked) == 210
        assert sorted(running.tuples("count")) == sorted(
            (n, count) for n in range(7) for count in range(1, 31)
        )


def test_debug_logs_every_tuple_as_on_spark(caplog):
    @bolt(outputs={"default": ["word"], "unused": ["word"]})
    def words(tup):
        yield from ([word] for word in tup["value"].split())

    with caplog.at_level(logging.INFO, "acktree.tuples"):
        with bench(words, config=Config(debug=True)) as running:
            running.feed("a b")
        logged = [record.getMessage() for record in caplog.records if record.name == "acktree.tuples"]
        assert sorted(logged) == [
            "component=b0 stream=default values=('a',)",
            "component=b0 stream=default values=('b',)",
            "component=source stream=default values=('a b',)",
        ]
        caplog.clear()
        with bench(words) as running:
            running.feed("a b")
        assert [record for record in caplog.records if record.name == "acktree.tuples"] == []


def test_a_message_that_failed_is_logged_with_its_reason_as_on_spark(caplog):
    @bolt(outputs=["n"])
    def parse(tup):
        yield [int(tup["text"])]

    texts = FeederSpout(["text"])
    builder = TopologyBuilder("numbers")
    builder.set_spout("texts", texts, retry=Retry(max_attempts=2, backoff_secs=(1, 1)))
    builder.set_bolt("parse", parse).shuffle_grouping("texts")
    with caplog.at_level(logging.INFO, "acktree"), LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for text in ("17", "x"):
            texts.feed([text], message_id=text)
        cluster.advance(9)
    reason = "reason=ValueError: invalid literal for int() with base 10: 'x'"
    assert [each.getMessage() for each in caplog.records if "FAILED" in each.getMessage()] == [
        f"topology=numbers spout=texts message='x' attempt={attempt}/2 FAILED component=parse {reason}"
        for attempt in (1, 2)
    ]


class Replays(Scripted):
    """Emits what failed again at once: Storm's own pattern."""

    def __init__(self, *words, most=None):
        super().__init__(*words)
        self.most, self.fails = most, 0

    def next_tuple(self):
        if self.script:
            super().next_tuple()

    def fail(self, message_id, failure):
        self.fails += 1
        if self.most is None or self.fails < self.most:
            self.script.append(message_id)


def test_a_message_that_is_emitted_again_and_fails_for_ever_ends_advance_with_its_name():
    with bench(
        Calls(lambda bolt, tup, collector: int(tup["value"])), feeder=Replays("1", "poison")
    ) as running:
        with pytest.raises(SpoutError, match="message 'poison' of spout 'source' failed 100 times") as raised:
            running.cluster.advance()
        assert "invalid literal for int" in raised.value.what
        with pytest.raises(SpoutError):
            running.running.await_idle(10)


def test_a_spout_that_gives_up_by_itself_is_left_alone():
    spout = Replays("poison", most=99)
    with bench(Calls(lambda bolt, tup, collector: int(tup["value"])), feeder=spout) as running:
        running.cluster.advance()
        assert spout.fails == 99


def test_a_spout_that_always_has_another_message_ends_advance_with_its_name(monkeypatch):
    class Endless(Scripted):
        def next_tuple(self):
            self.collector.emit([1], message_id=1)

    monkeypatch.setattr(local_host, "_MOST_MESSAGES", 15_000)
    with (
        bench(Calls(lambda bolt, tup, collector: None), feeder=Endless()) as running,
        pytest.raises(SpoutError, match="spout 'source' emitted 20,000 messages at one moment"),
    ):
        running.cluster.advance()


def test_what_is_emitted_at_one_moment_is_counted_anew_when_the_clock_moves(monkeypatch):
    monkeypatch.setattr(local_host, "_MOST_MESSAGES", 100)
    with bench(Calls(lambda bolt, tup, collector: None)) as running:
        for first in range(0, 400, 80):
            running.feed(*range(first, first + 80))
        assert len(running.acked) == 400


class Endless(Spout):
    """Always has another message."""

    outputs = ["n"]

    def open(self, config, context, collector):
        self.collector, self.count = collector, 0

    def next_tuple(self):
        self.count += 1
        self.collector.emit([self.count], message_id=self.count)

    def ack(self, message_id):
        TAKEN.append(message_id)


TAKEN: list[int] = []


@bolt(outputs=["n"])
def passed_on(tup):
    yield [tup["n"]]


@pytest.mark.parametrize("tasks", [1, 3])
def test_endless_spouts_emit_as_many_messages_as_run_is_told_and_all_get_their_verdict(tasks):
    TAKEN.clear()
    builder = TopologyBuilder("endless")
    builder.set_spout("endless", Endless(), parallelism=tasks)
    builder.set_bolt("b", passed_on).shuffle_grouping("endless")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        cluster.run(most_messages=25_000)
        assert len(cluster.tuples("b")) == len(TAKEN) == 25_000
        cluster.run(most_messages=5)
        assert len(cluster.tuples("b")) == len(TAKEN) == 25_005
        assert running.is_running


def test_the_clock_of_run_follows_the_machines():
    feeder = FeederSpout(["n"])
    with LocalCluster() as cluster:
        cluster.submit(
            in_a_row(feeder, CallsByHand(lambda *_: None)), config=Config(message_timeout_secs=0.05)
        )
        feeder.feed([1], message_id=1)
        feeder.end()
        cluster.run()  # until the message has its verdict
        assert cluster.now_ms >= 50
        assert [failure.kind for _, failure in feeder.failed] == [FailureKind.TIMED_OUT]


def test_run_ends_when_every_topology_has_ended():
    class Once(Endless):
        def next_tuple(self):
            if self.count:
                raise EndOfStream
            super().next_tuple()

    TAKEN.clear()
    with LocalCluster() as cluster:
        cluster.submit(in_a_row(Once()))
        cluster.run()
        assert TAKEN == [1]
