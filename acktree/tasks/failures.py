"""Makes the failure of a tuple from an exception, or from the reason that a bolt gives."""

from __future__ import annotations

import traceback as tb
from collections.abc import Mapping
from typing import Final

from acktree.core.tracking.verdicts import Failure, FailureCause, FailureKind, exception_type_names
from acktree.errors import (
    ConfigError,
    ConnectorError,
    ExecuteTimeoutError,
    KilledWorkerError,
    MisuseError,
    Unavailable,
)
from acktree.texts import MOST_REASON, MOST_TRACEBACK, bounded, error_text

_CAUSES: Final[Mapping[type[Exception], FailureCause]] = {
    MisuseError: FailureCause.MISUSE,
    ExecuteTimeoutError: FailureCause.HUNG,
    KilledWorkerError: FailureCause.KILLED_WORKER,
}
_ANY: Final = FailureCause.EXCEPTION


def failure_of(
    exception: BaseException | None, component: str, reason: object = "", *, in_hook: bool = False
) -> Failure:
    """The failure of a tuple.

    Reason and traceback are shortened. A bolt task does not know the attempt; the spout task sets it.

    Args:
        exception: What user code raised; None if the bolt called ``fail``.
        component: The component that failed the tuple.
        reason: The reason that the bolt gives; empty for the exception's text.
        in_hook: Whether ``prepare`` or ``flush`` raised it: then a wrong configuration fails no tuple.
    """
    words, text, cause = bounded(str(reason), MOST_REASON), None, FailureCause.FAILED_BY_BOLT
    if exception is not None:
        cause = next((cause for kind, cause in _CAUSES.items() if isinstance(exception, kind)), _ANY)
        text = bounded("".join(tb.format_exception(exception)), MOST_TRACEBACK)
        if isinstance(exception, ConnectorError) and exception.can_retry:
            cause = FailureCause.UNAVAILABLE
        elif in_hook and isinstance(exception, ConfigError | ConnectorError):
            cause = FailureCause.CONFIGURATION
        words = words or (_away_text if isinstance(exception, Unavailable) else error_text)(exception)
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


def _away_text(error: BaseException) -> str:
    """What is away, and the error of the client if it was raised from one; one line."""
    cause = error.__cause__
    why = "" if cause is None else f": {error_text(cause)}"
    return bounded(f"{error.args[0]}{why}", MOST_REASON)
