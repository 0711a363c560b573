"""The word count as a Bytewax dataflow. Run by Bytewax's own interpreter, which has no acktree.

Environment variables: FLOW_SENTENCES, a file; FLOW_FROM and FLOW_TO, the times between which to count;
FLOW_WORKERS, the number of sources; FLOW_FOUND, the folder in which each worker writes what its sink has
counted.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH = 1000
SENTENCES = Path(os.environ["FLOW_SENTENCES"]).read_text().splitlines()
FROM, TO = float(os.environ["FLOW_FROM"]), float(os.environ["FLOW_TO"])


class Part(StatefulSourcePartition[str, int]):  # type: ignore[misc]  # Bytewax is not where types are checked
    """Goes round the sentences, a thousand at a time."""

    def __init__(self, position: int | None) -> None:
        """Go on where a snapshot says."""
        self.position = position or 0

    def next_batch(self) -> list[str]:
        """The next thousand."""
        if time.time() > TO + 1:
            raise StopIteration
        first = self.position % len(SENTENCES)
        self.position += BATCH
        return SENTENCES[first : first + BATCH]

    def snapshot(self) -> int:
        """Where it is."""
        return self.position


class Source(FixedPartitionedSource[str, int]):  # type: ignore[misc]
    """A part for each worker."""

    def list_parts(self) -> list[str]:
        """Their names."""
        return [str(part) for part in range(int(os.environ["FLOW_WORKERS"]))]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
        """One of them."""
        return Part(resume_state)


class Meter(StatelessSinkPartition[tuple[str, int]]):  # type: ignore[misc]
    """Counts what arrives while it is measured."""

    def __init__(self, worker: int) -> None:
        """The sink of one worker."""
        self.worker, self.words = worker, 0

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        """Look at the clock once a batch."""
        if FROM <= time.time() < TO:
            self.words += len(items)

    def close(self) -> None:
        """Tell."""
        Path(os.environ["FLOW_FOUND"], f"{self.worker}.json").write_text(json.dumps(self.words))


class Sink(DynamicSink[tuple[str, int]]):  # type: ignore[misc]
    """A meter for each worker."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Meter:
        """One of them."""
        return Meter(worker_index)


def count(state: int | None, _: str) -> tuple[int, int]:
    """One more of this word."""
    more = (state or 0) + 1
    return more, more


flow = Dataflow("word_count")
lines = op.input("sentences", flow, Source())
words = op.flat_map("split", lines, str.split)
keyed = op.key_on("by_word", words, lambda word: word)
op.output("counts", op.stateful_map("count", keyed, count), Sink())
