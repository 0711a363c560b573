"""A message with a key runs once, as a model says; one whose key is open waits for the other one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import BasicBolt, Bolt, Config, KeyNumbers, Retry, Spout, TopologyBuilder
from acktree.tasks.spouts.keys.key_table import Keys
from acktree.tasks.spouts.keys.labels import id_of
from acktree.tasks.spouts.verdict_batch import VerdictBatch
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn
from tests.unit.tasks.spouts.spout_harness import BROKEN, Harness, Source, emits

RAN = []
SEEN = Counter()
VERDICTS = []  # what becomes of what a bolt holds, tick by tick


class Works(BasicBolt):
    """Notes what it is given, and raises where that says so."""

    outputs = ["key"]

    def execute(self, tup, collector):
        RAN.append(tup["n"])
        collector.emit([tup["key"]])
        if not tup["is_good"]:
            raise ValueError("not good")


class Counts(BasicBolt):
    outputs = []
    remembers = ["counts"]

    def prepare(self, config, context):
        self.counts = {}

    def execute(self, tup, collector):
        self.counts[tup["key"]] = self.counts.get(tup["key"], 0) + 1

    def flush(self, collector):
        SEEN.update(self.counts)
        self.counts = {}


def submitted(cluster, spout, bolt=None, *, retry=None, parallelism=1, **settings):
    RAN.clear()
    SEEN.clear()
    builder = TopologyBuilder("keyed")
    builder.set_spout("queue", spout, parallelism, retry=retry)
    builder.set_bolt("works", bolt or Works()).shuffle_grouping("queue")
    builder.set_bolt("counts", Counts(), exactly_once=True).fields_grouping("works", ["key"])
    return cluster.submit(builder.create_topology(), config=Config(**settings))


MESSAGES = st.lists(
    st.tuples(st.sampled_from([None, 1, "1", b"1"]), st.booleans(), st.booleans()), max_size=15
)


@settings(max_examples=drawn(30))
@given(MESSAGES, st.booleans())
def test_of_the_messages_with_a_key_those_run_that_a_model_says_which_takes_one_after_the_other(
    messages, redelivers
):
    feeder = FeederSpout(["n", "key", "is_good"], redelivers=redelivers)
    acked, failed, ran, decided = set(), set(), [], set()
    with LocalCluster() as cluster:
        running = submitted(cluster, feeder)
        for n, (key, is_good, pauses) in enumerate(messages):
            feeder.feed([n, repr(key), is_good], message_id=n, key=key)
            if (type(key), key) not in decided:
                ran.append(n)
            if (type(key), key) in decided or is_good:
                acked.add(n)
            else:
                failed.add(n)
            if is_good and key is not None:
                decided.add((type(key), key))
            if pauses:
                cluster.advance(1)
        assert running.await_idle(100)
        assert (set(feeder.acked), {n for n, _ in feeder.failed}) == (acked, failed)
        assert sorted(RAN) == ran
        assert len(feeder.acked) == len(acked)
        assert running.stats()["queue"].open == 0
    good = Counter(repr(messages[n][0]) for n in ran if messages[n][1])
    assert good == SEEN


@settings(max_examples=drawn(30))
@given(MESSAGES, st.integers(1, 3), st.booleans())
def test_two_tasks_and_a_retry_leave_each_key_that_was_acked_once(messages, parallelism, redelivers):
    feeder = FeederSpout(["n", "key", "is_good"], redelivers=redelivers)
    with LocalCluster() as cluster:
        retry = Retry(max_attempts=2, backoff_secs=(1, 1))
        running = submitted(cluster, feeder, retry=retry, parallelism=parallelism)
        for n, (key, is_good, pauses) in enumerate(messages):
            feeder.feed([n, repr(key), is_good], message_id=n, key=key)
            if pauses:
                cluster.advance(1)
        assert running.await_idle(1000)
        assert sorted([*feeder.acked, *(n for n, _ in feeder.failed)]) == [*range(len(messages))]
        assert len(running.dead_letters) == len(feeder.failed)
    good = {repr(key): 1 for key, is_good, _ in messages if is_good and key is not None}
    good["None"] = sum(is_good for key, is_good, _ in messages if key is None)
    assert +Counter(good) == SEEN


class Holds(Bolt):
    """Holds each tuple until the test says what becomes of it."""

    outputs = ["key"]
    remembers = ["held"]
    tick_secs = 1

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        RAN.append(tup["n"])
        self.held = [*self.held, tup]

    def tick(self, tup):
        if self.held and VERDICTS:
            verdict = VERDICTS.pop(0)
            for held in self.held:
                if verdict == "ack":
                    self.collector.emit([held["key"]], anchors=held)
                getattr(self.collector, verdict)(held)
            self.held = []


class Leases(Spout):
    """Emits, and loses, what the test lays into ``orders``."""

    outputs = ["n", "key"]

    def __init__(self):
        self.orders, self.verdicts, self.kept_alive = [], [], []

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        while self.orders:
            order, message_id = self.orders.pop(0)
            if order == "lose":
                self.collector.lost([message_id])
            else:
                self.collector.emit([message_id, "k"], message_id=message_id, key="k")

    def ack(self, message_id):
        self.verdicts.append(("acked", message_id))

    def fail(self, message_id, failure):
        self.verdicts.append(("failed", message_id))


class Kept(Leases):
    """Its messages are kept in the inbox."""

    redelivers = False


@pytest.fixture(params=[Leases, Kept], ids=["queue", "kept"])
def held(request):
    VERDICTS.clear()
    spout = request.param()
    with LocalCluster() as cluster:
        running = submitted(cluster, spout, Holds(), message_timeout_secs=1000)

        def order(*orders):
            spout.orders += orders
            cluster.advance(2)

        yield spout, running, order


def test_the_second_delivery_of_an_open_message_waits_and_counts_as_open(held):
    spout, running, order = held
    order(("emit", 1), ("emit", 2))
    assert RAN == [1]
    assert running.stats()["queue"].open == 2
    VERDICTS.append("ack")
    order()
    assert sorted(spout.verdicts) == [("acked", 1), ("acked", 2)]
    assert (RAN, SEEN) == ([1], {"k": 1})


@pytest.mark.parametrize("verdict", ["ack", "fail"])
def test_a_message_that_was_lost_while_it_runs_keeps_its_key_until_its_verdict(held, verdict):
    spout, _, order = held
    order(("emit", 1))
    order(("lose", 1), ("emit", 2))
    assert RAN == [1]
    VERDICTS.extend([verdict, "ack"])
    order()
    order()
    assert spout.verdicts == [("acked", 2)]
    assert ([1] if verdict == "ack" else [1, 2], {"k": 1}) == (RAN, SEEN)


def test_a_message_that_waited_for_its_key_and_is_lost_gets_no_verdict(held):
    spout, running, order = held
    order(("emit", 1), ("emit", 2), ("emit", 3))
    order(("lose", 2))
    VERDICTS.append("ack")
    order()
    assert sorted(spout.verdicts) == [("acked", 1), ("acked", 3)]
    assert running.await_idle(10)


def test_the_next_of_those_that_wait_takes_the_place_of_one_that_failed(held):
    spout, _, order = held
    order(("emit", 1), ("emit", 2), ("emit", 3))
    VERDICTS.extend(["fail", "fail", "ack"])
    for _ in range(4):
        order()
    assert spout.verdicts == [("failed", 1), ("failed", 2), ("acked", 3)]
    assert (RAN, SEEN) == ([1, 2, 3], {"k": 1})


class Events(Spout):
    """Emits those of its events that are there by now, from its position on, and notes the verdicts."""

    outputs = ["value"]
    redelivers = False
    remembers = ("position",)

    def __init__(self, events, verdicts):
        self.events, self.verdicts, self.position = events, verdicts, 0

    def __deepcopy__(self, memo):
        return self

    def open(self, config, context, collector):
        self.collector, self.open_ids = collector, context.open_message_ids

    def next_tuple(self):
        while self.position < len(self.events):
            key = self.events[self.position]
            self.collector.emit([str(self.position)], message_id=self.position, key=key)
            self.position += 1

    def ack(self, message_id):
        self.verdicts.append(("acked", message_id))

    def fail(self, message_id, failure):
        self.verdicts.append(("failed", message_id))


class Runs:
    """One run of ``Events`` after the other, beside a model: of each key the first that is open runs."""

    def __init__(self):
        self.events, self.delivered, self.journal = [], [], []
        self.open, self.acked, self.verdicts = {}, set(), []
        self.count, self.kept, self.chunks, self.released, self.parked = 0, [], {}, [], []
        self.begin()

    def begin(self):
        """Begin a run on what the one before has left, as ``resume.py`` does."""
        self.count += 1
        keys = Keys()
        keys.keep(self.kept)
        spout = Events(self.events, self.delivered)
        self.run = run = Harness(spout, first_sequence=self.count * 1000, keys=keys, is_open=False)
        run.inbox.chunks, run.inbox.parked = dict(self.chunks), list(self.parked)
        run.inbox.released = list(self.released)
        left = [n for n in self.chunks if n not in self.released]
        for chunk in [run.chunk(number) for number in self.chunks]:
            if chunk.position:
                run.task.remember(chunk.position)
        for number in left:
            if number not in self.parked:
                run.task.recovery.reopen(number, run.chunk(number))
        for number in left:
            if number in self.parked:
                run.task.recover_parked(number, run.chunk(number), 0)
        for number in left:
            run.task.recovery.must_outlive(number, run.chunk(number))
        for batch in self.journal:
            run.task.recovery.apply_journalled(batch, 0, were_delivered=True)
        run.open()
        run.run(2)

    def end(self):
        """The driver dies."""
        self.kept = self.run.task._host.keys.parts()
        inbox = self.run.inbox
        self.chunks, self.released, self.parked = inbox.chunks, inbox.released, inbox.parked

    def emit(self, keys):
        for key in keys:
            number = len(self.events)
            self.events.append(key)
            if key is not None and key in self.acked:
                self.verdicts.append(("acked", number))
            else:
                self.open[number] = key
        self.run.run(2)

    @property
    def running(self):
        """What runs, as the model says."""
        seen, found = set(), set()
        for number, key in self.open.items():
            if key is None or key not in seen:
                found.add(number)
            seen.add(key)
        return found

    def decide(self, at, verdict):
        running = sorted(self.running)
        if not running:
            return
        number = running[at % len(running)]
        key = self.open.pop(number)
        self.verdicts.append((verdict, number))
        if verdict == "acked" and key is not None:
            self.acked.add(key)
            repeated = [each for each, other in self.open.items() if other == key]
            self.verdicts += [("acked", each) for each in repeated]
            for each in repeated:
                del self.open[each]
        [sequence] = [s for s, each in self.run.task.open_ids_by_sequence() if id_of(each) == number]
        keys, roots = self.run.task._host.keys, self.run.task._chunks.roots_of(np.array([sequence]))
        none = roots[:0]
        keys.judge(*((roots, none) if verdict == "acked" else (none, roots)), 0)
        keys.publish(0)
        one = np.array([sequence])
        batch = VerdictBatch(one) if verdict == "acked" else VerdictBatch(failed=[(one, BROKEN)])
        self.journal.append(batch)
        self.run.task.dispatch(batch)
        self.run.run(2)

    def check(self):
        assert {id_of(each) for _, each in self.run.task.open_ids_by_sequence()} == self.running
        assert self.run.task.open_count == len(self.open)
        assert sorted(self.delivered) == sorted(self.verdicts)
        assert {*self.run.task._recovered_ids()} == {*self.open}


@settings(max_examples=drawn(60))
@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=4),
            st.tuples(st.integers(0, 3), st.sampled_from(["acked", "failed"])),
            st.none(),
        ),
        max_size=25,
    )
)
def test_a_message_that_only_the_inbox_has_waits_for_its_key_over_restarts_as_a_model_says(steps):
    runs = Runs()
    for step in steps:
        if step is None:
            runs.end()
            runs.begin()
        elif isinstance(step, list):
            runs.emit(step)
        else:
            runs.decide(*step)
        runs.check()
    while runs.open:
        runs.decide(0, "acked")
        runs.check()
    assert sorted(runs.run.inbox.released) == sorted(runs.run.inbox.chunks)


def held_back(runs, how):
    """From now on the spout is asked for no message."""
    if how == "deactivated":
        runs.run.task.deactivate()
    else:
        runs.run.inbox.has_room = False


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("how", ["deactivated", "inbox full"])
def test_repeated_messages_that_are_parked_are_acked_while_their_spout_may_emit_nothing(how, restarts):
    runs = Runs()
    runs.emit(["a", "b"])
    runs.decide(0, "acked")
    runs.events += ["a", None, "b"]  # of a key that is ACKED, of none, and of a key that is open
    runs.run.task.step(0)
    runs.run.task.flush(0)
    held_back(runs, how)
    assert runs.delivered == [("acked", 0)], "the driver can die before the repeated message is acked"
    runs.verdicts.append(("acked", 2))
    runs.open |= {3: None, 4: "b"}
    for _ in range(restarts):
        runs.end()
        runs.begin()
        held_back(runs, how)
    runs.run.run(2)
    runs.check()
    runs.events.append("a")
    runs.decide(0, "acked")
    runs.decide(0, "acked")
    runs.check()
    assert sorted(runs.run.inbox.released) == sorted(runs.run.inbox.chunks)
    assert runs.run.spout.position == 5, "it was asked for a message"


def test_a_message_that_comes_again_counts_for_all_runs_as_emitted_and_as_acked():
    runs = Runs()
    runs.emit(["a", "a", None])  # the second waits for the first
    runs.decide(0, "acked")
    runs.run.run(2)
    runs.emit(["a"])  # acked at once
    runs.decide(0, "acked")
    runs.check()
    counts = runs.run.task.counters
    assert (counts.total("emitted"), counts.total("acked")) == (2, 4), "the sink counts the other emits"
    own = runs.run.task.own
    assert (own.total("emitted"), own.total("acked")) == (2, 2)


def test_the_keys_that_are_kept_and_open_are_counted_with_the_age_of_the_oldest(held):
    _, running, order = held
    assert running.stats().keys == KeyNumbers()
    assert "keys:" not in running.stats().table()
    order(("emit", 1), ("emit", 2))
    assert running.stats().keys == KeyNumbers(kept=0, oldest_secs=None, open=1, waiting=1)
    VERDICTS.append("ack")
    order()
    assert running.stats().keys == KeyNumbers(kept=1, oldest_secs=running.stats().keys.oldest_secs)
    order()
    assert running.stats().keys.oldest_secs >= 1
    assert "keys: 1 kept, the oldest for" in running.stats().table()


def test_a_key_is_forgotten_after_the_retention():
    feeder = FeederSpout(["n", "key", "is_good"])
    with LocalCluster() as cluster:
        running = submitted(cluster, feeder, key_retention_secs=160)
        for n, secs in enumerate((0, 100, 50, 30)):
            cluster.advance(secs)
            feeder.feed([n + 100, "other", True], message_id=n + 100)
            assert running.await_idle(0)
            feeder.feed([n, "k", True], message_id=n, key="k")
            assert running.await_idle(0)
        assert [n for n in feeder.acked if n < 100] == [0, 1, 2, 3]
        assert [n for n in RAN if n < 100] == [0, 3]


@pytest.mark.parametrize("keys", [["a", "b", "a"], pa.array(["a", "b", "a"])], ids=["list", "arrow"])
def test_a_batch_has_a_key_for_each_row(keys):
    def emit(spout):
        batch = pa.record_batch({"value": ["1", "2", "3"]})
        spout.collector.emit_batch(batch, message_ids=pa.array([1, 2, 3]), keys=keys)

    harness = Harness(Source(emit))
    assert harness.run() == [[("1",), ("2",)]]
    assert harness.task.open_count == 3
    assert not harness.reports


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": ""}, "the key of a message is empty: ''"),
        ({"key": 1.5}, "the key of a message is float: 1.5"),
        ({"key": True}, "the key of a message is bool: True"),
        ({"key": "k", "message_id": None}, "emit\\(\\) with key='k' and no message id"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_and_nothing_is_emitted(options, says):
    def emit(spout):
        spout.collector.emit(["value"], **{"message_id": 1, **options})

    harness = Harness(Source(emit))
    assert harness.run() == []
    assert [report[2].exception_types[0] for report in harness.reports] == ["acktree.MisuseError"]
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(harness.reports[0][2].reason)


@pytest.mark.parametrize("keys", [["a"], ["a", "b", 1.5]])
def test_keys_that_do_not_fit_the_rows_of_a_batch_are_refused(keys):
    def emit(spout):
        batch = pa.record_batch({"value": ["1", "2", "3"]})
        spout.collector.emit_batch(batch, message_ids=[1, 2, 3], keys=keys)

    harness = Harness(Source(emit))
    assert (harness.run(), len(harness.reports)) == ([], 1)


def test_without_ackers_a_key_is_refused():
    harness = Harness(Source(emits(("v", 1), key="k")), config=Config(acker_executors=0))
    assert harness.run() == []
    assert "leave acker_executors=0 out of Config" in str(harness.reports[0][2].exception)


def test_a_redelivery_with_too_many_attempts_of_a_message_that_was_acked_is_acked_and_no_dead_letter():
    class Redelivers(Source):
        outputs = ["n", "key", "is_good"]

        def next_tuple(self):
            if self.plan:
                number, attempt = self.plan.pop(0)
                self.collector.emit([number, "k", True], message_id=number, key="k", attempt=attempt)

    spout = Redelivers((1, 1), (2, 9))
    with LocalCluster() as cluster:
        running = submitted(cluster, spout, retry=Retry(max_attempts=3))
        assert running.await_idle(100)
        assert spout.delivered() == [("ack", 1), ("ack", 2)]
        assert (RAN, len(running.dead_letters)) == ([1], 0)
