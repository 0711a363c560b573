"""The topology of a run: each message as two tuples, each of which leaves an effect outside of acktree.

::

    orders ─► split ─► store
"""

from __future__ import annotations

from pathlib import Path

from acktree import (
    BasicBolt,
    BasicOutputCollector,
    Config,
    Retry,
    Spout,
    TaskContext,
    Topology,
    TopologyBuilder,
    Tuple,
)
from tests.brokers.account import PARTS
from tests.brokers.queues import number_in
from tests.chaos.effects import leave

ATTEMPTS = 30
"""More than kills: no message of a run is given up."""


class Split(BasicBolt):
    """A message as its parts."""

    outputs = ["number", "part", "attempt"]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for part in range(PARTS):
            collector.emit([number_in(tup.values), part, tup.attempt])


class Store(BasicBolt):
    """Leaves an effect for each part."""

    outputs = []

    def __init__(self, effects: Path) -> None:
        self.effects = effects

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.name = context.component_id

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        leave(self.effects, self.name, tup["number"], 0, tup["attempt"], tup["part"])


def orders_topology(spout: Spout, effects: Path) -> Topology:
    """The topology over a queue's spout."""
    builder = TopologyBuilder("orders")
    builder.set_spout("orders", spout, retry=Retry(max_attempts=ATTEMPTS, backoff_secs=(0.2, 2)))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("orders")
    builder.set_bolt("store", Store(effects), 2).fields_grouping("split", ["number"])
    return builder.create_topology()
