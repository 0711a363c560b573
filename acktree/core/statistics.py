"""Statistics: Storm UI's numbers, counted exactly and added up in any order.

Rules of this file
------------------
1. Counters only grow and hold whole numbers, so that adding them up is exact whatever the order: latencies
   are kept as a sum of whole microseconds beside the number of samples, never as an average.
2. Adding up twice counts twice. That each part arrives once is owed by the caller (counts travel with a
   micro-batch's data, which Spark delivers to the acker's state once).
3. :class:`Counters` is what travels; :class:`Stats` is what a person reads, and is a value.

What is counted where: ``emitted`` (calls of emit) and ``transferred`` (copies sent) under the output stream;
a bolt's ``executed``, ``acked`` and ``failed`` under the input, written ``component:stream``; a spout's
``acked``, ``failed`` and ``timed_out`` under the stream that it emitted to. Latencies go with them: execute
and process with a bolt's input, complete with a spout's stream.

Source: Storm's ``BoltExecutorStats`` and ``SpoutExecutorStats``. Theirs count one event in twenty and add
twenty; ours count all. Latencies may be sampled, as theirs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from acktree.errors import ProtocolError

__all__ = [
    "ComponentStats",
    "Counters",
    "Key",
    "Latency",
    "Numbers",
    "OpenMessages",
    "ReportedError",
    "Stats",
    "TaskStats",
    "What",
]

What = Literal["emitted", "transferred", "executed", "acked", "failed", "timed_out"]
Latency = Literal["execute_ms", "process_ms", "complete_ms"]
Key = tuple[str, int, str, str]
"""(component, task id, stream, what): a :data:`What`, or a latency's sum ``…_us`` or count ``…_samples``."""

_WHATS: Final[tuple[What, ...]] = get_args(What)
_LATENCIES: Final[tuple[Latency, ...]] = get_args(Latency)
_SUMS: Final = {latency: latency.replace("_ms", "_us") for latency in _LATENCIES}
_SAMPLES: Final = {latency: latency.replace("_ms", "_samples") for latency in _LATENCIES}


class Counters(Mapping[Key, int]):
    """How often what happened, by (component, task id, stream, what). A count of zero has no entry.

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

    def add(self, component: str, task: int, stream: str, what: What, n: int) -> None:
        """Count ``n`` more.

        Args:
            component: Whose count it is.
            task: Its task id.
            stream: The output stream; for what a bolt does with its input, ``component:stream``.
            what: One of :data:`What`.
            n: How many, 0 or more.

        Raises:
            ProtocolError: ``what`` is no such word, or ``n`` is negative.
        """
        if what not in _WHATS:
            raise _broken(f"{what!r} is not counted")
        self._grow((component, int(task), stream, what), n)

    def add_latency(
        self, component: str, task: int, stream: str, latency: Latency, total_ms: float, samples: int
    ) -> None:
        """Add the latencies of some tuples: their sum, rounded to a microsecond, and how many they were.

        Raises:
            ProtocolError: ``latency`` is no such word, or a number is negative.
        """
        if latency not in _LATENCIES:
            raise _broken(f"{latency!r} is not measured")
        self._grow((component, int(task), stream, _SUMS[latency]), round(total_ms * 1000))
        self._grow((component, int(task), stream, _SAMPLES[latency]), samples)

    def _grow(self, key: Key, n: int) -> None:
        if n < 0:
            raise _broken(f"counters only grow, and {key} was to grow by {n}")
        if n:
            self._counts[key] += int(n)  # int: a numpy integer would wrap, and is no JSON

    def merge(self, other: Counters) -> None:
        """Add another's counts to these. The other is not changed."""
        for key, n in other.items():
            self._counts[key] += n

    def total(
        self, what: str, *, component: str | None = None, task: int | None = None, stream: str | None = None
    ) -> int:
        """The sum over everything that is not named."""
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

    def by_stream(self, what: str, component: str) -> dict[str, int]:
        """The total of each stream of one component that has any."""
        totals: defaultdict[str, int] = defaultdict(int)
        for (of, _, stream, counted), n in self._counts.items():
            if of == component and counted == what:
                totals[stream] += n
        return dict(totals)

    def to_bytes(self) -> bytes:
        """Pack as JSON: rows of [component, task id, stream, what, count]. Equal counters, equal bytes."""
        return json.dumps(
            [[*key, n] for key, n in sorted(self._counts.items())], separators=(",", ":")
        ).encode()

    @classmethod
    def from_bytes(cls, packed: bytes | memoryview) -> Counters:
        """Undo :meth:`to_bytes`. Words that only a newer release counts are kept."""
        counters = cls()
        for component, task, stream, what, n in json.loads(bytes(packed)):
            counters._counts[component, task, stream, what] = n
        return counters


@dataclass(frozen=True, slots=True)
class Numbers:
    """What was counted in one place. A latency is an average in milliseconds; None if nothing was sampled."""

    emitted: int = 0
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    execute_ms: float | None = None
    """Time inside ``execute``, for a tuple."""
    process_ms: float | None = None
    """From the start of ``execute`` to the ack of that tuple."""
    complete_ms: float | None = None
    """From a spout's emit to the verdict ACKED."""


@dataclass(frozen=True, slots=True)
class TaskStats:
    """One task: in all, and by stream (a bolt's inputs are written ``component:stream``)."""

    total: Numbers
    streams: Mapping[str, Numbers]


@dataclass(frozen=True, slots=True)
class ComponentStats(TaskStats):
    """One component: in all, by stream, and by task."""

    tasks: Mapping[int, TaskStats]
    open: int | None = None
    """A spout's messages without a verdict, those that wait for a retry included; None for a bolt."""
    oldest_open_secs: float | None = None
    """Age of the oldest of them; None when there is none."""


@dataclass(frozen=True, slots=True)
class OpenMessages:
    """What a spout has open, all its tasks together."""

    count: int
    oldest_secs: float | None = None


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error that a component ran into or reported by ``collector.report_error``."""

    component: str
    task_id: int | None
    reason: str
    at_ms: int
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a running topology at one moment.

    >>> counters = Counters()
    >>> counters.add("orders", 1, "default", "emitted", 1200)
    >>> stats = Stats.of(counters, spouts={"orders": OpenMessages(200, 1.5)})
    >>> stats["orders"].total.emitted, stats["orders"].open
    (1200, 200)
    """

    components: Mapping[str, ComponentStats]
    """By component id, ascending."""
    errors: tuple[ReportedError, ...] = ()

    @staticmethod
    def of(
        counters: Counters,
        *,
        components: Iterable[str] = (),
        spouts: Mapping[str, OpenMessages] = MappingProxyType({}),
        errors: Iterable[ReportedError] = (),
    ) -> Stats:
        """Look at counters.

        Args:
            counters: What was counted; copied, so that the view stays as it is.
            components: Components to show even if nothing was counted for them yet.
            spouts: What each spout has open.
            errors: The last errors, in the order in which they are to be shown.
        """
        places: dict[str, dict[int, dict[str, _Tally]]] = {name: {} for name in (*components, *spouts)}
        for (component, task, stream, what), n in sorted(counters.items()):
            places.setdefault(component, {}).setdefault(task, {}).setdefault(stream, {})[what] = n
        seen = {name: _component(places[name], spouts.get(name)) for name in sorted(places)}
        return Stats(MappingProxyType(seen), tuple(errors))

    def __getitem__(self, component: str) -> ComponentStats:
        return self.components[component]

    def table(self) -> str:
        """Print as text: a line for each component, below it one for each of its streams, then the errors."""
        lines: list[tuple[str, ...]] = [_HEADINGS]
        for name, component in self.components.items():
            lines.append((name, *_cells(component.total), *_open_cells(component)))
            lines += [
                (f"  {stream}", *_cells(numbers), "", "") for stream, numbers in component.streams.items()
            ]
        return "\n".join([*_aligned(lines), *map(_error_line, self.errors)])


_Tally = dict[str, int]
_HEADINGS: Final = (
    "component",
    "emitted",
    "transferred",
    "executed",
    "acked",
    "failed",
    "timed out",
    "execute ms",
    "process ms",
    "complete ms",
    "open",
    "oldest s",
)


def _component(tasks: Mapping[int, Mapping[str, _Tally]], spout: OpenMessages | None) -> ComponentStats:
    by_task = {task: _task(streams) for task, streams in tasks.items()}
    by_stream: dict[str, list[_Tally]] = {}
    for streams in tasks.values():
        for stream, tally in streams.items():
            by_stream.setdefault(stream, []).append(tally)
    return ComponentStats(
        total=_numbers(tally for tallies in by_stream.values() for tally in tallies),
        streams=MappingProxyType({stream: _numbers(by_stream[stream]) for stream in sorted(by_stream)}),
        tasks=MappingProxyType(by_task),
        open=spout.count if spout else None,
        oldest_open_secs=spout.oldest_secs if spout else None,
    )


def _task(streams: Mapping[str, _Tally]) -> TaskStats:
    by_stream = {stream: _numbers([tally]) for stream, tally in streams.items()}
    return TaskStats(_numbers(streams.values()), MappingProxyType(by_stream))


def _numbers(tallies: Iterable[_Tally]) -> Numbers:
    total: defaultdict[str, int] = defaultdict(int)
    for tally in tallies:
        for what, n in tally.items():
            total[what] += n
    return Numbers(
        **{what: total[what] for what in _WHATS},
        execute_ms=_average_ms(total, "execute_ms"),
        process_ms=_average_ms(total, "process_ms"),
        complete_ms=_average_ms(total, "complete_ms"),
    )


def _average_ms(total: Mapping[str, int], latency: Latency) -> float | None:
    samples = total[_SAMPLES[latency]]
    return total[_SUMS[latency]] / samples / 1000 if samples else None


def _cells(numbers: Numbers) -> tuple[str, ...]:
    counts = (f"{getattr(numbers, what):,}" for what in _WHATS)
    return (*counts, *(_decimal(getattr(numbers, latency), 3) for latency in _LATENCIES))


def _open_cells(component: ComponentStats) -> tuple[str, str]:
    count = "" if component.open is None else f"{component.open:,}"
    return count, _decimal(component.oldest_open_secs, 1)


def _decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *padded]).rstrip()


def _error_line(error: ReportedError) -> str:
    task = "" if error.task_id is None else f" task={error.task_id}"
    return f"error component={error.component}{task} at_ms={error.at_ms} reason={error.reason!r}"


def _broken(what: str) -> ProtocolError:
    return ProtocolError(what, "Counters", "this is a bug in acktree: please report it")
