"""Makes the failure of a tuple from an exception, or from the reason that a bolt gives."""

from __future__ import annotations

import traceback as tb
from collections.abc import Mapping
from typing import Final

from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind, exception_type_names
from acktree.errors import ExecuteTimeoutError, KilledWorkerError, MisuseError
from acktree.texts import MOST_REASON, MOST_TRACEBACK, bounded, error_text

__all__ = ["failure_of"]


_CAUSES: Final[Mapping[type[Exception], FailureCause]] = {
    MisuseError: FailureCause.MISUSE,
    ExecuteTimeoutError: FailureCause.HUNG,
    KilledWorkerError: FailureCause.KILLED_WORKER,
}
_ANY: Final = FailureCause.EXCEPTION


def failure_of(exception: BaseException | None, component: str, reason: object = "") -> Failure:
    """The failure of a tuple.

    Reason and traceback are shortened. A bolt task does not know the attempt; the spout task sets it.

    Args:
        exception: What user code raised; None if the bolt called ``fail``.
        component: The component that failed the tuple.
        reason: The reason that the bolt gives; empty for the exception's text.
    """
    words, text, cause = bounded(str(reason), MOST_REASON), None, FailureCause.FAILED_BY_BOLT
    if exception is not None:
        cause = next((cause for kind, cause in _CAUSES.items() if isinstance(exception, kind)), _ANY)
        text = bounded("".join(tb.format_exception(exception)), MOST_TRACEBACK)
        words = words or error_text(exception)
    return Failure(
        reason=words,
        kind=FailureKind.FAILED,
        cause=cause,
        component=component,
        exception=exception,
        exception_types=exception_type_names(exception),
        traceback=text,
        attempt=1,
        final=False,
    )
