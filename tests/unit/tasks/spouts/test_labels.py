"""What people call a message is found with it wherever it fails, and user code never meets it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import BasicBolt, Config, EndOfStream, MisuseError, Retry, Spout, TaskHook, TopologyBuilder
from acktree.connectors.message_names import MessageNames, names_by_row
from acktree.core.spouts.pending import one_by_one
from acktree.dead_letters.table import Which
from acktree.driver.logs.run_log import RunLog
from acktree.errors import ConfigError
from acktree.tasks.spouts.keys.labels import Labelled, checked_label, label_of
from acktree.tasks.spouts.retries import Redriven
from acktree.tasks.spouts.watched_ids import WatchedIds
from acktree.testing import LocalCluster
from acktree.texts import MOST_LABEL
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits

LABELS = st.none() | st.text(max_size=5) | st.just("x" * 300)


@given(st.text(max_size=3 * MOST_LABEL) | st.text("\n\x00\ud800\u202e", max_size=MOST_LABEL))
def test_a_label_is_one_printable_line_of_bounded_length_and_stays_what_it_is(text):
    label = checked_label(text, "")
    assert label.isprintable()
    assert len(label) <= MOST_LABEL
    assert label.encode() == label.encode("utf-8", "strict")
    assert checked_label(label, "") == label
    if text.isprintable() and len(text) <= MOST_LABEL:
        assert label == text


@given(st.text(max_size=MOST_LABEL), st.text(max_size=MOST_LABEL))
def test_long_labels_that_differ_at_their_end_are_not_one(one, other):
    start = "x" * 300
    assert (checked_label(start + one, "") == checked_label(start + other, "")) == (one == other)


SEEN = []


class Noted(TaskHook):
    def spout_ack(self, info):
        SEEN.append(info.message_id)

    def spout_fail(self, info):
        SEEN.append(info.message_id)


class Orders(Spout):
    """Emits each number with the label that it is given, and notes its verdicts."""

    outputs = ["n"]

    def __init__(self, labels):
        self.labels, self.verdicts = list(labels), {}

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.at = collector, 0

    def next_tuple(self):
        if self.at == len(self.labels):
            raise EndOfStream
        self.at += 1
        self.collector.emit([self.at], message_id=self.at, label=self.labels[self.at - 1])

    def ack(self, message_id):
        assert type(message_id) is int
        self.verdicts[message_id] = "acked"

    def fail(self, message_id, failure):
        assert type(message_id) is int
        self.verdicts[message_id] = "failed"


class Third(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        if tup["n"] % 3 == 0:
            raise ValueError("a third")


def ran(cluster, spout, retry=None, **settings):
    builder = TopologyBuilder("labels")
    builder.set_spout("orders", spout, retry=retry)
    builder.set_bolt("third", Third()).shuffle_grouping("orders")
    running = cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=1, **settings))
    for _ in range(8):
        cluster.advance(1)
    return running


@given(st.lists(LABELS, max_size=7))
def test_letters_and_traces_have_the_label_of_their_message_and_spouts_and_hooks_the_id(labels):
    spout = Orders(labels)
    SEEN.clear()
    expected = {n: checked_label(label or "", "") or None for n, label in enumerate(labels, 1)}
    with LocalCluster() as cluster:
        running = ran(cluster, spout, Retry(max_attempts=2, backoff_secs=(1, 1)), task_hooks=[Noted()])
        dead = {n: label for n, label in expected.items() if n % 3 == 0}
        assert spout.verdicts == {n: "failed" if n in dead else "acked" for n in expected}
        assert (sorted({*SEEN}), {*map(type, SEEN)} <= {int}) == ([*expected], True)
        assert {int(each.message_id_repr): each.label for each in running.dead_letters} == dead
        traced = {int(each.message_id): each.label for each in running.traces.find()}
        assert traced == expected
        for label in {*expected.values()} - {None}:
            assert [each.label for each in running.dead_letters.find(label=label)] == [
                each for each in dead.values() if each == label
            ]
            assert {each.label for each in running.traces.find(label=label)} == {label}
        for label in {*labels} - {None, ""}:  # as the spout gave it
            assert {each.label for each in running.traces.find(label=label)} == {checked_label(label, "")}


def test_a_letter_that_is_sent_again_and_dies_again_keeps_its_label():
    with LocalCluster() as cluster:
        running = ran(cluster, Orders([None, None, "order-17"]), Retry(max_attempts=1))
        running.dead_letters.redrive([1])
        for _ in range(4):
            cluster.advance(1)
        assert [each.label for each in running.dead_letters] == ["order-17"] * 2
        assert running.dead_letters.dead_again(running.dead_letters) == {1: 2}
        assert "label     order-17" in running.dead_letters.get([2])[0].story()


def test_a_spout_without_a_retry_is_given_the_id_too():
    spout = Orders(["a", "b", "c"])
    with LocalCluster() as cluster:
        ran(cluster, spout)
    assert spout.verdicts == {1: "acked", 2: "acked", 3: "failed"}


def test_without_ackers_a_label_is_dropped_and_the_spout_is_given_the_id():
    spout = Orders(["a", "b"])
    with LocalCluster() as cluster:
        ran(cluster, spout, acker_executors=0)
    assert spout.verdicts == {1: "acked", 2: "acked"}


class Stored(Source):
    """Its queue delivers nothing again, so the inbox keeps what was emitted."""

    redelivers = False


def test_a_label_comes_back_with_its_message_after_a_restart():
    retry = Retry(max_attempts=2, backoff_secs=(1, 1))
    first = Harness(Stored(emits(("x", 1), ("y", 2), label="order-17"), emits(("z", 3))), retry)
    first.run(2)
    first.verdict(failed=[0])
    first.now_ms = 2_000
    first.run()  # the next attempt of the first message is another chunk
    again = Harness(Stored(), Retry(max_attempts=1), first_sequence=100)
    again.inbox.chunks = dict(first.inbox.chunks)
    for number in again.inbox.chunks:
        again.task.recovery.reopen(number, again.chunk(number))
    again.verdict(failed=[0, 1, 2, 3])
    found = [(each.message_id_repr, each.label) for each in again.letters]
    assert sorted(found) == [("1", "order-17"), ("2", "order-17"), ("3", None)]
    assert {call[1] for call in again.spout.delivered()} == {1, 2, 3}


def test_what_the_queue_brings_back_is_lost_by_its_id_whatever_its_label():
    harness = Harness(Source(emits(("x", 1), ("y", 2), label="one"), emits(("z", 3), label="two")))
    harness.run()
    harness.spout.collector.lost([1])
    assert [each.message_id for each in harness.task.oldest_open(9)] == [Labelled(2, "one")]
    harness.spout.collector.emit(["w"], message_id=4, label="three")
    harness.spout.collector.lost([4])
    assert [*one_by_one(harness.task._open_ids(10**15))] == [2]
    harness.verdict(acked=[0, 1])
    assert harness.spout.delivered() == [("ack", 2)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_id": 1, "label": 17}, "the label 17 is int, and no text"),
        ({"message_id": 1, "label": b"x"}, "and no text"),
        ({"message_id": 1, "label": 10**5000}, "is int, and no text"),
        ({"label": "order-17"}, "label='order-17' and no message id"),
        ({"key": 10**5000}, "key=.* and no message id"),
    ],
)
def test_a_label_that_is_none_or_of_no_message_is_refused_and_nothing_is_emitted(options, said):
    harness = Harness(Source())
    with pytest.raises(MisuseError, match=said):
        harness.spout.collector.emit(["x"], **options)
    assert harness.run() == []


def test_the_log_names_a_failed_message_by_its_id_and_its_label(caplog):
    caplog.set_level("INFO", "acktree")
    log = RunLog("orders")
    log.failed("source", 2, [(Labelled((0, 131), "order-17"), 1), (7, 1)], BROKEN, 3)
    assert "message=(0, 131) label='order-17' attempt=1/3" in caplog.text
    assert "message=7 attempt=1/3" in caplog.text


def test_a_message_is_watched_by_its_label_as_by_its_id():
    watched = WatchedIds(lambda: 0)
    watched.add(["order-17", 4], 60)
    ids = [Labelled(1, "order-17"), Labelled(2, "order-18"), 3, Labelled(4, "x"), Redriven(5, "order-17")]
    assert watched.names.among(ids).tolist() == [True, False, False, True, True]


MESSAGE = {
    "body": b'{"order": 17, "list": [1], "yes": true}',
    "headers": {"order": "A-1", "n": 3, "b": b"\xff", b"raw": b"r"},
}
PLACES = {"dicts": {"header": "headers"}, "properties": ("message_id",)}


def named(place, values=MESSAGE, report=pytest.fail):
    """What a message is called if both its label and its key are there."""
    return MessageNames("spout", place, place, **PLACES).of(values, report, {"message_id": "m-1"})


@pytest.mark.parametrize(
    ("place", "label", "key"),
    [
        ("header:order", "A-1", "A-1"), ("header:n", "3", 3), ("header:b", "\\xff", b"\xff"),
        ("header:raw", "r", b"r"), ("header:absent", None, None), ("body:order", "17", 17),
        ("body:list", None, None), ("body:yes", None, None), ("body:absent", None, None),
        ("message_id", "m-1", "m-1"), (lambda message: message["headers"]["order"].lower(), "a-1", "a-1"),
        (lambda _: None, None, None), (lambda _: 1.5, "1.5", None), (lambda _: "", None, None),
    ],
)  # fmt: skip
def test_label_and_key_are_read_where_the_spout_says(place, label, key):
    assert named(place) == (label, key)


@given(st.none() | st.binary(max_size=30) | st.just(b"[" * 100_000))
def test_a_body_from_which_no_name_can_be_read_has_none(body):
    values = {"body": body, "headers": None}
    assert named("header:x", values) == named("body:x", values) == (None, None)


def test_what_a_function_raises_is_reported_and_the_message_has_no_name():
    reported = []
    assert named(lambda message: message["absent"], report=reported.append) == (None, None)
    assert [type(each) for each in reported] == [KeyError] * 2


class Text(str):
    __slots__ = ()

    def __bool__(self):
        raise RuntimeError("no truth")

    def __str__(self):
        raise RuntimeError("no text")

    encode = __str__


class Blob(bytes):
    __len__ = decode = Text.__str__


@pytest.mark.parametrize(
    ("given", "label", "key", "raised"),
    [
        (10**5000, None, 10**5000, ValueError),  # Python prints no integer of more than 4,300 digits
        (Text("x"), None, "x", RuntimeError),
        (Blob(b"x"), "x", b"x", None),
    ],
    ids=["int", "text", "bytes"],
)
def test_a_value_that_cannot_be_shown_is_reported_as_what_a_function_raises(given, label, key, raised):
    reported = []
    names = named(lambda _: given, report=reported.append)
    assert names == (label, key)
    assert [type(each) for each in names if each is not None] == [type(each) for each in (label, key) if each]
    assert [type(each) for each in reported] == [raised] * (raised is not None)


@pytest.mark.parametrize("place", ["order", "header:", "message_id:x", "body", "field:x", "", 7])
@pytest.mark.parametrize("what", ["label", "key"])
def test_a_place_that_there_is_not_is_refused_with_those_that_there_are(what, place):
    with pytest.raises(ConfigError, match=f"{what} is") as refused:
        MessageNames("spout", **{"label": None, "key": None, what: place}, **PLACES)
    assert refused.value.fix == 'give "header:NAME", "body:FIELD", "message_id", or a function of the message'


def test_of_several_messages_each_has_its_name_and_without_places_none_has():
    messages = [({"body": b'{"a": "x"}'}, {}), ({"body": b""}, {})]
    names = MessageNames("spout", None, "body:a").of_all(messages, pytest.fail)
    assert names_by_row(names) == {"labels": [None, None], "keys": ["x", None]}
    assert names_by_row(MessageNames("spout", None, None).of_all(messages, pytest.fail)) == {}


@pytest.mark.parametrize("labels", [["a", None, "b"], pa.array(["a", None, "b"])], ids=["list", "arrow"])
def test_a_batch_has_a_label_for_each_row(labels):
    def emit(spout):
        batch = pa.record_batch({"value": ["1", "2", "3"]})
        spout.collector.emit_batch(batch, message_ids=[1, 2, 3], labels=labels, keys=["k", None, None])

    harness = Harness(Source(emit))
    harness.run()
    assert [label_of(each.message_id) for each in harness.task.oldest_open(9)] == ["a", None, "b"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"labels": ["a"]}, "emit_batch\\(\\) of 2 rows with 1 labels"),
        ({"labels": ["a", 7]}, "the label 7 is int, and no text"),
        ({"labels": ["a", "b"], "message_ids": None}, "2 labels and no message ids"),
    ],
)
def test_labels_that_do_not_fit_the_rows_of_a_batch_are_refused(options, said):
    harness = Harness(Source())
    batch = pa.record_batch({"value": ["1", "2"]})
    with pytest.raises(MisuseError, match=said):
        harness.spout.collector.emit_batch(batch, **{"message_ids": [1, 2], **options})
    assert harness.run() == []


@pytest.mark.parametrize("label", ["x" * 300, "order\n17"])
def test_a_label_is_found_by_its_whole_text_and_by_what_is_shown_of_it(label):
    shown = checked_label(label, "")
    for text in (label, shown):
        (condition,) = Which.of({"label": text}, None).conditions
        assert condition.value == shown
        watched = WatchedIds(lambda: 0)
        watched.add([text], 60)
        assert watched.names.among([Labelled(1, shown), Labelled(2, "other")]).tolist() == [True, False]
