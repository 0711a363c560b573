"""Counters of events, exact and independent of the order in which they are added.

Rules of this file
------------------
1. Counters only grow and are integers, so that sums are exact in any order. A latency is a sum of whole
   microseconds and a number of samples, never an average.
2. Counters that are added twice count twice. The caller ensures that each part is added once: counters are
   sent with the data of a micro-batch, which Spark's checkpoint delivers once.

``emitted`` (calls of emit) and ``transferred`` (copies sent) are counted under the output stream; a bolt's
``executed``, ``acked`` and ``failed`` under the input, written ``component:stream``; a spout's ``acked``,
``failed`` and ``timed_out`` under the stream it emitted to; ``errors`` under :data:`NO_STREAM`. Latencies
are kept under the same streams: execute and process under a bolt's input, complete under a spout's stream.

Of the acker, the component ``__acker``, ``executed`` counts what it was sent, by ``component:stream`` with
Storm's names of its streams, and ``emitted`` its verdicts, by output stream. How latencies are spread is
counted by powers of two of microseconds: see :func:`spread_key`. Of the topology, the component ``__system``,
workers that were lost are counted.

Source: Storm's ``BoltExecutorStats`` and ``SpoutExecutorStats``. Storm counts one event in twenty and adds
twenty; here all events are counted. Latencies may be sampled, as in Storm.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Final, Literal, get_args

from acktree.errors import ProtocolError

What = Literal[
    "emitted", "transferred", "executed", "acked", "failed", "timed_out", "errors", "retried",
    "dead_lettered", "superseded",
]  # fmt: skip
Latency = Literal["execute_ms", "process_ms", "complete_ms"]
Key = tuple[str, int, str, str]
"""(component, task id, stream, what): a :data:`What`, or the name of a latency's sum or number of samples."""

ACKER: Final = "__acker"
"""Storm's name of the acker. No component of a user has it."""
ACKER_TASK: Final = 0
"""Its only task; those of users begin at 1."""
ACKER_INIT: Final = "__ack_init"
ACKER_ACK: Final = "__ack_ack"
ACKER_FAIL: Final = "__ack_fail"
ACKER_RESET: Final = "__ack_reset_timeout"
GATE: Final = "__gate/"
"""How the ids of gates begin, which count as spouts do. No component of a user has such an id."""
SYSTEM: Final = "__system"
"""Storm's name of what counts for a whole topology."""
SYSTEM_TASK: Final = -1
"""Storm's number of its task."""
WORKERS_LOST: Final = "workers_lost"
LEVEL_TIME: Final = "level_us"
"""For how long levels ran on the clock, in microseconds: the sum of all partitions."""
FAILED_BY: Final = "failed_by_"
"""How the keys begin that say how many of the failed messages of a spout failed of which cause."""
NOT_ASKED: Final = "not_asked_us_"
"""How the keys of times begin for which a spout was not asked; the reason follows."""
PHASE: Final = "phase_us_"
"""How the acker's keys begin that say where the time of micro-batches went; the phase follows."""
NO_STREAM: Final = ""
"""The stream of counts that belong to no stream; no stream can have this name."""
WHATS: Final[tuple[What, ...]] = get_args(What)
LATENCIES: Final[tuple[Latency, ...]] = get_args(Latency)
SUMS: Final[Mapping[Latency, str]] = {name: name.replace("_ms", "_us") for name in LATENCIES}
"""The key of each latency's sum, in microseconds."""
SAMPLES: Final[Mapping[Latency, str]] = {name: name.replace("_ms", "_samples") for name in LATENCIES}
"""The key of each latency's number of samples."""


def spread_key(name: str, total_us: int, samples: int) -> str:
    """The key that counts latencies of one size: the average's number of binary digits, in microseconds.

    >>> spread_key("execute_ms", 900, 100), spread_key("execute_ms", 700, 100)
    ('execute_ms_b4', 'execute_ms_b3')
    """
    return f"{name}_b{int(total_us // samples).bit_length()}"


class Counters(Mapping[Key, int]):
    """The number of events by (component, task id, stream, what). A count of zero has no entry.

    >>> counters = Counters()
    >>> counters.add("split", 3, "default", "emitted", 5)
    >>> counters.add("split", 4, "default", "emitted", 2)
    >>> counters.total("emitted", component="split")
    7
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: defaultdict[Key, int] = defaultdict(int)

    def __getitem__(self, key: Key) -> int:
        if key not in self._counts:
            raise KeyError(key)
        return self._counts[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    # Mapping's own views ask for each key again, which costs three times as much.
    def items(self) -> ItemsView[Key, int]:
        """Each key with its count."""
        return self._counts.items()

    def values(self) -> ValuesView[int]:
        """The counts, in the order of the keys."""
        return self._counts.values()

    def add(self, component: str, task: int, stream: str, what: What, n: int) -> None:
        """Count ``n`` more.

        Args:
            component: The component id.
            task: The task id.
            stream: The output stream, or for counts of a bolt's input ``component:stream``.
            what: One of :data:`What`.
            n: The number of events, 0 or more.

        Raises:
            ProtocolError: ``what`` is not one of :data:`What`, or ``n`` is negative.
        """
        if what not in WHATS:
            raise _broken(f"{what!r} is not counted")
        self._grow((component, int(task), stream, what), n)

    def add_failed(self, component: str, task: int, stream: str, cause: str | None, n: int) -> None:
        """Count ``n`` more messages of a spout that failed, and of which cause; None: they timed out."""
        if cause is None:
            self.add(component, task, stream, "timed_out", n)
            return
        self.add(component, task, stream, "failed", n)
        self._grow((component, int(task), stream, f"{FAILED_BY}{cause}"), n)

    def add_latency(
        self, component: str, task: int, stream: str, latency: Latency, total_ms: float, samples: int
    ) -> None:
        """Add the latencies of some tuples: their sum, rounded to a microsecond, and their number.

        How latencies are spread is counted by task, all of these tuples with their average.

        Raises:
            ProtocolError: ``latency`` is not one of :data:`Latency`, or a number is negative.
        """
        if latency not in LATENCIES:
            raise _broken(f"{latency!r} is not measured")
        total_us = round(total_ms * 1000)
        self._grow((component, int(task), stream, SUMS[latency]), total_us)
        self._grow((component, int(task), stream, SAMPLES[latency]), samples)
        if latency != "complete_ms" and samples:  # of spouts there is a histogram of each message
            self._grow((component, int(task), NO_STREAM, spread_key(latency, total_us, samples)), samples)

    def add_executed_failures(self, other: Counters) -> None:
        """Add the executions of the tuples that failed in other counters, each with the average latency."""
        for (component, task, stream, what), failed in other.items():
            if what != "failed":
                continue
            self.add(component, task, stream, "executed", failed)
            samples = other.get((component, task, stream, SAMPLES["execute_ms"]), 0)
            total_us = other.get((component, task, stream, SUMS["execute_ms"]), 0)
            if samples:
                self.add_latency(
                    component, task, stream=stream, latency="execute_ms",
                    total_ms=total_us / 1000 * failed / samples, samples=failed,
                )  # fmt: skip

    def add_not_asked(self, component: str, task: int, why: str, secs: float) -> None:
        """Add the time for which a spout was not asked for messages, for one reason."""
        self._grow((component, int(task), NO_STREAM, f"{NOT_ASKED}{why}"), round(secs * 1_000_000))

    def add_level_time(self, secs: float) -> None:
        """Add the time for which a level ran in one partition, on the clock."""
        self._grow((SYSTEM, SYSTEM_TASK, NO_STREAM, LEVEL_TIME), round(secs * 1_000_000))

    def _grow(self, key: Key, n: int) -> None:
        if n < 0:
            raise _broken(f"counters only grow, and {key} was to grow by {n}")
        if n:
            self._counts[key] += int(n)  # a numpy integer would overflow, and is not JSON serialisable

    def merge(self, other: Counters) -> None:
        """Add the counts of another object, which is not changed."""
        for key, n in other.items():
            self._counts[key] += n

    def total(
        self, what: str, *, component: str | None = None, task: int | None = None, stream: str | None = None
    ) -> int:
        """The sum of all counts that match the given component, task and stream."""
        return sum(
            n
            for (of, by, on, counted), n in self._counts.items()
            if counted == what and component in {None, of} and task in {None, by} and stream in {None, on}
        )

    def by_component(self, what: str) -> dict[str, int]:
        """The total of each component that has any."""
        totals: defaultdict[str, int] = defaultdict(int)
        for (component, _, _, counted), n in self._counts.items():
            if counted == what:
                totals[component] += n
        return dict(totals)

    @classmethod
    def of(cls, counts: Iterable[tuple[Key, int]]) -> Counters:
        """Counters with these counts; zeros are left out."""
        counters = cls()
        for key, n in counts:
            counters._grow(key, n)
        return counters

    def to_bytes(self) -> bytes:
        """Encode as JSON: rows of [component, task id, stream, what, count]; equal counters, equal bytes."""
        return json.dumps(
            [[*key, n] for key, n in sorted(self._counts.items())], separators=(",", ":")
        ).encode()

    @classmethod
    def from_bytes(cls, packed: bytes | memoryview) -> Counters:
        """The inverse of :meth:`to_bytes`. Unknown kinds of counts, of a newer release, are kept."""
        counters = cls()
        for component, task, stream, what, n in json.loads(bytes(packed)):
            counters._counts[component, task, stream, what] = n
        return counters


def _broken(what: str) -> ProtocolError:
    return ProtocolError(what, "Counters", "this is a bug in acktree: please report it")
