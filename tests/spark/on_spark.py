"""Spark as an engine for what ``LocalCluster`` runs too: the scenarios, and topologies drawn at random."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acktree import Config, Retry, TopologyBuilder, submit
from acktree.testing import FeederSpout
from tests.scenarios.runner import (
    SOURCE,
    TIMEOUT_SECS,
    Activate,
    Build,
    Deactivate,
    Message,
    Outcome,
    Pause,
    Step,
    Wait,
    listen,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree.driver.handle import SubmittedTopology


@contextmanager
def tuples_logged() -> Iterator[Counter[tuple[str, str, str]]]:
    """Every tuple emitted meanwhile, as ``debug`` logs it: (component, stream, repr of the values)."""
    logged: Counter[tuple[str, str, str]] = Counter()

    class Tally(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            component, stream, values = record.args
            logged[str(component), str(stream), repr(values)] += 1

    log, handler = logging.getLogger("acktree.tuples"), Tally()
    before, was_propagated = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield logged
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = was_propagated


def await_commit(running: SubmittedTopology, feeder: FeederSpout, secs: float = 120) -> None:
    """Until all that was fed has run through a committed micro-batch, whatever is open."""
    deadline = time.monotonic() + secs
    while (
        feeder._fed
        or any(thread.task.buffered_count for thread in running._run.threads.by_task.values())
        or not running._run.inbox.is_drained
        or not running._run.checkpoint.is_committed(running._run.results.progress.batch_id)
    ):
        assert time.monotonic() < deadline, "it does not come to rest"
        running.await_termination(0.05)


@dataclass
class SparkRunner:
    """Runs scenarios on Spark; time is real there, so only short waits are worth it.

    Attributes:
        spark: The session; None for one that ``submit`` makes or finds.
        real_time: Whether by epochs.
    """

    spark: SparkSession | None
    folder: Path
    partitions: int = 2
    runs: int = 0
    real_time: bool = False

    def run(
        self,
        build: Build,
        steps: Iterable[Step],
        *,
        config: Config | None = None,
        retry: Retry | None = None,
        spout: FeederSpout | None = None,
        watch: Sequence[str] = (),
        for_secs: float | None = None,
    ) -> Outcome:
        settings = (config or Config(message_timeout_secs=TIMEOUT_SECS)).to_mapping()
        settings |= {"acktree.partitions": self.partitions, "topology.debug": True}
        settings["acktree.real.time"] = self.real_time
        feeder = spout or FeederSpout(["program"])
        outcome = listen(feeder)
        self.runs += 1
        builder = TopologyBuilder("scenario")
        builder.set_spout(SOURCE, feeder, retry=retry)
        build(builder)
        with (
            tuples_logged() as logged,
            submit(
                builder.create_topology(),
                checkpoint=self.folder / str(self.runs),
                spark=self.spark,
                config=Config.from_mapping(settings),
            ) as running,
        ):
            for step in steps:
                match step:
                    case Message(values, message_id, stream):
                        feeder.feed(values, message_id=message_id, stream=stream)
                    case Pause():
                        await_commit(running, feeder)
                    case Wait(secs):
                        await_commit(running, feeder)
                        running.await_termination(secs)
                    case Deactivate():
                        await_commit(running, feeder)
                        running.deactivate()
                    case Activate():
                        running.activate()
            feeder.end()
            outcome.has_ended = running.await_termination(120 if for_secs is None else for_secs)
            outcome.tuples = {
                name: Counter(
                    {
                        repr(list(eval(values))): n
                        for (component, stream, values), n in logged.items()
                        if (component, stream) == (name, "default")
                    }
                )
                for name in watch
            }
            outcome.stats = running.stats()
            outcome.dead_letters = list(running.dead_letters)
        return outcome
