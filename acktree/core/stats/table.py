"""The statistics as text for a terminal: tables of spouts, gates and bolts, metrics, the last errors.

Rules of this file
------------------
1. No line but those of errors is longer than :data:`WIDTH`. First large counts are shortened (``1.23M``),
   then names are. ``Stats`` itself has the exact numbers.
2. A count without events is 0; a latency without samples is blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from acktree import markup
from acktree.core.stats.counters import GATE
from acktree.core.stats.numbers import ComponentStats, KeyNumbers, Numbers, ReportedError
from acktree.core.stats.user_metrics import UserMetric
from acktree.texts import MOST_REASON

WIDTH: Final = 100
"""The most columns of a line."""

_SPOUT: Final = (
    "spout", "emitted", "acked", "failed", "timed out", "errors", "complete ms", "p50", "p99", "open",
    "oldest s",
)  # fmt: skip
_GATE: Final = ("gate", "emitted", "acked", "superseded", "failed", "timed out", "errors", "open", "oldest s")
_BOLT: Final = (
    "bolt", "executed", "acked", "failed", "emitted", "transferred", "errors", "execute ms", "process ms",
)  # fmt: skip
_METRIC: Final = ("metric", "kind", "value", "mean", "p50", "p99", "1 min")
_NAME: Final = 40
_SHORT_FROM: Final = 10_000
_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))

_Row = tuple[str, ...]
_Count = Callable[[int], str]
_Rows = Callable[[str, ComponentStats, _Count], Iterator[_Row]]


class _Shown(Protocol):
    """What is laid out: the parts of ``Stats`` that are shown."""

    @property
    def components(self) -> Mapping[str, ComponentStats]: ...
    @property
    def errors(self) -> Sequence[ReportedError]: ...
    @property
    def warming_up_secs(self) -> float | None: ...
    @property
    def workers_lost(self) -> int: ...
    @property
    def open_at_start(self) -> int: ...
    @property
    def keys(self) -> KeyNumbers: ...


def table_of(stats: _Shown) -> str:
    """Lay the numbers out: a line for each component, below it one for each of its streams."""
    lines: list[str] = []
    if stats.warming_up_secs is not None:
        lines.append(
            f"warming up for {stats.warming_up_secs:.1f} s: the spouts open after the first micro-batch"
        )
    if stats.open_at_start:
        lines.append(
            f"{stats.open_at_start:,} messages were open when this run began; their verdicts are here too"
        )
    for head, rows_of, components in _tables(stats):
        lines += _fitting(head, rows_of, components)
    lines += _metric_lines(stats)
    lines += _lost_lines(stats)
    lines += key_lines(stats.keys)
    lines += _outage_lines(stats)
    return "\n".join([*lines, *map(_error_line, stats.errors)])


def html_of(stats: _Shown) -> str:
    """The numbers as static HTML, for notebooks: exact, in the same columns."""
    parts = [
        markup.table(
            head, [row for name, component in components.items() for row in rows_of(name, component, _exact)]
        )
        for head, rows_of, components in _tables(stats)
        if components
    ]
    metrics = _metric_rows(stats, MOST_REASON)
    if metrics:
        parts.append(markup.table(_METRIC, metrics, right_from=2))
    if stats.warming_up_secs is not None:
        parts.insert(0, markup.note(f"warming up for {stats.warming_up_secs:.0f} s"))
    last = [
        *_lost_lines(stats),
        *key_lines(stats.keys),
        *_outage_lines(stats),
        *map(_error_line, stats.errors[-10:]),
    ]
    return "".join([*parts, *map(markup.note, last)])


def _tables(stats: _Shown) -> Iterator[tuple[_Row, _Rows, Mapping[str, ComponentStats]]]:
    """The headings, rows and components of each table; that of the spouts is there also where it is empty."""
    spouts = {name: component for name, component in stats.components.items() if component.open is not None}
    gates = {name: component for name, component in spouts.items() if name.startswith(GATE)}
    bolts = {name: component for name, component in stats.components.items() if component.open is None}
    yield _SPOUT, _spout_row, {name: component for name, component in spouts.items() if name not in gates}
    if gates:
        yield _GATE, _gate_row, gates
    if bolts:
        yield _BOLT, _bolt_row, bolts


def _lost_lines(stats: _Shown) -> list[str]:
    """A line of the workers that were lost; none where there is none."""
    return [f"workers lost: {stats.workers_lost:,}"] if stats.workers_lost else []


def key_lines(keys: KeyNumbers) -> list[str]:
    """A line of the keys of messages; no line where there are none."""
    if not (keys.kept or keys.open):
        return []
    age = "" if keys.oldest_secs is None else f", the oldest for {keys.oldest_secs:,.0f} s"
    return [f"keys: {keys.kept:,} kept{age}; {keys.open:,} open, {keys.waiting:,} messages wait for one"]


def _outage_lines(stats: _Shown) -> list[str]:
    """A line for each call of a spout that is made again, and each dependency that its messages wait for."""
    return [
        f"outage component={name}{outage.dependency and f' dependency={outage.dependency}'} "
        f"since={_utc(outage.since_ms)} tries={outage.tries:,} reason={outage.reason!r}"
        for name, component in stats.components.items()
        for outage in component.outages
    ]


def _metric_lines(stats: _Shown) -> list[str]:
    """The metrics of users: a line for each component and name; nothing where there is none."""
    rows = _metric_rows(stats, _NAME)
    return _aligned([_METRIC, *rows]) if rows else []


def _metric_rows(stats: _Shown, most_name: int) -> list[_Row]:
    return [
        (_cut(f"{component} {name}", most_name), *_metric_cells(metric))
        for component, component_stats in stats.components.items()
        for name, metric in component_stats.metrics.items()
    ]


def _metric_cells(metric: UserMetric) -> _Row:
    unit = " ms" if metric.kind == "timer" else ""
    value = _number(metric.value) if metric.kind == "gauge" else short(metric.count)
    spread = (metric.mean, metric.percentile(50), metric.percentile(99))
    rates = f"{metric.rates[0]:.3g}/s" if metric.rates else ""
    cells = ("" if percentile is None else f"{_number(percentile)}{unit}" for percentile in spread)
    return (metric.kind, value, *cells, rates)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def short(count: int) -> str:
    """A count in at most 6 characters, rounded down.

    >>> [short(count) for count in (9_999, 10_000, 1_234_567, 999_999_999)]
    ['9,999', '10.0k', '1.23M', '999M']
    """
    if count < _SHORT_FROM:
        return f"{count:,}"
    size, unit = next((size, unit) for size, unit in _UNITS if count >= size)
    whole = count // size
    digits = max(0, 3 - len(str(whole)))
    return f"{count * 10**digits // size / 10**digits:.{digits}f}{unit}"


def _exact(count: int) -> str:
    return f"{count:,}"


def _fitting(headings: _Row, rows_of: _Rows, components: Mapping[str, ComponentStats]) -> list[str]:
    def rows(count: _Count) -> Iterator[_Row]:
        for name, component in components.items():
            yield from rows_of(name, component, count)

    lines = _aligned([headings, *rows(_exact)])
    if max(map(len, lines)) <= WIDTH:
        return lines
    shortened = [headings, *rows(short)]
    others = max(map(len, _aligned([("", *cells) for _, *cells in shortened])))
    most = max(8, WIDTH - others)
    return _aligned([(_cut(name, most), *cells) for name, *cells in shortened])


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _spout_row(name: str, spout: ComponentStats, count: _Count) -> Iterator[_Row]:
    spread = [None if spout.complete_ms is None else spout.complete_ms.percentile(at) for at in (50, 99)]
    yield (
        name, *_of_spout(spout.total, count), *("" if ms is None else count(ms) for ms in spread),
        count(spout.open or 0), _decimal(spout.oldest_open_secs, 1),
    )  # fmt: skip
    for stream, numbers in spout.streams.items():
        yield f"  {stream}", *_of_spout(numbers, count), "", "", "", ""


def _gate_row(name: str, gate: ComponentStats, count: _Count) -> Iterator[_Row]:
    total = gate.total
    counts = (
        total.emitted, total.acked, total.superseded, total.failed, total.timed_out, total.errors,
        gate.open or 0,
    )  # fmt: skip
    yield name, *map(count, counts), _decimal(gate.oldest_open_secs, 1)


def _of_spout(numbers: Numbers, count: _Count) -> _Row:
    counts = (numbers.emitted, numbers.acked, numbers.failed, numbers.timed_out, numbers.errors)
    return (*map(count, counts), _decimal(numbers.complete_ms, 0))


def _bolt_row(name: str, bolt: ComponentStats, count: _Count) -> Iterator[_Row]:
    yield name, *_of_bolt(bolt.total, count)
    for stream, numbers in bolt.streams.items():
        yield f"  {stream}", *_of_bolt(numbers, count)


def _of_bolt(numbers: Numbers, count: _Count) -> _Row:
    counts = (
        numbers.executed, numbers.acked, numbers.failed, numbers.emitted, numbers.transferred, numbers.errors,
    )  # fmt: skip
    return (*map(count, counts), _decimal(numbers.execute_ms, 3), _decimal(numbers.process_ms, 3))


def _decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _aligned(lines: Sequence[_Row]) -> list[str]:
    """Align names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])],
        ).rstrip()
        for name, *cells in lines
    ]


def _error_line(error: ReportedError) -> str:
    task = "" if error.task_id is None else f" task={error.task_id}"
    reason = "; ".join(line.strip() for line in error.reason.splitlines())
    return f"error component={error.component}{task} at={_utc(error.at_ms)} reason={reason!r}"


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
