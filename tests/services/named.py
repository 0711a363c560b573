"""What a real queue's spout calls its messages: labels, and keys that make a message run once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

from acktree import BasicBolt, Config, Spout, TopologyBuilder
from acktree.core.spouts.keys import key_digests
from acktree.tasks.component_checks import checks_of
from acktree.tasks.spouts.keys.labels import Labelled, label_of
from acktree.testing import FeederSpout, LocalCluster, SpoutHarness

RAN: list[object] = []
SECS = 20


class Notes(BasicBolt):
    outputs: Sequence[str] = []

    def execute(self, tup, collector):
        RAN.append(tup.values)


def digest(key: object) -> bytes:
    """What is kept of a key; empty for none."""
    return b"" if key is None else key_digests("spout")(key, "")


def names_of(spout: Spout, count: int) -> list[tuple[str | None, bytes]]:
    """The labels, and the digests of the keys, of the messages that a spout emits; it acks them."""
    with SpoutHarness(spout) as harness:
        harness.until(lambda: harness.task.open_count == count, SECS, f"{count} messages come")
        found = [each.message_id for each in harness.task.oldest_open(count)]
        harness.ack(harness.arrived)
        assert not harness.reports
    return [(label_of(each), each.key if isinstance(each, Labelled) else b"") for each in found]


class KeyedRun:
    """A spout that runs in a ``LocalCluster``, by the machine's clock."""

    def __init__(self, spout: Spout, count: Callable[[], int]) -> None:
        RAN.clear()
        builder = TopologyBuilder("keyed")
        builder.set_spout("spout", spout)
        builder.set_bolt("notes", Notes()).shuffle_grouping("spout")
        self._topology, self._count = builder.create_topology(), count

    def __enter__(self) -> Self:
        self._cluster = LocalCluster()
        self._running = self._cluster.submit(self._topology)
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def until(self, is_done: Callable[[], bool], what: str) -> None:
        """Let it run until a condition holds."""
        deadline = time.monotonic() + SECS
        while not is_done():
            assert time.monotonic() < deadline, f"not within {SECS} s: {what}"
            self._cluster.advance(0.1)

    def until_acked(self, total: int) -> None:
        """Let it run until ``total`` messages are acked and the queue is empty."""
        stats = self._running.stats
        self.until(
            lambda: stats()["spout"].total.acked >= total and not self._count(),
            f"{total} messages are acked, and the queue is empty",
        )


def check_that_a_key_runs_once(spout: Spout, put: Callable[[], object], count: Callable[[], int]) -> None:
    """A message that comes again with its key, after it was acked, is acked at its queue and does not run.

    Args:
        put: Puts the message into the queue.
        count: How many the queue has.
    """
    with KeyedRun(spout, count) as run:
        for nth in (1, 2):
            put()
            run.until_acked(nth)
        assert len(RAN) == 1, RAN


def refused_before(sink, fields, method="set_bolt"):
    """What ``check`` of a sink raises where it reads these fields; None where all is there."""
    builder = TopologyBuilder("t")
    builder.set_spout("source", FeederSpout(list(fields)))
    getattr(builder, method)("store", sink).shuffle_grouping("source")
    [(name, error)] = checks_of(builder.create_topology(), Config())
    assert name == "store"
    return error
