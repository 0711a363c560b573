"""From the acker's verdicts to the mailboxes of the spout tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from acktree.core.ids import Int32s, Int64s, sequences_of
from acktree.core.verdicts import Failure
from acktree.errors import ProtocolError
from acktree.tasks.acker_task import Verdicts
from acktree.tasks.retries import RedrivenLetter


def _none() -> Int64s:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Mail:
    """What one spout task is told of one micro-batch.

    Attributes:
        acked: Sequences fully processed.
        failed: Sequences that were not, by what befell them.
        redriven: Dead letters to be tried again.
    """

    acked: Int64s = field(default_factory=_none)
    failed: Sequence[tuple[Int64s, Failure]] = ()
    redriven: Sequence[RedrivenLetter] = ()


def mail_of(verdicts: Iterable[Verdicts], run_salt: int, late: Failure) -> dict[int, Mail]:
    """Sort verdicts by the spout task that opened each root.

    Args:
        run_salt: To read a root's task and sequence.
        late: What the timed out are told.

    Raises:
        ProtocolError: A root's own task is not the one that opened it: two ids were mixed up.
    """
    acked: dict[int, list[Int64s]] = {}
    failed: dict[int, list[tuple[Int64s, Failure]]] = {}
    for told in verdicts:
        for task, sequences in _by_task(told.acked, told.acked_owners, run_salt):
            acked.setdefault(task, []).append(sequences)
        for task, sequences in _by_task(told.timed_out, told.timed_out_owners, run_salt):
            failed.setdefault(task, []).append((sequences, late))
        for index, reason in enumerate(told.reasons):
            failure = Failure.from_bytes(reason)
            for others in np.unique(told.others[told.failures == index]).tolist():
                which = (told.failures == index) & (told.others == others)
                for task, sequences in _by_task(told.failed[which], told.failed_owners[which], run_salt):
                    failed.setdefault(task, []).append((sequences, replace(failure, others=others)))
    return {
        task: Mail(np.concatenate(acked.get(task, [_none()])), failed.get(task, ()))
        for task in acked.keys() | failed.keys()
    }


def _by_task(roots: Int64s, owners: Int32s, run_salt: int) -> Iterable[tuple[int, Int64s]]:
    if not len(roots):
        return
    tasks, sequences = sequences_of(run_salt, roots)
    if (tasks != owners).any():
        at = int(np.flatnonzero(tasks != owners)[0])
        raise ProtocolError(
            f"root {int(roots[at])} of spout task {int(tasks[at])} has a verdict for task {int(owners[at])}",
            "the acker's verdicts", "this is a bug in acktree: report it with the checkpoint",
        )  # fmt: skip
    for task in np.unique(owners).tolist():
        yield task, sequences[owners == task]
