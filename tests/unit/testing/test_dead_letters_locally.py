"""Dead letters in a LocalCluster: the store, the redrive and the limit are those of Spark, in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acktree import Config, DeadLetterLimitError, Retry
from acktree.dead_letters.conversion import refuse_foreign_letters
from acktree.errors import MisuseError
from acktree.testing import FeederSpout
from tests.unit.tasks.bolts.bolt_harness import Calls, bench


class Mended(Calls):
    """Raises until it is mended."""

    is_broken = True

    def __init__(self):
        super().__init__(mended)


def mended(bolt, tup, collector):
    if Mended.is_broken:
        raise ValueError("broken")
    return tup["value"], tup.attempt


def test_dead_letters_are_iterated_counted_and_sent_again():
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=2, backoff_secs=(0, 0))) as running:
        running.feed("x", "y")
        letters = running.running.dead_letters
        assert len(letters) == letters.count() == 2
        assert [(letter.id, letter.values, letter.attempts) for letter in letters] == [
            (1, ["x"], 2),
            (2, ["y"], 2),
        ]
        assert {message_id: failure.final for message_id, failure in running.failures.items()} == {
            "x": True,
            "y": True,
        }
        with pytest.raises(MisuseError, match="there is no dead letter 3"):
            letters.redrive([1, 3])
        Mended.is_broken = False
        running.cluster.advance(5)
        assert running.tuples("b0") == []
        assert letters.redrive([2]) == 1
        running.cluster.advance()
        assert running.tuples("b0") == [("y", 1)]
        assert running.acked == []  # its source gets no verdict
        assert [letter.redriven_ms for letter in letters] == [None, 5_000]
        assert len(letters) == 2


def test_a_letter_is_redriven_once_however_often_it_is_asked_for_while_it_is_open():
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=1)) as running:
        running.feed("x")
        letters = running.running.dead_letters
        Mended.is_broken = False
        assert letters.redrive([1, 1, 1]) == 1
        assert letters.redrive([1]) == 0
        running.cluster.advance()
        assert running.tuples("b0") == [("x", 1)]
        assert letters.redrive([1]) == 1  # it came to its end: asked anew, it is sent anew
        running.cluster.advance()
        assert running.tuples("b0") == [("x", 1), ("x", 1)]


def test_a_letter_that_waits_for_a_retry_is_open():
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=2, backoff_secs=(10, 10), jitter=False)) as running:
        running.feed("x")
        running.cluster.advance(10)
        letters = running.running.dead_letters
        assert [letters.redrive([1]), running.cluster.advance(5), letters.redrive([1])] == [1, None, 0]
        running.cluster.advance(10)  # dead again: another letter, and the first is settled
        assert len(letters) == 2
        assert letters.redrive([1, 2]) == 2


def test_a_redriven_letter_that_fails_again_is_another_letter():
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=1)) as running:
        running.feed("x")
        running.running.dead_letters.redrive([1])
        running.cluster.advance()
        assert [letter.values for letter in running.running.dead_letters] == [["x"], ["x"]]
        assert len(running.feeder.failed) == 1


def test_a_redriven_letter_that_is_acked_is_settled_and_can_be_purged():
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=1)) as running:
        running.feed("x", "y")
        letters = running.running.dead_letters
        Mended.is_broken = False
        letters.redrive([1])
        assert letters.count(redriven=True, settled=False) == 1
        running.cluster.advance(secs=3)
        assert [letter.settled_ms for letter in letters] == [0, None]
        assert letters.purge(redriven=True, settled=True) == 1
        assert [letter.id for letter in letters] == [2]


def test_letters_can_be_looked_at_and_exported_when_the_cluster_is_closed_but_not_redriven(tmp_path):
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=1)) as running:
        running.feed("x")
    letters = running.running.dead_letters
    assert letters.export(tmp_path / "letters.jsonl") == 1
    with pytest.raises(MisuseError, match="the topology is not running"):
        letters.redrive([1])
    assert letters.count(redriven=True) == 0


LIMIT = Config(dead_letter_limit_count=3, dead_letter_limit_ratio=0.5)


def test_too_many_dead_letters_stop_it_with_what_happened_and_none_beyond_the_limit_is_stored():
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=1), config=LIMIT) as running:
        running.feed("a", "b", "c")
        with pytest.raises(
            DeadLetterLimitError, match="gave up 7 messages within 60 s, while 0 were acked"
        ) as stopped:
            running.feed("d", "e", "f", "g")
        assert "topology 'bench'" in stopped.value.where
        assert "in 'b0': ValueError: broken" in stopped.value.where
        assert len(running.running.dead_letters) == 3
        assert [message_id for message_id, _ in running.feeder.failed] == ["a", "b", "c"]
        assert running.running.stats()["source"].open == 4
        with pytest.raises(DeadLetterLimitError):
            running.cluster.advance(secs=100)
        assert len(running.running.dead_letters) == 3


def test_poison_among_many_good_messages_stops_nothing():
    def fails_sometimes(bolt, tup, collector):
        if tup["value"] % 3 == 0:
            raise ValueError("poison")

    with bench(Calls(fails_sometimes), retry=Retry(max_attempts=1), config=LIMIT) as running:
        for first in range(0, 300, 30):
            running.feed(*range(first, first + 30))
        assert (len(running.acked), len(running.running.dead_letters)) == (200, 100)


def test_neither_bolts_nor_spouts_are_given_the_password_of_the_store():
    seen = []

    class Curious(FeederSpout):
        def open(self, config, context, collector):
            seen.append(config.dead_letters_url)
            super().open(config, context, collector)

    class CuriousToo(Calls):
        def prepare(self, config, context):
            self.url = config.dead_letters_url

    config = Config(dead_letters_url="postgresql://me:S3cr3t@host/letters")
    bolt = CuriousToo(lambda bolt, tup, collector: bolt.url)
    with bench(bolt, feeder=Curious(["value"]), config=config) as running:
        running.feed("x")
        assert seen == running.tuples("b0") == ["postgresql://***@host/letters"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"spout": "b0"}, "this topology has no such task"),
        ({"spout": "nobody"}, "this topology has no such task"),
        ({"task_id": 99}, "this topology has no such task"),
        ({"stream": "other"}, "this topology has no such task"),
        ({"fields": ("value", "more")}, r"has the fields \['value'\] now and had \['value', 'more'\]"),
    ],
    ids=str,
)
def test_a_letter_of_another_spout_is_refused_before_any_is_sent(changed, why):
    Mended.is_broken = True
    with bench(Mended(), retry=Retry(max_attempts=1)) as running:
        running.feed("x", "y")
        first, second = running.running.dead_letters
        topology = running.running.plan.topology
        refuse_foreign_letters([first, second], topology, is_running=True)
        with pytest.raises(MisuseError, match=why) as refused:
            refuse_foreign_letters([first, replace(second, **changed)], topology, is_running=True)
        assert "no letter was sent" in str(refused.value)
