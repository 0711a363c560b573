"""The snapshot: all that operators see of a topology at one moment, as one value.

Rules of this file
------------------
1. Each door (socket, command line, REST, metrics, page) shows numbers of one snapshot, and adds none.
2. A snapshot is plain data: it travels as JSON, and reading one runs no code and unpickles nothing.
3. A reader of another release ignores what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from acktree.core.stats.histograms import Histogram
from acktree.core.stats.numbers import (
    AckerNumbers,
    ComponentStats,
    KeyNumbers,
    Numbers,
    Outage,
    ReportedError,
    TaskStats,
    TraceNumbers,
)
from acktree.core.stats.statistics import Stats
from acktree.core.stats.user_metrics import UserMetric

__all__ = [
    "ALL_TIME",
    "RECENT",
    "RUN",
    "STORM_WINDOWS",
    "VERDICTS",
    "WINDOWS",
    "AckerNumbers",
    "InboxNumbers",
    "LetterNumbers",
    "Snapshot",
    "Status",
    "Window",
    "exact",
    "for_browsers",
    "plain",
]

Status = Literal["STARTING", "ACTIVE", "INACTIVE", "KILLED", "ENDED", "STOPPED", "FAILED"]
"""KILLED: a kill waits for open messages. The last three are of a topology that no driver runs any more: it
came to its end, was stopped, or an error stopped it."""

ALL_TIME: Final = ":all-time"
"""The counts of all runs on the checkpoint."""
RUN: Final = ":run"
"""What ``running.stats()`` returns: this run's numbers, a verdict counted when its spout has it."""
RECENT: Final = "10"
"""The window for rates that are shown live."""
STORM_WINDOWS: Final = ("600", "10800", "86400", ALL_TIME)
VERDICTS: Final = ("emitted", "acked", "failed", "timed_out")
"""What accounts count of each window."""
WINDOWS: Final = (RECENT, *STORM_WINDOWS, RUN)


@dataclass(frozen=True, slots=True)
class Window:
    """The numbers of the last seconds.

    Attributes:
        secs: The time that the numbers cover, of which a driver ran: less than asked for while the topology
            is younger or was stopped, and up to a twentieth more.
        stats: Numbers by component, stream and task.
    """

    secs: float
    stats: Stats

    def rate(self, component: str, what: str) -> float:
        """Events of a component in a second."""
        found = self.stats.components.get(component)
        return getattr(found.total, what) / self.secs if found and self.secs > 0 else 0.0

    def busy(self, component: str) -> dict[int, float]:
        """By task of a bolt how long it spent in ``execute`` in a second; of calls at once each counts."""
        found = self.stats.components.get(component)
        if found is None or self.secs <= 0:
            return {}
        return {
            task: numbers.total.executed * (numbers.total.execute_ms or 0.0) / (self.secs * 1000)
            for task, numbers in found.tasks.items()
        }


@dataclass(frozen=True, slots=True)
class InboxNumbers:
    """What spouts emitted and Spark has not committed yet."""

    messages: int = 0
    """Messages that wait for a micro-batch."""
    bytes: int = 0
    """Bytes that wait, or are kept for a retry."""
    limit_messages: int = 0
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LetterNumbers:
    """Dead letters of the topology by what became of them; None where the store could not be asked."""

    waiting: int | None = None
    redriven: int | None = None
    """Sent again, and without a final verdict."""
    settled: int | None = None

    @property
    def total(self) -> int | None:
        """All of them."""
        counts = (self.waiting, self.redriven, self.settled)
        return None if None in counts else sum(count or 0 for count in counts)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A topology at one moment.

    Attributes:
        id: Storm's form of an id: name, run and the second in which the run began.
        checkpoint: The folder or URL.
        run: The number of the run on this checkpoint, from 1.
        batch_id: The last micro-batch whose results are counted; -1 for none.
        taken_ms, began_ms: Of the snapshot and of the run; milliseconds since 1970.
        config: The settings by their dotted keys, without secrets.
        graph: ``Description.data``: components, subscriptions and levels.
        windows: By name: those of :data:`WINDOWS`.
        errors: The last errors, the oldest first.
        acker: The acker in this run; each window has its own.
        keys: The keys of messages.
        batch_ms: Where the time of the last micro-batch went, by phase of Spark; empty before the first. Of
            ``addBatch`` also its parts: ``level_0`` and so on, ``acker`` and ``log``.
        metrics_dropped: How many intervals metrics consumers were too slow for.
        stopped_by: The error that stopped it; None for none.
        debug: What operators let the event log have: component -> percentage of messages, "" for all that are
            not named.
    """

    topology: str
    id: str
    checkpoint: str
    status: Status
    run: int
    batch_id: int
    taken_ms: int
    began_ms: int
    host: str
    pid: int
    user: str
    version: str
    config: Mapping[str, Any]
    graph: Mapping[str, Any]
    windows: Mapping[str, Window]
    errors: tuple[ReportedError, ...] = ()
    acker: AckerNumbers = field(default_factory=AckerNumbers)
    inbox: InboxNumbers = InboxNumbers()
    keys: KeyNumbers = field(default_factory=KeyNumbers)
    dead_letters: LetterNumbers = LetterNumbers()
    batch_ms: Mapping[str, float] = field(default_factory=dict)
    metrics_dropped: int = 0
    stopped_by: str | None = None
    debug: Mapping[str, float] = field(default_factory=dict)

    @property
    def stats(self) -> Stats:
        """The numbers of the run: what ``running.stats()`` returned at that moment."""
        return self.windows.get(RUN, self.windows[ALL_TIME]).stats  # an older driver has no window of the run

    @property
    def has_acker(self) -> bool:
        """Whether messages are tracked."""
        return self.config.get("topology.acker.executors") != 0

    @property
    def spouts(self) -> tuple[str, ...]:
        """The ids of the spouts, without gates: messages are theirs."""
        return tuple(name for name in self.sources if name not in self.gates)

    @property
    def gates(self) -> tuple[str, ...]:
        """The ids of the gates, each of which works as a spout."""
        return tuple(name for name, about in self.graph["components"].items() if "gate_of" in about)

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of spouts and gates."""
        return tuple(name for name, about in self.graph["components"].items() if about["kind"] == "spout")

    @property
    def bolts(self) -> tuple[str, ...]:
        """The ids of the bolts."""
        return tuple(name for name, about in self.graph["components"].items() if about["kind"] == "bolt")

    def capacities(self, window: Window, component: str) -> dict[int, float]:
        """By task of a bolt its load: the share of the time in ``execute``, of what it may do at once."""
        at_once = self.graph["components"].get(component, {}).get("at_once", 1)
        return {task: busy / at_once for task, busy in window.busy(component).items()}

    def capacity(self, window: Window, component: str) -> float:
        """The load of the busiest task of a bolt; 0 for a spout."""
        return max(self.capacities(window, component).values(), default=0.0)

    def debug_percent(self, component: str = "") -> float:
        """The percentage of messages whose tuples a component logs by order; "": one that is not named."""
        return self.debug.get(component, self.debug.get("", 0.0))

    @property
    def outages(self) -> dict[str, tuple[Outage, ...]]:
        """By spout or gate what it calls again, or its messages wait for, because it does not answer."""
        found = {name: self.stats[name].outages for name in self.sources if name in self.stats.components}
        return {spout: outages for spout, outages in found.items() if outages}

    @property
    def is_running(self) -> bool:
        """Whether a driver ran it at that moment."""
        return self.status not in ("ENDED", "STOPPED", "FAILED")

    @property
    def uptime_secs(self) -> int:
        """How long the run had lasted."""
        return max(0, self.taken_ms - self.began_ms) // 1000

    def total(self, what: str, window: str | None = None) -> int:
        """The sum of one count over all spouts: ``emitted``, ``acked``, ``failed`` or ``timed_out``.

        Args:
            window: One of :data:`WINDOWS`; None: of the run.
        """
        return self._total(what, self.spouts, window)

    def _total(self, what: str, names: Collection[str], window: str | None) -> int:
        stats = self.stats if window is None else self.windows[window].stats
        found = (stats.components.get(name) for name in names)
        return sum(getattr(each.total, what) for each in found if each)

    def _open(self, names: Collection[str]) -> int:
        found = (self.stats.components.get(name) for name in names)
        return sum(each.open or 0 for each in found if each)

    def account(self, window: str | None = None) -> dict[str, int | None]:
        """Messages of spouts by what became of them: each attempt is a message, as for Storm.

        ``open`` counts messages without a final verdict, and ``dead_letters`` those in the store, also those
        of gates: those there are now, whatever the window is. ``dead_letters`` is None if unknown.

        Args:
            window: One of :data:`WINDOWS`; None: of the run.
        """
        counts: dict[str, int | None] = {what: self.total(what, window) for what in VERDICTS}
        return counts | {"dead_letters": self.dead_letters.total, "open": self._open(self.spouts)}

    def gate_account(self, window: str | None = None) -> dict[str, int]:
        """What passed gates, by what became of it; empty in a topology without gates.

        ``superseded`` of ``acked`` were not written. ``waiting`` tuples wait for the verdicts of their
        messages, or have passed and are not ``open`` yet; those there were when the snapshot was taken.

        Args:
            window: One of :data:`WINDOWS`; None: of the run.
        """
        if not self.gates:
            return {}
        counts = {what: self._total(what, self.gates, window) for what in (*VERDICTS, "superseded")}
        found = (self.stats.components.get(gate) for gate in self.gates)
        waiting = sum(gate.lag or 0 for gate in found if gate)
        return counts | {"open": self._open(self.gates), "waiting": waiting}

    @property
    def accounts(self) -> dict[str, dict[str, int | None]]:
        """The account of this run and that of all runs, by their windows."""
        return {RUN: self.account(), ALL_TIME: self.account(ALL_TIME)}

    @property
    def gate_accounts(self) -> dict[str, dict[str, int]]:
        """The same of gates."""
        return {RUN: self.gate_account(), ALL_TIME: self.gate_account(ALL_TIME)} if self.gates else {}

    def to_json(self) -> bytes:
        """As JSON; :meth:`from_json` is the inverse."""
        return json.dumps(plain(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> Snapshot:
        """Read a snapshot. ValueError if it is none."""
        try:
            return cls.of(json.loads(data))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no snapshot: {error!r}") from error

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Snapshot:
        """Read a snapshot from JSON that was parsed."""
        known = _known(cls, given)
        known["windows"] = {
            name: Window(window["secs"], _stats(window["stats"])) for name, window in given["windows"].items()
        }
        known["acker"] = _acker(given.get("acker", {}))
        known["errors"] = tuple(_made(ReportedError, error) for error in given.get("errors", ()))
        known["inbox"] = _made(InboxNumbers, given.get("inbox", {}))
        known["keys"] = _made(KeyNumbers, given.get("keys", {}))
        known["dead_letters"] = _made(LetterNumbers, given.get("dead_letters", {}))
        return cls(**known)


_Made = TypeVar("_Made")


def plain(value: object) -> Any:  # noqa: ANN401  # what JSON has
    """A value as dicts, lists, texts and numbers; texts that are no UTF-8 are escaped."""
    if value is None or type(value) is int:  # most of a large snapshot
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if names := _field_names(type(value)):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return _plain_number(value) if isinstance(value, int | Real) else plain(str(value))


_EXACT: Final = 1 << 53
_UNSAFE: Final = re.compile(r"(?<![.\d])\d{16}|NaN|Infinity")
"""What may be a number that a browser reads as another one, or does not read."""


def exact(value: Any) -> Any:  # noqa: ANN401  # of JSON
    """A value of JSON in which whole numbers beyond 2**53, infinity and NaN are texts.

    JavaScript rounds the former, and JSON does not have the latter.

    >>> exact([2**53 - 1, -(2**53), float("inf")])
    [9007199254740991, '-9007199254740992', 'inf']
    """
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    if (type(value) is int and abs(value) >= _EXACT) or (isinstance(value, float) and not isfinite(value)):
        return str(value)
    return value


def for_browsers(text: str) -> str:
    """A text of JSON with :func:`exact` numbers."""
    return json.dumps(exact(json.loads(text)), separators=(",", ":")) if _UNSAFE.search(text) else text


def _plain_number(value: int | Real) -> int | float | None:
    """A number, numpy's too, as JSON has it: None for infinity and for what is no number."""
    if isinstance(value, int):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isfinite(value) else None


_FIELDS: Final[dict[type[Any], tuple[str, ...]]] = {}


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """The names of a dataclass's fields, looked up once; none of another type."""
    names = _FIELDS.get(kind)
    if names is None:
        names = tuple(part.name for part in fields(kind)) if is_dataclass(kind) else ()
        _FIELDS[kind] = names
    return names


def _known(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _field_names(kind) if name in fields}


def _made(kind: type[_Made], fields: Mapping[str, Any]) -> _Made:
    return kind(**_known(kind, fields))


def _stats(fields: Mapping[str, Any]) -> Stats:
    components = {name: _component(component) for name, component in fields["components"].items()}
    traces = _made(TraceNumbers, fields.get("traces", {}))
    return Stats(
        MappingProxyType(components), traces=traces, acker=_acker(fields.get("acker", {})),
        workers_lost=fields.get("workers_lost", 0),
    )  # fmt: skip


def _acker(fields: Mapping[str, Any]) -> AckerNumbers:
    spreads = {name: _powers(fields.get(name, {})) for name in ("settle_spread", "batch_spread")}
    return AckerNumbers(**(_known(AckerNumbers, fields) | spreads))


def _powers(counts: Mapping[str, int]) -> dict[int, int]:
    return {int(digits): n for digits, n in counts.items()}


def _component(fields: Mapping[str, Any]) -> ComponentStats:
    known = _known(ComponentStats, fields)
    known |= _numbers_in(fields)
    counts = fields.get("complete_ms")
    known["complete_ms"] = None if counts is None else Histogram({int(at): n for at, n in counts.items()})
    known |= {name: _powers(fields.get(name, {})) for name in ("execute_spread", "process_spread")}
    known["outages"] = tuple(_made(Outage, outage) for outage in fields.get("outages", ()))
    known["tasks"] = {
        int(task): TaskStats(**(_known(TaskStats, numbers) | _numbers_in(numbers)))
        for task, numbers in fields["tasks"].items()
    }
    return ComponentStats(**known)


def _numbers_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    streams = {stream: _made(Numbers, numbers) for stream, numbers in fields["streams"].items()}
    metrics = {name: _metric(metric) for name, metric in fields.get("metrics", {}).items()}
    return {"total": _made(Numbers, fields["total"]), "streams": streams, "metrics": metrics}


def _metric(fields: Mapping[str, Any]) -> UserMetric:
    known = _known(UserMetric, fields)
    spread = fields.get("spread")
    known["spread"] = None if spread is None else Histogram({int(at): n for at, n in spread.items()})
    known["rates"] = tuple(fields.get("rates", ()))
    return UserMetric(**known)
