"""When a failed message is tried again, and when it is given up.

Rules of this file
------------------
1. The policy is a value and the decision a pure function: it reads no clock and draws no random number, so
   the same decision is made again after a crash.
2. Jitter is derived from the root id, which is as good as random between messages and differs between
   attempts.
3. ``GiveUp`` holds the reason, which is written to the dead letter.

Storm has no such policy in its core: each spout implements its own. This one has the form of the policy in
Storm's ``storm-kafka-client`` (``KafkaSpoutRetryExponentialBackoff``).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

from acktree.core.tracking.verdicts import Failure, qualified_name
from acktree.errors import ConfigError, naming_keywords

_WHERE: Final = "Retry(...), as given to set_spout"
_LONGEST_SECS: Final = 1e15
"""More than any topology runs, and JSON has it: infinity it has not."""
_MOST_DOUBLINGS: Final = 1023  # 2.0 ** 1024 overflows; every pause is at its maximum well before


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Emit the message again, as a new attempt, at ``due_ms`` or when ``max_spout_pending`` allows it."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Store the dead letter, then call the spout's ``fail`` with ``failure.final``."""

    why: str


@dataclass(frozen=True, slots=True)
class Retry:
    """How a spout's failed messages are tried again before they become dead letters.

    Attributes:
        max_attempts: The number of attempts, the first one included: 1 means no retry.
        backoff_secs: The pause after the first failure, which doubles with each further one, and the longest
            pause.
        jitter: Shorten each pause by up to half, differently for each message, so that messages that failed
            at the same time are not retried at the same time.
        max_age_secs: Give a message up if it would be older than this at its next attempt, counted from its
            first emit. None: no limit.
        final: Exceptions (and their subclasses) after which a message is not tried again. ConnectorError is
            that of a row which a sink refuses; of what is away nothing is given up.

    >>> Retry(max_attempts=5, backoff_secs=(1, 60), jitter=False).pause_ms(attempt=3, root=0)
    4000
    """

    max_attempts: int
    backoff_secs: tuple[float, float] = (1.0, 60.0)
    jitter: bool = True
    max_age_secs: float | None = None
    final: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ConfigError: An argument is invalid; the error names it and the fix.
        """
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise _refused(
                "max_attempts", self.max_attempts, "an int of 1 or more, the first attempt included"
            )
        pauses = self.backoff_secs
        if not _is_pair_of_secs(pauses):
            raise _refused("backoff_secs", pauses, "two numbers of seconds: (first pause, longest pause)")
        if pauses[0] > pauses[1]:
            raise _refused("backoff_secs", pauses, "(first pause, longest pause), the longest last")
        if type(self.jitter) is not bool:
            raise _refused("jitter", self.jitter, "True or False")
        if self.max_age_secs is not None and not (_is_secs(self.max_age_secs) and self.max_age_secs > 0):
            raise _refused("max_age_secs", self.max_age_secs, "a positive number of seconds, or None")
        if not _are_exception_types(self.final):
            raise _refused("final", self.final, "a tuple of exception types, such as (ValueError,)")

    def decide(self, failure: Failure, root: int, first_emitted_ms: int, now_ms: int) -> RetryAt | GiveUp:
        """Decide whether a failed message is tried again.

        Args:
            failure: The attempt that failed; ``failure.attempt`` counts from 1.
            root: The root id of that attempt. Any int; only the jitter depends on it.
            first_emitted_ms: When the first attempt of the message was emitted.
            now_ms: The time of the decision; the pause begins here.
        """
        if self._is_final(failure):
            return GiveUp(f"{failure.exception_types[0]} is final: trying again cannot help")
        if failure.attempt >= self.max_attempts:
            return GiveUp(f"attempt {failure.attempt} of {self.max_attempts} failed")
        due_ms = now_ms + self.pause_ms(failure.attempt, root)
        if self.max_age_secs is not None and due_ms - first_emitted_ms > self.max_age_secs * 1000:
            return GiveUp(f"at the next attempt it would be older than {self.max_age_secs:g} s")
        return RetryAt(due_ms)

    def pause_ms(self, attempt: int, root: int) -> int:
        """How long to wait after ``attempt`` failed: first * 2 ** (attempt - 1), at most the longest.

        With jitter: from half of that up to the whole, in proportion to a hash of the root id.
        """
        first, longest = self.backoff_secs
        pause = min(first * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS), longest) * 1000
        if self.jitter:
            pause *= 0.5 + 0.5 * _share_of(root)
        return round(pause)

    def _is_final(self, failure: Failure) -> bool:
        """Whether one of ``final`` was raised: by type, or by name where the exception object is missing."""
        if not self.final or not failure.exception_types:
            return False
        if isinstance(failure.exception, self.final):
            return True
        raised = {*failure.exception_types, "builtins.BaseException"}
        return any(qualified_name(kind) in raised for kind in self.final)


# Not in the class: the dataclass writes its own __init__.
Retry.__init__ = naming_keywords(Retry.__init__)  # type: ignore[method-assign]


def _share_of(root: int) -> float:
    """A pseudo-random number from 0 to 1 that depends only on the root id."""
    named = (root & (2**64 - 1)).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little") / 2**64


def _is_secs(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


def _is_pair_of_secs(value: object) -> bool:
    match value:
        case tuple((first, longest)):
            return _is_secs(first) and _is_secs(longest)
        case _:
            return False


def _are_exception_types(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in value)


def longest_pauses_secs(retry: Retry) -> float:
    """The sum of all pauses of a message that fails at each attempt, without jitter.

    >>> longest_pauses_secs(Retry(max_attempts=5, backoff_secs=(1, 5)))
    12.0
    """
    first, longest = retry.backoff_secs
    pauses, secs, pause = retry.max_attempts - 1, 0.0, float(first)
    while pauses and 0 < pause < longest:
        pauses, secs, pause = pauses - 1, secs + pause, 2 * pause
    return min(_LONGEST_SECS, secs + min(pauses, _LONGEST_SECS) * min(pause, longest))


def _refused(argument: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"Retry cannot have {argument}={value!r}", _WHERE, f"{argument} must be {wanted}")
