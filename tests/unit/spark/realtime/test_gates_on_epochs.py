"""Effects that happen once: an epoch whose number is outside of the checkpoint runs again as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

pytest.importorskip("pyspark")

from acktree import BasicBolt, Retry, TopologyBuilder, submit
from acktree.checkpoint.staged_files import Place, StagedFiles
from acktree.core.data.frames import WireRow
from acktree.spark.realtime.connections import ConnectionLostError
from acktree.states import MapState, MemoryMap
from acktree.testing import FeederSpout
from tests.spark import test_exactly_once as exactly_once
from tests.unit.spark.realtime.resident import ThreadedQuery
from tests.unit.spark.realtime.test_drive import CONFIG, ThreadedRun, await_verdicts
from tests.unit.spark.realtime.test_drive import run as threads  # noqa: F401  # a fixture

WORDS = 40
DATABASE = MemoryMap()


class Counts(BasicBolt):
    """Counts words in a Trident state, under the number of the epoch."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def prepare(self, config, context):
        self.state, self.txid = MapState(DATABASE, mode=self.mode), context.txid
        self.words: Counter[str] = Counter()

    def execute(self, tup, collector):
        self.words[tup["word"]] += 1

    def flush(self, collector):
        words, self.words = self.words, Counter()
        self.state.begin_commit(self.txid)
        self.state.multi_update(list(words), [lambda old, n=n: (old or 0) + n for n in words.values()])
        self.state.commit(self.txid)


@pytest.mark.parametrize("mode", ["opaque", "transactional"])
def test_a_trident_state_counts_once_though_the_query_fails_when_all_that_is_under_way_has_run(
    threads: ThreadedRun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    """Of two epochs under way the later one would have written its number over that of the earlier one."""
    take, send, taken, fed = ThreadedQuery.take, ThreadedQuery.send, count(1), iter(range(1, WORDS))
    lines = FeederSpout(["word"])

    def sending(self: ThreadedQuery, rows: Sequence[WireRow]) -> int:
        """Send, and feed the next word: there is more to cut while this epoch is under way."""
        number = send(self, rows)
        if number > 0 and (n := next(fed, None)) is not None:
            lines.feed([f"word {n % 3}"], message_id=n)
        return number

    def dying(self: ThreadedQuery, *given: object) -> tuple[int, list[WireRow]] | None:
        found = take(self, *given)
        if found is None or next(taken) % 3:
            return found
        under_way = self._epochs._under_way.values()
        with self._connections.changed:
            self._connections.changed.wait_for(
                lambda: all(len(each.reports) == len(self._epochs._places) for each in under_way), 60
            )
        self._query.die()
        raise ConnectionLostError("a worker died")

    DATABASE._texts.clear()
    monkeypatch.setattr(ThreadedQuery, "take", dying)
    builder = TopologyBuilder("state")
    builder.set_spout("words", lines, retry=Retry(max_attempts=3, backoff_secs=(0.01, 0.01)))
    builder.set_bolt("counts", Counts(mode), 2, exactly_once=True).fields_grouping("words", ["word"])
    with submit(builder.create_topology(), checkpoint=threads.checkpoint, config=CONFIG) as running:
        while not running.is_warm:
            running.await_termination(0.01)
        monkeypatch.setattr(ThreadedQuery, "send", sending)
        lines.feed(["word 0"], message_id=0)
        await_verdicts(running, lines, range(WORDS))
        lines.end()
        assert running.await_termination(60), running.stats().table()
    assert sorted(lines.acked) == list(range(WORDS))
    words = [f"word {n}" for n in range(3)]
    found = MapState(DATABASE, mode=mode).multi_get(words)
    assert dict(zip(words, found, strict=True)) == Counter(f"word {n % 3}" for n in range(WORDS))


def test_an_epoch_that_sinks_write_outlives_a_power_cut_as_it_was(
    threads: ThreadedRun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its offsets are synced before its levels run: a sink's database may have its mark after that."""
    send, sent = ThreadedQuery.send, []

    def sending(self: ThreadedQuery, rows: Sequence[WireRow]) -> int:
        before = [file.name for file in threads.checkpoint.glob("synced-*")]
        number = send(self, rows)
        sent.append((number, before))
        return number

    monkeypatch.setattr(ThreadedQuery, "send", sending)
    topology = exactly_once.topology(threads.checkpoint.parent)
    config = replace(CONFIG, survive_power_cut=True)
    running = submit(topology, checkpoint=threads.checkpoint, config=config)
    assert running.await_termination(timeout_secs=120), running.stats().table()
    exactly_once.check(threads.checkpoint.parent)
    assert sent == [(number, [f"synced-{number:012d}-begun"]) for number in range(len(sent))]


class CountsBeginnings(Counts):
    """A key of a state may not be as long as these words."""

    def execute(self, tup, collector):
        self.words[tup["word"][:6]] += 1


def test_large_staged_values_are_in_files_of_the_tasks(
    threads: ThreadedRun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, places = StagedFiles.values, list[Place]()

    def reading(self: StagedFiles, place: Place) -> memoryview:
        places.append(place)
        return read(self, place)

    DATABASE._texts.clear()
    monkeypatch.setattr(StagedFiles, "values", reading)
    lines, word = FeederSpout(["word"]), "a long word " * 4_000
    builder = TopologyBuilder("large")
    builder.set_spout("words", lines)
    builder.set_bolt("counts", CountsBeginnings("opaque"), exactly_once=True).shuffle_grouping("words")
    with submit(builder.create_topology(), checkpoint=threads.checkpoint, config=CONFIG) as running:
        lines.feed([word], message_id=0)
        lines.end()
        assert running.await_termination(60), running.stats().table()
    assert MapState(DATABASE, mode="opaque").multi_get([word[:6]]) == [1]
    assert {place.size > len(word) for place in places} == {True}
