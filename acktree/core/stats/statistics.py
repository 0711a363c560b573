"""Statistics: the numbers of Storm's UI as one value.

Rules of this file
------------------
1. A view is computed from counters and never added to them: averages cannot be added.
2. A view does not change. Make a new one for newer numbers.
3. A count without events is 0; a latency without samples is None, and blank in a table.

Source: the tables of Storm's UI, without their windows and executors: a component is shown in total, by
stream and by task, since the start of the topology.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from acktree.core.stats.counters import (
    ACKER,
    ACKER_ACK,
    ACKER_FAIL,
    ACKER_INIT,
    ACKER_RESET,
    FAILED_BY,
    NO_STREAM,
    NOT_ASKED,
    PHASE,
    SAMPLES,
    SUMS,
    SYSTEM,
    WHATS,
    WORKERS_LOST,
    Counters,
    Latency,
)
from acktree.core.stats.numbers import (
    AckerNumbers,
    ComponentStats,
    KeyNumbers,
    Numbers,
    ReportedError,
    SpoutNumbers,
    TaskStats,
    TraceNumbers,
)
from acktree.core.stats.table import html_of, table_of
from acktree.core.stats.user_metrics import UserMetric, summed

__all__ = ["Counters", "Held", "Stats", "summary"]

Held = Mapping[tuple[str, int], tuple[int, float | None]]
"""(bolt, task) -> how many tuples it holds, and the age of the oldest in seconds."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a running topology at one time.

    >>> counters = Counters()
    >>> counters.add("orders", 1, "default", "emitted", 1200)
    >>> stats = Stats.of(counters, spouts={"orders": SpoutNumbers(200, 1.5)})
    >>> stats["orders"].total.emitted, stats["orders"].open
    (1200, 200)
    """

    components: Mapping[str, ComponentStats]
    """By component id, ascending."""
    errors: tuple[ReportedError, ...] = ()
    warming_up_secs: float | None = None
    """For how long the topology has been warming up: no spout is open yet. None once it is warm."""
    open_at_start: int = 0
    """The messages that were open when this run began: emitted by earlier runs, counted here by verdict."""
    traces: TraceNumbers = field(default_factory=TraceNumbers)
    """Of all components together."""
    acker: AckerNumbers = field(default_factory=AckerNumbers)
    """Of ``__acker``, which is not among the components."""
    workers_lost: int = 0
    """Python workers that died while they ran a level, by themselves or with their executor, and those whose
    work Spark gave up, as where the disk of a shuffle is full. One is counted with the micro-batch that ran
    again for it. After a crash of the driver each is counted once; those that the driver took with it are
    not, and neither is one that dies while it has no tuples. With a checkpoint at a URL, what only a lost
    executor or an earlier driver knew is missing."""
    keys: KeyNumbers = field(default_factory=KeyNumbers)
    """The keys of messages, of all spouts together."""

    @staticmethod
    def of(
        counters: Counters,
        *,
        components: Iterable[str] = (),
        spouts: Mapping[str, SpoutNumbers] = MappingProxyType({}),
        errors: Iterable[ReportedError] = (),
        warming_up_secs: float | None = None,
        open_at_start: int = 0,
        metrics: Mapping[tuple[str, int, str], UserMetric] = MappingProxyType({}),
        traces: TraceNumbers | None = None,
        held: Held = MappingProxyType({}),
        open_roots: int = 0,
        next_deadline_ms: int | None = None,
        keys: KeyNumbers = KeyNumbers(),  # noqa: B008  # it is frozen
    ) -> Stats:
        """Compute the statistics from counters.

        Args:
            counters: The counters; copied, so the view does not change.
            components: Components to show even without counts.
            spouts: The open messages of each spout.
            errors: The last errors, in the order of display.
            warming_up_secs: For how long the topology has been warming up; None when it is warm.
            open_at_start: The messages that earlier runs left open.
            metrics: The metrics of users, by (component, task, name).
            traces: What became of traces and events; None for nothing.
            held: The tuples that tasks of bolts remember.
            open_roots: The open roots of the acker.
            next_deadline_ms: When the acker needs a micro-batch for a timeout; None for never.
            keys: The keys of messages.
        """
        tallies_of: dict[str, dict[int, dict[str, _Tally]]] = {name: {} for name in (*components, *spouts)}
        of_acker: dict[str, _Tally] = {}
        of_system: dict[str, int] = {}
        for (component, task, stream, what), n in sorted(counters.items()):
            if component == SYSTEM:
                of_system[what] = n
                continue
            if component == ACKER:
                of_acker.setdefault(stream, {})[what] = n
                continue
            tallies_of.setdefault(component, {}).setdefault(task, {}).setdefault(stream, {})[what] = n
        metrics_of: dict[str, dict[int, dict[str, UserMetric]]] = {}
        for (component, task, name), metric in metrics.items():
            tallies_of.setdefault(component, {}).setdefault(task, {})
            metrics_of.setdefault(component, {}).setdefault(task, {})[name] = metric
        held_by: dict[str, dict[int, tuple[int, float | None]]] = {}
        for (component, task), held_tuples in held.items():
            tallies_of.setdefault(component, {}).setdefault(task, {})
            held_by.setdefault(component, {})[task] = held_tuples
        seen = {
            name: _component(
                tallies_of[name], spouts.get(name), metrics_of.get(name, {}), held_by.get(name, {})
            )
            for name in sorted(tallies_of)
        }
        return Stats(
            MappingProxyType(seen), tuple(errors), warming_up_secs, open_at_start,
            traces=traces or TraceNumbers(), acker=_acker(of_acker, open_roots, next_deadline_ms),
            workers_lost=of_system.get(WORKERS_LOST, 0), keys=keys,
        )  # fmt: skip

    def __getitem__(self, component: str) -> ComponentStats:
        return self.components[component]

    def __repr__(self) -> str:
        return f"Stats({summary(self)})"

    def _repr_html_(self) -> str:
        """For notebooks: the tables."""
        return html_of(self)

    def table(self) -> str:
        """The numbers as text, at most 100 columns: see :mod:`acktree.core.stats.table`."""
        return table_of(self)


def summary(stats: Stats) -> str:
    """The numbers of all spouts in one line."""
    spouts = [component for component in stats.components.values() if component.open is not None]
    acked, failed, timed_out = (
        sum(getattr(spout.total, what) for spout in spouts) for what in ("acked", "failed", "timed_out")
    )
    numbers = (
        f"acked={acked}, failed={failed}, timed_out={timed_out}, open={sum(s.open or 0 for s in spouts)}"
    )
    warming = "" if stats.warming_up_secs is None else f", warming up for {stats.warming_up_secs:.0f} s"
    return f"{len(stats.components)} components, {numbers}{warming}"


_Tally = dict[str, int]


def _component(
    tasks: Mapping[int, Mapping[str, _Tally]],
    spout: SpoutNumbers | None,
    metrics: Mapping[int, Mapping[str, UserMetric]],
    held: Mapping[int, tuple[int, float | None]],
) -> ComponentStats:
    by_task = {
        task: _task(streams, metrics.get(task, {}), *held.get(task, (None, None)))
        for task, streams in tasks.items()
    }
    by_name: dict[str, list[UserMetric]] = {}
    for of_task in metrics.values():
        for name, metric in of_task.items():
            by_name.setdefault(name, []).append(metric)
    by_stream: dict[str, list[_Tally]] = {}
    for streams in tasks.values():
        for stream, tally in streams.items():
            by_stream.setdefault(stream, []).append(tally)
    own = _added(by_stream.get(NO_STREAM, ()))
    return ComponentStats(
        total=_numbers(tally for tallies in by_stream.values() for tally in tallies),
        streams=_streams({stream: _numbers(by_stream[stream]) for stream in sorted(by_stream)}),
        tasks=MappingProxyType(by_task),
        open=spout.count if spout else None,
        oldest_open_secs=spout.oldest_secs if spout else None,
        lag=spout.lag if spout else None,
        lag_by_partition=spout.lag_by_partition if spout else {},
        complete_ms=spout.complete_ms if spout else None,
        outages=spout.outages if spout else (),
        awaiting_retry=spout.awaiting_retry if spout else None,
        execute_spread=_spread_of(own, "execute_ms"),
        process_spread=_spread_of(own, "process_ms"),
        not_asked_secs=_not_asked_secs(own),
        failed_by=_failed_by(by_stream),
        metrics={name: summed(several) for name, several in sorted(by_name.items())},
        held=sum(count for count, _ in held.values()) if held else None,
        oldest_held_secs=max((secs for _, secs in held.values() if secs is not None), default=None),
    )


def _task(
    streams: Mapping[str, _Tally],
    metrics: Mapping[str, UserMetric],
    held: int | None,
    oldest_held_secs: float | None,
) -> TaskStats:
    by_stream = {stream: _numbers([tally]) for stream, tally in streams.items()}
    return TaskStats(
        _numbers(streams.values()), _streams(by_stream), metrics=metrics,
        held=held, oldest_held_secs=oldest_held_secs,
        not_asked_secs=_not_asked_secs(streams.get(NO_STREAM, {})),
    )  # fmt: skip


def _acker(streams: Mapping[str, _Tally], open_roots: int, next_deadline_ms: int | None) -> AckerNumbers:
    received = {stream: tally["executed"] for stream, tally in streams.items() if "executed" in tally}
    own: Mapping[str, int] = streams.get(NO_STREAM, {})

    def sent(stream: str) -> int:
        return sum(n for source, n in received.items() if source.rpartition(":")[2] == stream)

    def decided(stream: str, what: str) -> int:
        return streams.get(stream, {}).get(what, 0)

    settle, batch = _spread_of(own, "settle"), _spread_of(own, "batch")
    return AckerNumbers(
        open_roots, next_deadline_ms, inits=sent(ACKER_INIT), acks=sent(ACKER_ACK), fails=sent(ACKER_FAIL),
        resets=sent(ACKER_RESET), late=own.get("late", 0), acked=decided(ACKER_ACK, "emitted"),
        failed=decided(ACKER_FAIL, "emitted"), timed_out=decided(ACKER_FAIL, "timed_out"),
        micro_batches=own.get("micro_batches", 0),
        settle_ms=own.get("settle_us", 0) / sum(settle.values()) / 1000 if settle else None,
        settle_spread=settle,
        batch_ms=own.get("batch_us", 0) / sum(batch.values()) / 1000 if batch else None, batch_spread=batch,
        received=received, phase_secs=_phase_secs(own),
    )  # fmt: skip


def _phase_secs(own: Mapping[str, int]) -> dict[str, float]:
    """The seconds of each phase of micro-batches; the acker's are counted beside, with their spread."""
    settled = {"acker": own["settle_us"] / 1_000_000} if "settle_us" in own else {}
    return dict(sorted((_secs_of(own, PHASE) | settled).items()))


def _not_asked_secs(tally: Mapping[str, int]) -> dict[str, float]:
    return _secs_of(tally, NOT_ASKED)


def _secs_of(tally: Mapping[str, int], begin: str) -> dict[str, float]:
    """Counts of microseconds whose keys begin alike, in seconds by what follows."""
    return {
        key.removeprefix(begin): total_us / 1_000_000
        for key, total_us in sorted(tally.items())
        if key.startswith(begin)
    }


def _failed_by(by_stream: Mapping[str, Iterable[_Tally]]) -> dict[str, dict[str, int]]:
    """By stream how many messages failed of which cause; without streams on which none did."""
    failed_by: dict[str, dict[str, int]] = {}
    for stream, tallies in sorted(by_stream.items()):
        for key, n in sorted(_added(tallies).items()):
            if key.startswith(FAILED_BY):
                failed_by.setdefault(stream, {})[key.removeprefix(FAILED_BY)] = n
    return failed_by


def _spread_of(tally: Mapping[str, int], name: str) -> dict[int, int]:
    """How a latency is spread: the number of binary digits of its microseconds -> how often."""
    begin = f"{name}_b"
    buckets = ((key, n) for key, n in tally.items() if key.startswith(begin))
    return dict(sorted((int(key.removeprefix(begin)), n) for key, n in buckets))


def _streams(numbers: dict[str, Numbers]) -> Mapping[str, Numbers]:
    numbers.pop(NO_STREAM, None)  # shown only in the total
    return MappingProxyType(numbers)


def _added(tallies: Iterable[_Tally]) -> defaultdict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for tally in tallies:
        for what, n in tally.items():
            total[what] += n
    return total


def _numbers(tallies: Iterable[_Tally]) -> Numbers:
    total = _added(tallies)
    return Numbers(
        **{what: total[what] for what in WHATS},
        execute_ms=_average_ms(total, "execute_ms"),
        process_ms=_average_ms(total, "process_ms"),
        complete_ms=_average_ms(total, "complete_ms"),
    )


def _average_ms(total: Mapping[str, int], latency: Latency) -> float | None:
    samples = total[SAMPLES[latency]]
    return total[SUMS[latency]] / samples / 1000 if samples else None
