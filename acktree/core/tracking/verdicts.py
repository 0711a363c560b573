"""The verdict on a message, the details of a failure, and the verdicts of a micro-batch.

Rules of this file
------------------
1. Closed sets are enums whose values are their names: what a log or a table shows can be parsed again.
2. A failure can always be sent to another process. The exception object is left out if it cannot be pickled
   or unpickled; its type names, its text and its traceback are strings and are always sent.
3. This file makes no decision: ``retry.py`` decides whether a message is tried again.

Source: Storm's ``ISpout.ack`` and ``ISpout.fail``. Storm passes only the message id to ``fail`` and writes
the reason to a debug log; here ``fail`` receives the failure.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from acktree.core import durable
from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, int32s, int64s, pack, unpack
from acktree.core.runs import end_to_end

_MOST_PACKED: Final = 32_768
"""A packed exception of more bytes than this is not sent with its failure."""
_MOST_SHOWN: Final = 40
"""Characters of a reason in a repr."""
_VERSION: Final = 1
"""The version of the layout of a packed failure."""
_NO_ROOTS: Final = np.zeros(0, dtype=np.int64)


class Verdict(StrEnum):
    """How the tuple tree of one attempt ended; every tracked attempt gets exactly one."""

    ACKED = "ACKED"
    """Every tuple of the tree was acked in time."""
    FAILED = "FAILED"
    """At least one tuple of the tree was failed."""
    TIMED_OUT = "TIMED_OUT"
    """The tree was neither complete nor failed when the message timeout had passed."""


class FailureKind(StrEnum):
    """The two verdicts that are not ACKED."""

    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"


class FailureCause(StrEnum):
    """The cause of a failure, for the person who has to fix it."""

    EXCEPTION = "EXCEPTION"
    """User code raised while it worked on a tuple of this message."""
    FAILED_BY_BOLT = "FAILED_BY_BOLT"
    """A bolt called ``fail``."""
    TIMEOUT = "TIMEOUT"
    """The tree was neither complete nor failed when the message timeout had passed."""
    MISUSE = "MISUSE"
    """A bolt broke a rule of the API: acked twice, emitted after its ack, changed an undeclared attribute."""
    KILLED_WORKER = "KILLED_WORKER"
    """The worker process died while it executed this message: out of memory, a crash, ``os._exit``."""
    HUNG = "HUNG"
    """A bolt executed this message for longer than the limit, and was interrupted, or its process ended."""
    UNAVAILABLE = "UNAVAILABLE"
    """What a bolt or sink needs is away: the message waits, and the attempt does not count."""
    CONFIGURATION = "CONFIGURATION"
    """A bolt or sink cannot work as it is: the topology stops, and the message stays open."""
    GAVE_UP = "GAVE_UP"
    """Its queue delivered it more often than ``Retry`` allows, and no attempt got a verdict."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt of one message, as the spout, the retry policy and the dead letters receive it.

    Equality ignores ``exception``: exceptions compare by identity, which pickling does not keep.
    """

    reason: str
    """The text of the exception, or the reason that the bolt passed to ``fail``. May be empty."""
    kind: FailureKind
    cause: FailureCause
    component: str | None
    """The component in which it happened; None when unknown, as for most timeouts."""
    exception: BaseException | None = field(compare=False)
    """The exception that user code raised. None if there was none, if it cannot be packed or unpacked, or if
    it is larger than 32 KiB packed."""
    exception_types: tuple[str, ...]
    """Its type and that type's bases, as :func:`exception_type_names` gives them; ``()`` without one."""
    traceback: str | None
    """The traceback where it was raised, formatted there."""
    attempt: int
    """Which attempt of the message this was; the first is 1."""
    final: bool
    """True when no attempt will follow: the message was given up. Its dead letter is stored, unless its queue
    keeps dead letters of its own."""
    others: int = 0
    """The number of further failures of this attempt; this one is the first in the order of the data."""

    def __repr__(self) -> str:
        by = "" if self.component is None else f" by {self.component!r:.20}"
        final = ", final" if self.final else ""
        reason = self.reason if len(self.reason) <= _MOST_SHOWN else f"{self.reason[:_MOST_SHOWN]}..."
        return f"Failure({self.kind.name}{by}: {reason!r}, attempt={self.attempt}{final})"

    def to_bytes(self) -> bytes:
        """Pack it for another process, or for the journal. Never raises because of the exception.

        A pickle of texts, numbers and bytes: the version of the layout first, the exception as ``durable.py``
        writes values.
        """
        plain = (
            _VERSION, self.reason, self.kind.value, self.cause.value, self.component,
            _pickled(self.exception), self.exception_types, self.traceback, self.attempt, self.final,
            self.others,
        )  # fmt: skip
        return pickle.dumps(plain, protocol=5)

    @staticmethod
    def from_bytes(packed: bytes | memoryview) -> Failure:
        """Undo :meth:`to_bytes`; ``exception`` is None if it was not packed or cannot be rebuilt here."""
        plain = pickle.loads(packed)
        _, reason, kind, cause, component, exception, types, traceback, attempt, final, others = plain
        return Failure(
            reason=reason,
            kind=FailureKind(kind),
            cause=FailureCause(cause),
            component=component,
            exception=_unpickled(exception),
            exception_types=types,
            traceback=traceback,
            attempt=attempt,
            final=final,
            others=others,
        )


def qualified_name(exception_type: type[BaseException]) -> str:
    """Name a type so that another process can recognise it; one of ours by a name that no release changes.

    >>> from acktree.errors import MisuseError
    >>> qualified_name(ValueError), qualified_name(MisuseError)
    ('builtins.ValueError', 'acktree.MisuseError')
    """
    ours = durable.public_name(exception_type)
    return ours or f"{exception_type.__module__}.{exception_type.__qualname__}"


def exception_type_names(exception: BaseException | None) -> tuple[str, ...]:
    """The qualified names of an exception's type and its bases, nearest first; ``()`` for None.

    ``object`` and ``BaseException`` are left out: every exception has them.

    >>> exception_type_names(FileNotFoundError("x"))
    ('builtins.FileNotFoundError', 'builtins.OSError', 'builtins.Exception')
    """
    if exception is None:
        return ()
    bases = type(exception).__mro__
    return tuple(qualified_name(base) for base in bases if base is not object and base is not BaseException)


def _pickled(exception: BaseException | None) -> bytes | None:
    """The exception; None where it is too large or does not pickle."""
    if exception is None:
        return None
    # A class of the user's __main__ reaches a worker by value, and only cloudpickle can send it home again.
    for dumps in (durable.dumps, durable.dumps_by_value):
        with contextlib.suppress(Exception):  # user code runs in here (__reduce__): it raises what it likes
            packed = dumps(exception)
            # An exception that quotes what it could not parse is as large as that, and each failure has one.
            return packed if len(packed) <= _MOST_PACKED else None
    return None  # a lock, a socket, a frame: the text of the failure goes alone


def _unpickled(packed: bytes | None) -> BaseException | None:
    if packed is None:
        return None
    try:
        exception = durable.loads(packed)
    except Exception:  # noqa: BLE001 - the classic: an __init__ that wants more than `args` holds
        return None
    return exception if isinstance(exception, BaseException) else None


@dataclass(frozen=True, eq=False)
class Judged:
    """Roots with the same verdict: ``roots`` and the spout task that opened each (``owners``), shape (n,)."""

    roots: Int64s
    owners: Int32s


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The verdicts of one micro-batch.

    Attributes:
        done: Messages opened in this micro-batch and fully processed: (spout task, sequences ascending).
        acked: Roots that were opened before, or have no sequence, and are fully processed now.
        failed: Roots with a failed tuple.
        failures: Index into ``reasons`` of each failed root's first failure, shape (n,).
        others: How many further failures each failed root had, shape (n,).
        timed_out: Roots that were neither acked nor failed within the message timeout.
        reasons: Encoded failures.
        open_count: Roots still open.
        next_deadline_ms: When the acker needs a micro-batch for a timeout; None for never.
        late_count: The number of roots with an ack or fail that were judged before, or never opened.
        left_open: Roots that this micro-batch opened and did not judge.
        oldest_ms: The time from which the oldest age counts; None when no age counts.
        change: For ``Ledger.replay``; empty when the ledger did not change.

    The journal does not have the last four: they are not needed again.
    """

    done: Sequence[tuple[int, Int64s]]
    acked: Judged
    failed: Judged
    failures: Int64s
    others: Int64s
    timed_out: Judged
    reasons: tuple[bytes, ...]
    open_count: int
    next_deadline_ms: int | None
    late_count: int = 0
    left_open: Judged = field(default_factory=lambda: Judged(_NO_ROOTS, _NO_ROOTS.astype(np.int32)))
    oldest_ms: int | None = None
    change: bytes = b""

    def together_with(self, done: Sequence[tuple[int, Int64s]], rows: Int64s, owners: Int32s) -> Verdicts:
        """These and further ACKED messages, with only the reasons that are used.

        Args:
            done: Messages opened and fully processed in this micro-batch: see :attr:`done`.
            rows: Roots without a sequence that were opened and fully processed in it.
            owners: Who opened each of ``rows``.
        """
        used, failures = np.unique(self.failures, return_inverse=True)
        acked = Judged(np.concatenate((self.acked.roots, rows)), np.concatenate((self.acked.owners, owners)))
        return replace(
            self, done=done, acked=acked, failures=failures, reasons=tuple(self.reasons[at] for at in used)
        )

    def __bool__(self) -> bool:
        judged = (self.acked, self.failed, self.timed_out)
        return bool(self.done) or any(len(part.roots) for part in judged)

    def to_bytes(self) -> bytes:
        """For the journal; :meth:`from_bytes` reads it."""
        head = json.dumps((self.open_count, self.next_deadline_ms, [task for task, _ in self.done])).encode()
        return pack(
            head, *(_runs_of(sequences) for _, sequences in self.done),
            self.acked.roots, self.acked.owners, self.failed.roots, self.failed.owners, self.failures,
            self.others, self.timed_out.roots, self.timed_out.owners, *self.reasons,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, blob: Buffer) -> Verdicts:
        """Read what :meth:`to_bytes` wrote."""
        head, *parts = unpack(blob)
        open_count, next_deadline_ms, tasks = json.loads(bytes(head))
        runs, parts = parts[: len(tasks)], parts[len(tasks) :]
        acked, a_owners, failed, f_owners, failures, others, late, l_owners, *reasons = parts
        return cls(
            [(task, _sequences_in(int64s(part))) for task, part in zip(tasks, runs, strict=True)],
            Judged(int64s(acked), int32s(a_owners)), failed=Judged(int64s(failed), int32s(f_owners)),
            failures=int64s(failures), others=int64s(others),
            timed_out=Judged(int64s(late), int32s(l_owners)), reasons=tuple(map(bytes, reasons)),
            open_count=open_count, next_deadline_ms=next_deadline_ms,
        )  # fmt: skip


def _runs_of(sequences: Int64s) -> Int64s:
    """Ascending sequences as first, end, first, end, ...: nearly always one run of thousands."""
    cuts = np.flatnonzero(np.diff(sequences) != 1)
    firsts, lasts = np.r_[sequences[:1], sequences[cuts + 1]], np.r_[sequences[cuts], sequences[-1:]]
    return np.stack((firsts, lasts + 1), axis=1).ravel()


def _sequences_in(runs: Int64s) -> Int64s:
    ranges = [np.arange(first, end) for first, end in runs.reshape(-1, 2).tolist()]
    return end_to_end(ranges)
