"""Questions to an exactly-once bolt: they read what was ACKED, change nothing, and get answers at once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import ArrowBolt, BasicBolt, Retry, TopologyBuilder
from acktree.testing import FeederSpout, LocalCluster
from tests.drawn import drawn

QUICK = Retry(max_attempts=2, backoff_secs=(0.01, 0.01))


class Count(BasicBolt):
    """Counts words; of a question it emits the count, and then it changes what it remembers."""

    outputs = ["word", "count", "asked"]
    remembers = ["counts"]

    def __init__(self):
        self.counts = {}

    def execute(self, tup, collector):
        word = tup["word"]
        if tup.component == "questions":
            count, self.counts[word], self.counts["new"] = self.counts.get(word, 0), 1000, 1000
            if word == "raises":
                raise ValueError("a question that raises")
            collector.emit([word, count, True])
            return
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word], False])
        if word == "raises":
            raise ValueError("a word that raises")


class AsyncCount(BasicBolt):
    outputs = ["word", "count", "asked"]
    remembers = ["counts"]

    def __init__(self):
        self.counts = {}

    execute_now = Count.execute

    async def execute(self, tup, collector):
        self.execute_now(tup, collector)


class Reads(BasicBolt):
    outputs = ["word", "count", "asked"]

    def execute(self, tup, collector):
        collector.emit(list(tup.values))
        if tup["word"] == "fails later" and tup["asked"]:
            raise ValueError("an answer that fails")


def submitted(cluster, count):
    words, questions = FeederSpout(["word"]), FeederSpout(["word"])
    builder = TopologyBuilder("asked")
    builder.set_spout("words", words)
    builder.set_spout("questions", questions)
    counts = builder.set_bolt("count", count, parallelism=2, exactly_once=True, retry=QUICK)
    counts.fields_grouping("words", ["word"]).fields_grouping("questions", ["word"], gate=False)
    builder.set_bolt("reads", Reads(), parallelism=2).shuffle_grouping("count")
    return cluster.submit(builder.create_topology()), words, questions


@pytest.mark.parametrize("count", [Count(), AsyncCount()], ids=["basic", "async"])
@settings(max_examples=drawn(40))
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "raises"]), st.booleans()), max_size=10))
def test_a_question_is_answered_with_what_was_acked_and_leaves_no_trace(count, steps):
    counts, expected = Counter(), []
    with LocalCluster() as cluster:
        running, words, questions = submitted(cluster, count)
        for n, (word, asks) in enumerate(steps):
            (questions if asks else words).feed([word], message_id=n)
            assert running.await_idle(10)
            if word == "raises":
                continue
            counts[word] += not asks
            expected.append([word, counts[word], asks])
        assert running.tuples("reads") == expected
        assert questions.acked == [n for n, (word, asks) in enumerate(steps) if asks and word != "raises"]
        raised = sum(asks and word == "raises" for word, asks in steps)
        assert [n for n, _ in questions.failed] == [
            n for n, (word, asks) in enumerate(steps) if asks and word == "raises"
        ]
        assert all(failure.component == "count" for _, failure in questions.failed)
        letters = [letter for letter in running.dead_letters if letter.spout.startswith("__gate")]
        assert len(letters) == sum(word == "raises" for word, _ in steps) - raised


def test_an_answer_that_fails_fails_its_question():
    with LocalCluster() as cluster:
        running, words, questions = submitted(cluster, Count())
        words.feed(["fails later"], message_id=1)
        questions.feed(["fails later"], message_id=2)
        assert running.await_idle(10)
        assert words.acked == [1]
        [(asked, failure)] = questions.failed
        assert (asked, failure.component, failure.reason) == (2, "reads", "ValueError: an answer that fails")


def test_questions_and_words_of_one_micro_batch_do_not_see_what_is_not_acked():
    with LocalCluster() as cluster:
        running, words, questions = submitted(cluster, Count())
        for n in range(3):
            words.feed(["a"], message_id=n)
            questions.feed(["a"], message_id=n)
        assert running.await_idle(10)
        assert next(row for row in running.tuples("reads") if row[2]) == ["a", 0, True]
        assert [row for row in running.tuples("reads") if not row[2]] == [["a", n, False] for n in (1, 2, 3)]


FLUSHED = []


class Flushes(ArrowBolt):
    """Notes in ``flush`` what it has; no question is in it."""

    outputs = ["word"]
    remembers = ["words"]

    def __init__(self):
        self.words = []

    def execute_batch(self, batch, collector):
        self.words = [*self.words, *batch["word"].to_pylist()]
        collector.emit_batch(batch, np.arange(batch.num_rows))

    def flush(self, collector):
        FLUSHED.append(self.words)


def test_an_arrow_bolt_is_asked_too_and_does_not_flush_for_questions():
    FLUSHED.clear()
    words, questions = FeederSpout(["word"]), FeederSpout(["word"])
    builder = TopologyBuilder("asked")
    builder.set_spout("words", words)
    builder.set_spout("questions", questions)
    asked = builder.set_bolt("flushes", Flushes(), exactly_once=True)
    asked.global_grouping("words").global_grouping("questions", gate=False)
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        questions.feed(["asked"], message_id=1)
        assert running.await_idle(10)
        words.feed(["word"], message_id=2)
        questions.feed(["asked"], message_id=3)
        assert running.await_idle(10)
        assert (questions.acked, FLUSHED) == ([1, 3], [["word"]])
        assert sorted(running.tuples("flushes")) == [["asked"], ["asked"], ["word"]]


class FailsOnce(BasicBolt):
    """Is asked, and fails the first attempt."""

    outputs = ["word"]

    def execute(self, tup, collector):
        if tup.attempt == 1:
            raise ValueError("a question that fails once")


def test_a_question_that_fails_repeats_nothing_of_the_exactly_once_bolt_that_asked_it():
    words = FeederSpout(["word"])
    builder = TopologyBuilder("asked")
    builder.set_spout("words", words)
    builder.set_bolt("count", Count(), exactly_once=True, retry=QUICK).global_grouping("words")
    builder.set_bolt("asked", FailsOnce(), exactly_once=True, retry=QUICK).global_grouping(
        "count", gate=False
    )
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        words.feed(["a"], message_id=1)
        assert running.await_idle(10)
        assert running.tuples("count") == [["a", 1, False]]
        assert [*running.dead_letters] == []


class Collects(BasicBolt):
    """Notes words until the end of the micro-batch; a question notes one too."""

    outputs = ["word"]

    def prepare(self, config, context):
        self.words = []

    def execute(self, tup, collector):
        self.words.append(tup["word"])
        collector.emit([tup["word"]])

    def flush(self, collector):
        self.words = []


def test_a_question_may_leave_behind_what_flush_would_take_away():
    words, questions = FeederSpout(["word"]), FeederSpout(["word"])
    builder = TopologyBuilder("asked")
    builder.set_spout("words", words)
    builder.set_spout("questions", questions)
    asked = builder.set_bolt("collects", Collects(), exactly_once=True)
    asked.global_grouping("words").global_grouping("questions", gate=False)
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        words.feed(["a"], message_id=1)
        questions.feed(["b"], message_id=2)
        assert running.await_idle(10)
        assert (questions.acked, questions.failed) == ([2], [])
