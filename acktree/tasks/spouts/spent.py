"""Messages that their queue has delivered more often than a ``Retry`` allows.

Each earlier delivery ended without a verdict, with its driver or its connection: a message that kills its
driver each time looks like this. Another consumer's deliveries count too, where the queue counts them. It is
given up before it runs once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from acktree.core.tracking.attempts import number_of
from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind
from acktree.tasks.spouts.retries import NO_CHUNK, Attempt, RedrivenLetter
from acktree.tasks.spouts.runs import Run


def without_spent(
    runs: Iterable[Run], max_attempts: int, give_up: Callable[[Attempt, Failure], None]
) -> list[Run]:
    """The runs without the messages whose attempts are used up; each of these is given up."""
    left: list[Run] = []
    for run in runs:
        if run.attempts is None or not run.is_tracked:
            left.append(run)
            continue
        attempts = number_of(run.attempts)
        is_spent = attempts > max_attempts
        for row in np.flatnonzero(is_spent).tolist():
            delivery = int(attempts[row])
            give_up(_last_attempt(run, row, delivery - 1), _failure(delivery, max_attempts))
        if not is_spent.all():
            left.append(run.those(~is_spent) if is_spent.any() else run)
    return left


def _last_attempt(run: Run, row: int, attempt: int) -> Attempt:
    message_id = run.message_ids[row]
    message_id = message_id.item() if isinstance(message_id, np.generic) else message_id
    target = None if run.tasks is None else int(run.tasks[row])
    letter = RedrivenLetter(NO_CHUNK, run.stream, run.values.slice(row, 1), target)
    return Attempt.of_letter(letter, message_id, attempt, 0)


def _failure(attempt: int, max_attempts: int) -> Failure:
    return Failure(
        reason=f"delivery {attempt} of a message that may have {max_attempts} attempts: the earlier ones "
        "ended without a verdict, with their driver or their connection, or at another consumer",
        kind=FailureKind.FAILED, cause=FailureCause.GAVE_UP, component=None, exception=None,
        exception_types=(), traceback=None, attempt=attempt - 1, final=True,
    )  # fmt: skip
