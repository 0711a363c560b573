"""Verdict batches: the acker's verdicts of one micro-batch, sorted by spout task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.core.ids import Int32s, Int64s, sequences_of
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind, Verdicts
from acktree.errors import ProtocolError
from acktree.tasks.payloads import Payload
from acktree.tasks.spouts.retries import RedrivenLetter


def _none() -> Int64s:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class VerdictBatch:
    """The verdicts of one micro-batch for one spout task.

    Attributes:
        acked: Acked sequences.
        failed: Failed sequences, grouped by failure.
        acked_rows: How many rows of a DataFrame were acked.
        failed_rows: Roots of failed rows of a DataFrame, grouped by failure.
        payloads: Values of failed rows; empty without a retry policy.
        acked_roots: Roots of acked rows of a DataFrame.
        ids: Message ids of rows with a verdict, of this task and others; empty without an acknowledger.
        left_open: Message ids of rows that the micro-batch opened and left open.
        is_journalled: Whether an earlier run made it.
    """

    acked: Int64s = field(default_factory=_none)
    failed: Sequence[tuple[Int64s, Failure]] = ()
    acked_rows: int = 0
    failed_rows: Sequence[tuple[Int64s, Failure]] = ()
    payloads: Iterable[Payload] = ()
    acked_roots: Int64s = field(default_factory=_none)
    ids: Iterable[Payload] = ()
    left_open: Sequence[pa.RecordBatch] = ()
    is_journalled: bool = False


@dataclass(frozen=True, eq=False)
class Redrive:
    """Dead letters that a spout task emits again."""

    letters: Sequence[RedrivenLetter]


@dataclass(frozen=True)
class RunAgain:
    """Open messages that the acker does not know: a spout task emits them again.

    Attributes:
        lost_through: The number of the last chunk of such messages; -1: there are none.
    """

    lost_through: int


Mail = VerdictBatch | Redrive | RunAgain
"""What a spout task is sent by the driver; it reads it in its next step."""


def verdict_batches_of(
    verdicts: Verdicts,
    run_salt: int,
    late: Failure,
    payloads: Iterable[Payload] = (),
    *,
    ids: Iterable[Payload] = (),
    timeout_of: Mapping[int, int] = MappingProxyType({}),
    forgotten: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, VerdictBatch]:
    """Group verdicts by the spout task that opened each root.

    A root of a DataFrame's row has no sequence; its owner is minus the spout's task id.

    Args:
        verdicts: The acker's verdicts.
        run_salt: Decodes the task and sequence of a root.
        late: The failure given to messages that timed out.
        payloads: Values of failed rows. Each task reads all of them and takes those of its own roots.
        ids: Message ids of rows with a verdict; likewise.
        timeout_of: Owners with a message timeout of their own, in milliseconds.
        forgotten: Root -> the bolt that left a tuple of it without ack or fail, where that is known.

    Raises:
        ProtocolError: The task encoded in a root is not the task that opened it.
    """
    acked: dict[int, list[Int64s]] = {}
    failed: dict[int, list[tuple[Int64s, Failure]]] = {}
    for task, sequences in verdicts.done:
        acked.setdefault(task, []).append(sequences)
    for owner, rows in _runs(verdicts.acked.owners):
        acked.setdefault(owner, []).append(_named(verdicts.acked.roots[rows], owner, run_salt))
    for owner, rows in _runs(verdicts.timed_out.owners):
        timeout = timed_out(timeout_of[owner]) if owner in timeout_of else late
        for roots, failure in _by_bolt(verdicts.timed_out.roots[rows], timeout, forgotten):
            failed.setdefault(owner, []).append((_named(roots, owner, run_salt), failure))
    for owner, index, others, rows in _runs(verdicts.failed.owners, verdicts.failures, verdicts.others):
        failure = replace(Failure.from_bytes(verdicts.reasons[index]), others=others)
        failed.setdefault(owner, []).append((_named(verdicts.failed.roots[rows], owner, run_salt), failure))
    return {
        task: VerdictBatch(
            np.concatenate(acked.get(task, [_none()])),
            failed.get(task, ()),
            acked_rows=sum(map(len, acked.get(-task, ()))),
            failed_rows=failed.get(-task, ()),
            payloads=payloads,
            acked_roots=np.concatenate(acked.get(-task, [_none()])),
            ids=ids,
        )
        for task in {abs(owner) for owner in acked.keys() | failed.keys()}
    }


def _by_bolt(roots: Int64s, late: Failure, forgotten: Mapping[int, str]) -> Iterator[tuple[Int64s, Failure]]:
    """Roots that timed out, grouped by the bolt that forgot a tuple of them; each group with its failure."""
    bolts = [forgotten.get(root) for root in roots.tolist()] if forgotten else [None] * len(roots)
    for bolt in sorted(set(bolts), key=str):
        is_of_bolt = np.array([name == bolt for name in bolts])
        if bolt is None:
            yield roots[is_of_bolt], late
        else:
            reason = f"{late.reason}: bolt {bolt!r} neither acked, failed nor kept a tuple"
            yield roots[is_of_bolt], replace(late, reason=reason, component=bolt)


def _named(roots: Int64s, owner: int, run_salt: int) -> Int64s:
    """The sequences of roots of one owner. For rows of a DataFrame, which have none, the roots themselves."""
    if owner < 0:
        return roots
    tasks, sequences = sequences_of(run_salt, roots)
    if (tasks != owner).any():
        at = int(np.flatnonzero(tasks != owner)[0])
        raise ProtocolError(
            f"root {int(roots[at])} of spout task {int(tasks[at])} has a verdict for task {owner}",
            "the acker's verdicts",
            "this is a bug in acktree: report it with the checkpoint",
        )
    return sequences


def _runs(*keys: Int32s | Int64s) -> Iterator[tuple[Any, ...]]:
    """Each distinct combination of the keys, ascending, with its positions: (key, ..., positions)."""
    if not len(keys[0]):
        return
    order = np.lexsort(keys[::-1])
    ranked = [key[order] for key in keys]
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in ranked])
    starts = np.flatnonzero(np.r_[True, changes])
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield *(int(key[start]) for key in ranked), order[start:end]


def timed_out(timeout_ms: int | None) -> Failure:
    """The failure of a message that was not acked within the message timeout."""
    secs = 0.0 if timeout_ms is None else timeout_ms / 1000
    return Failure(
        reason=f"no verdict within message_timeout_secs={secs:g}", kind=FailureKind.TIMED_OUT,
        cause=FailureCause.TIMEOUT, component=None, exception=None, exception_types=(), traceback=None,
        attempt=1, final=False,
    )  # fmt: skip
