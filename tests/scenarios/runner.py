"""One scenario, several engines: a topology, what it is fed, and what became of that.

A scenario is a function that draws the bolts, and a list of steps: messages, and what happens between them.
:class:`LocalRunner` runs it in a ``LocalCluster``; a runner for another engine needs only :meth:`Runner.run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from acktree import Config, Failure, Retry, TopologyBuilder
from acktree.core.stats.statistics import Stats
from acktree.dead_letters.letter import DeadLetter
from acktree.testing import FeederSpout, LocalCluster

SOURCE = "source"
"""The id of the spout that a scenario's bolts read."""
TIMEOUT_SECS = 4
"""The message timeout of scenarios, unless they say otherwise."""


@dataclass(frozen=True)
class Message:
    """Feed this. Without an id it is untracked."""

    values: Sequence[Any]
    id: Any = None
    stream: str = "default"


@dataclass(frozen=True)
class Pause:
    """Let everything so far run through before anything else is fed."""


@dataclass(frozen=True)
class Wait:
    """Let this much time pass."""

    secs: float


@dataclass(frozen=True)
class Deactivate:
    """Stop the spouts."""


@dataclass(frozen=True)
class Activate:
    """Let the spouts go on."""


Step = Message | Pause | Wait | Deactivate | Activate
Build = Callable[[TopologyBuilder], object]


@dataclass
class Outcome:
    """What became of a scenario.

    Attributes:
        verdicts: The verdicts of a message id, in the order of their delivery.
        failures: The failures among it.
        order: Message ids in the order of their verdicts.
        tuples: How often each component emitted which values on its default stream (as ``repr`` of a list).
            An engine may fill in only the components that were to be watched.
        stats: The engine's numbers at the end.
        dead_letters: What was given up.
        has_ended: Whether every message got its verdict in time.
    """

    verdicts: dict[Any, list[str]] = field(default_factory=dict)
    failures: dict[Any, list[Failure]] = field(default_factory=dict)
    order: list[Any] = field(default_factory=list)
    tuples: dict[str, Counter[str]] = field(default_factory=dict)
    stats: Stats | None = None
    dead_letters: list[DeadLetter] = field(default_factory=list)
    has_ended: bool = False

    def errors_of(self, component: str) -> list[str]:
        """The reasons of what a component reported."""
        return [error.reason for error in self.stats.errors if error.component == component]


class Runner(Protocol):
    """Runs scenarios on one engine."""

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
        """Run to the end: until every message has its verdict and nothing moves any more.

        Args:
            build: Sets the bolts; they read :data:`SOURCE`, which is set already.
            steps: What is fed, and when.
            config: The settings; :data:`TIMEOUT_SECS` is the timeout if there are none.
            retry: The spout's policy.
            spout: What is fed; by default one field, ``program``.
            watch: Components whose tuples the scenario will look at.
            for_secs: Stop after this number of seconds, whether or not it has ended.
        """


class LocalRunner:
    """Runs scenarios in a ``LocalCluster`` with ``partitions`` partitions."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions

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
        config = config or Config(message_timeout_secs=TIMEOUT_SECS)
        settings = {**config.to_mapping(), "acktree.partitions": self.partitions}
        feeder = spout or FeederSpout(["program"])
        outcome = listen(feeder)
        builder = TopologyBuilder("scenario")
        builder.set_spout(SOURCE, feeder, retry=retry)
        build(builder)
        with LocalCluster() as cluster:
            running = cluster.submit(builder.create_topology(), config=Config.from_mapping(settings))
            for step in steps:
                match step:
                    case Message(values, message_id, stream):
                        feeder.feed(values, message_id=message_id, stream=stream)
                    case Pause():
                        cluster.advance()
                    case Wait(secs):
                        cluster.advance(secs)
                    case Deactivate():
                        cluster.advance()
                        running.deactivate()
                    case Activate():
                        running.activate()
            feeder.end()
            cluster.advance(0 if for_secs is None else for_secs)
            while for_secs is None and not running.has_ended and (due_ms := running.due_ms()) is not None:
                cluster.advance(max(0, due_ms - cluster.now_ms) / 1000)
            outcome.tuples = {name: Counter(map(repr, running.tuples(name))) for name in watch}
            outcome.stats, outcome.has_ended = running.stats(), running.has_ended
            outcome.dead_letters = list(running.dead_letters)
        return outcome


def listen(feeder: FeederSpout) -> Outcome:
    """Write down what is delivered to a feeder. Call it before the feeder is submitted."""
    outcome = Outcome()

    def delivered(message_id: Any, verdict: str) -> None:
        outcome.verdicts.setdefault(message_id, []).append(verdict)
        outcome.order.append(message_id)

    def failed(pair: tuple[Any, Failure]) -> None:
        message_id, failure = pair
        delivered(message_id, failure.kind.value)
        outcome.failures.setdefault(message_id, []).append(failure)

    feeder.acked = _Listening(lambda message_id: delivered(message_id, "ACKED"))
    feeder.failed = _Listening(failed)
    return outcome


class _Listening(list):
    """A list that calls a function with what is appended to it."""

    def __init__(self, on_append: Callable[[Any], None]) -> None:
        super().__init__()
        self._on_append = on_append

    def append(self, item: Any) -> None:
        self._on_append(item)
        super().append(item)
