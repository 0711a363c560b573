"""What messages need and cannot reach: how long they wait for it, and how many are sent after a pause.

Rules of this file
------------------
1. Times and sequences are arguments; this file reads no clock and draws no random number.
2. A message waits as long as its attempts end so. It uses up no attempt, and does not age while it waits.
3. If of new messages at least two fail so, and as many as pass, the spout is *held back*: after each pause a
   few messages are sent, half of them new ones. It goes on when most new ones pass, or most of those that
   waited, or when it has no new ones.
4. Messages that always fail so are the last of those that wait, and what becomes of them says nothing about
   new ones.

A message *passes* if it is acked, or fails in another way in a bolt. One that times out, hangs or loses its
worker says nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from acktree.core.ids import Int64s
from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure, FailureCause, qualified_name
from acktree.errors import AcktreeError, ConfigError, ConnectorError, Unavailable

FEW: Final = 4
"""The number of waiting messages that are sent after a pause, and of new ones; it grows as they pass."""
FIRST_PAUSE_MS: Final = 500
LONGEST_PAUSE_MS: Final = 30_000
_LONGEST_SILENCE_MS: Final = 600_000
_CAUSES_THAT_PASS: Final = (FailureCause.EXCEPTION, FailureCause.FAILED_BY_BOLT, FailureCause.MISUSE)

Message = TypeVar("Message")


def dependency_of(failure: Failure) -> str | None:
    """What a failed message waits for; None where the failure is of another kind.

    Where the cause is a wrong configuration, it is the bolt: the message waits until the topology is stopped.
    """
    if failure.cause not in (FailureCause.UNAVAILABLE, FailureCause.CONFIGURATION):
        return None
    error = failure.exception
    return error.name if isinstance(error, Unavailable) else failure.component or "a dependency"


class OutageChange(NamedTuple):
    """A dependency is away from now on, or works again."""

    outage: Outage
    works: bool


class _Waiting(NamedTuple, Generic[Message]):
    """A message that waits: since when, and until when at least."""

    message: Message
    since_ms: int
    due_ms: int


class _Counts(NamedTuple):
    """The numbers of verdicts of one micro-batch, as one dependency sees them.

    Attributes:
        passed: How many of those that had waited passed.
        missed: How many failed for it, but for those that were under way when the spout was held back.
        new_passed: How many others passed, but for the same.
        new_missed: How many of ``missed`` had not waited.
    """

    passed: int
    missed: int
    new_passed: int
    new_missed: int


@dataclass
class _Dependency(Generic[Message]):
    """One dependency that messages wait for.

    Attributes:
        mark: The first sequence after messages waited for it, or after the spout was held back.
        waiting: What waits, in the order in which it is sent.
        blocked: What waits for a verdict as well; it came before all that waits.
        sent: Sequences of messages that waited and were sent again.
        allowed: How many of ``sent`` may be open, and how many new messages may be sent; 0 during a pause.
        news: How many new messages the spout had sent when the pause began.
        in_a_row: How many new messages have failed since one passed.
        wait_ms: How long the pause is, or for how long verdicts are awaited after it.
        again_ms: When that ends.
        since_ms: When the first message failed.
        tries: How many pauses there were since then.
        outage: What operators see; None while it is not certain.
        holds: Whether the spout is held back.
    """

    mark: int = 0
    waiting: deque[_Waiting[Message]] = field(default_factory=deque)
    blocked: list[_Waiting[Message]] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    allowed: int = 0
    news: int = 0
    in_a_row: int = 0
    wait_ms: int = 0
    again_ms: int = 0
    doubling_ms: int = 0
    asked_ms: int | None = None
    since_ms: int = 0
    tries: int = 0
    outage: Outage | None = None
    holds: bool = False

    @property
    def is_pausing(self) -> bool:
        return not self.allowed

    def is_over(self, now_ms: int) -> bool:
        """Whether the pause is over; a clock that was set back makes no pause longer."""
        return not 0 < self.again_ms - now_ms <= self.wait_ms

    def wait(self, now_ms: int, wait_ms: int) -> None:
        self.wait_ms, self.again_ms = wait_ms, now_ms + wait_ms

    def counts(self, passed: Int64s, missed: Sequence[Int64s]) -> _Counts:
        """Count verdicts."""
        fresh = np.concatenate([passed[:0], *missed])
        fresh = fresh[fresh >= self.mark]
        missed_again = len(self.sent.intersection(fresh.tolist()))
        passed_again = self.sent.intersection(passed.tolist()) if self.sent else set()
        new_passed = np.count_nonzero(passed >= self.mark) - sum(
            sequence >= self.mark for sequence in passed_again
        )
        return _Counts(len(passed_again), len(fresh), int(new_passed), len(fresh) - missed_again)

    def judge(
        self, counts: _Counts, failures: Sequence[Failure], next_sequence: int, news: int, now_ms: int
    ) -> OutageChange | None:
        """Take the verdicts of one micro-batch. A change, if it is away now and was not, or the other way."""
        passed, missed, new_passed, new_missed = counts
        self.in_a_row = new_missed + (0 if new_passed else self.in_a_row)
        are_most = new_missed > 0 and new_missed >= new_passed
        if new_passed > new_missed or passed > missed:
            self.holds = False
        elif are_most and self.in_a_row > 1 and not self.holds:
            self.holds, self.mark = True, next_sequence
            self.allowed, self.doubling_ms = FEW, 0  # however long the pause of those that wait is
        elif missed and not new_missed and news == self.news:
            self.holds = False  # there are no new ones
        if passed:
            self.doubling_ms = 0
        if passed > missed:
            self.allowed += 2 * passed
            self.wait(now_ms, LONGEST_PAUSE_MS)
            return self.works()
        if not missed:
            return None
        asked_ms = [ms for ms in map(_retry_after_ms, failures) if ms is not None]
        self.asked_ms = max(asked_ms, default=None)
        if self.allowed or not self.tries:  # else the pause has begun
            self.doubling_ms = min(2 * self.doubling_ms or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
            self.wait(now_ms, self.doubling_ms if self.asked_ms is None else self.asked_ms)
            self.allowed, self.news = 0, news
            self.since_ms = self.since_ms if self.tries else now_ms
            self.tries += 1
        before = self.outage
        if are_most or self.tries > 1:
            self.outage = _outage(failures[-1], self.since_ms, self.tries)
        return OutageChange(self.outage, works=False) if self.outage and not before else None

    def works(self) -> OutageChange | None:
        """Most messages pass."""
        before, self.outage, self.tries = self.outage, None, 0
        return None if before is None else OutageChange(before, works=True)

    def hold(self, message: Message, now_ms: int) -> None:
        """Let a message wait; what waited before it is sent before it."""
        pause_ms = FIRST_PAUSE_MS if self.asked_ms is None else self.asked_ms
        self.waiting.append(_Waiting(message, now_ms, now_ms + pause_ms))

    def begin_if_over(self, now_ms: int) -> None:
        """End the pause; or allow more, if nothing was heard of what was sent after it.

        Twice as many in twice the time: a client that waits for its own timeout keeps the verdicts back.
        """
        if self.is_over(now_ms):
            self.allowed = 2 * self.allowed if self.sent or self.holds else self.allowed
            self.allowed = max(FEW, self.allowed)
            self.wait(now_ms, min(LONGEST_PAUSE_MS * self.allowed // FEW, _LONGEST_SILENCE_MS))

    def take_due(self, now_ms: int, is_blocked: Callable[[Message], bool]) -> Iterator[tuple[Message, int]]:
        """Take out the messages that may be sent, each with the time for which it waited."""
        room = self.allowed - len(self.sent)
        while self.waiting and room > 0:
            first = self.waiting[0]
            if 0 < first.due_ms - now_ms <= first.due_ms - first.since_ms:
                return
            self.waiting.popleft()
            if is_blocked(first.message):
                self.blocked.append(first)
            else:
                room -= 1
                yield first.message, max(0, now_ms - first.since_ms)

    def unblock(self) -> None:
        """Let what was blocked wait as before."""
        self.waiting.extendleft(reversed(self.blocked))
        self.blocked = []


class Dependencies(Generic[Message]):
    """The dependencies that messages of one spout task wait for, by name; empty while all works."""

    def __init__(self) -> None:
        """Nothing is away."""
        self._by_name: dict[str, _Dependency[Message]] = {}
        self._sent_again = 0
        self._waited_ms: dict[int, int] = {}  # by the sequence of a message that was sent again

    def __len__(self) -> int:
        return sum(
            len(dependency.waiting) + len(dependency.blocked) for dependency in tuple(self._by_name.values())
        )

    def __iter__(self) -> Iterator[Message]:
        for dependency in tuple(self._by_name.values()):
            yield from (one.message for one in (*dependency.blocked, *dependency.waiting))

    @property
    def outages(self) -> list[Outage]:
        """What is away. Any thread may ask."""
        outages = [dependency.outage for dependency in tuple(self._by_name.values())]
        return [outage for outage in outages if outage is not None]

    @property
    def holds(self) -> bool:
        """Whether the spout is held back."""
        return bool(self._by_name) and any(dependency.holds for dependency in self._by_name.values())

    def room(self, next_sequence: int) -> int:
        """How many new messages may be emitted.

        Args:
            next_sequence: The first sequence that no message has, those not handed over among them.
        """
        if not self._by_name:  # asked before each round of calls
            return maxsize
        news = next_sequence - self._sent_again
        rooms = [
            dependency.allowed - (news - dependency.news)
            for dependency in self._by_name.values()
            if dependency.holds
        ]
        return max(0, min(rooms, default=maxsize))

    def due_ms(self) -> int | None:
        """When a pause ends, or a message that waits may be sent; None where nothing waits."""
        dues = []
        pausing = dict(self._pausing())
        for name, dependency in self._by_name.items():
            is_blocked = bool(pausing.keys() - {name})
            if (dependency.waiting or dependency.holds) and not is_blocked:
                dues.append(dependency.again_ms)
            if dependency.waiting and dependency.allowed > len(dependency.sent) and not is_blocked:
                dues.append(dependency.waiting[0].due_ms)
        dues += [min(dependency.again_ms for dependency in pausing.values())] if pausing else []
        return min(dues, default=None)

    def judge(
        self,
        acked: Int64s,
        failed: Sequence[tuple[Int64s, Failure]],
        next_sequence: int,
        now_ms: int,
    ) -> list[OutageChange]:
        """Take the verdicts of one micro-batch, before any of its messages waits.

        Args:
            acked: The sequences of acked messages.
            failed: Those of failed ones, with their failures.
            next_sequence: The first that no message has.
        """
        missed: dict[str, list[tuple[Int64s, Failure]]] = {}
        for sequences, failure in failed:
            if failure.cause is FailureCause.UNAVAILABLE:
                missed.setdefault(dependency_of(failure) or "", []).append((sequences, failure))
        if self._waited_ms:
            for sequence in acked.tolist():
                self._waited_ms.pop(sequence, None)
        if not (missed or self._by_name):
            return []
        news = next_sequence - self._sent_again
        others = [sequences for sequences, why in failed if why.cause in _CAUSES_THAT_PASS]
        passed = np.concatenate([acked, *others])
        ended = {*acked.tolist()}.union(*(sequences.tolist() for sequences, _ in failed))
        changes = []
        for name in self._by_name.keys() | missed.keys():
            dependency = self._by_name.get(name) or self._by_name.setdefault(name, _Dependency())
            groups = missed.get(name, ())
            counts = dependency.counts(passed, [sequences for sequences, _ in groups])
            change = dependency.judge(counts, [why for _, why in groups], next_sequence, news, now_ms)
            dependency.mark = dependency.mark or next_sequence
            dependency.sent -= ended
            changes.append(change)
        return [change for change in changes if change is not None]

    def hold(self, name: str, message: Message, now_ms: int) -> None:
        """Let a message wait for what it could not reach."""
        if name not in self._by_name:  # an earlier run's: nothing is known of it now
            self._by_name[name] = dependency = _Dependency[Message]()
            dependency.wait(now_ms, FIRST_PAUSE_MS)
        self._by_name[name].hold(message, now_ms)

    def take_waited_ms(self, sequence: int) -> int:
        """For how long a message that was sent again had waited before."""
        return self._waited_ms.pop(sequence, 0) if self._waited_ms else 0

    def take_due(
        self, now_ms: int, is_blocked: Callable[[Message], bool] = lambda _: False
    ) -> list[tuple[Message, int]]:
        """Take out what is to be sent now, each message with the time for which it waited.

        While one dependency holds the spout back and pauses, nothing that waits for another is sent. What is
        blocked is passed over until :meth:`unblock`.
        """
        if not self._by_name:
            return []
        pausing = {name for name, dependency in self._pausing() if not dependency.is_over(now_ms)}
        due: list[tuple[Message, int]] = []
        for name, dependency in self._by_name.items():
            if not pausing - {name}:
                dependency.begin_if_over(now_ms)
                due += dependency.take_due(now_ms, is_blocked)
        return due

    def unblock(self) -> None:
        """Verdicts came: look again at what was blocked."""
        for dependency in self._by_name.values():
            dependency.unblock()

    def _pausing(self) -> list[tuple[str, _Dependency[Message]]]:
        return [
            (name, dependency)
            for name, dependency in self._by_name.items()
            if dependency.holds and dependency.is_pausing
        ]

    def note_sent(self, name: str, sequence: int, waited_ms: int) -> None:
        """A message that waited for so long, for one thing after the other, was sent again."""
        self._sent_again += 1
        if waited_ms:
            self._waited_ms[sequence] = waited_ms
        if name in self._by_name:
            self._by_name[name].sent.add(sequence)

    def discard(self, is_gone: Callable[[Message], bool], sequences: Sequence[int]) -> list[Message]:
        """Take out the messages that a function names, and forget those that were sent again."""
        gone = []
        self.unblock()
        for dependency in self._by_name.values():
            gone += [one.message for one in dependency.waiting if is_gone(one.message)]
            dependency.waiting = deque(one for one in dependency.waiting if not is_gone(one.message))
            dependency.sent.difference_update(sequences)
        for sequence in sequences:
            self._waited_ms.pop(sequence, None)
        return gone

    def settle(self) -> list[OutageChange]:
        """Called after messages were sent: forget what nobody waits for."""
        if not self._by_name:
            return []
        waits = {
            name
            for name, dependency in self._by_name.items()
            if dependency.waiting or dependency.blocked or dependency.sent
        }
        over = [name for name in self._by_name if name not in waits]
        changes = [self._by_name.pop(name).works() for name in over]
        return [change for change in changes if change is not None]


def _retry_after_ms(failure: Failure) -> int | None:
    error = failure.exception
    secs = error.retry_after_secs if isinstance(error, Unavailable) else None
    return None if secs is None else max(FIRST_PAUSE_MS, round(secs * 1000))


def _outage(failure: Failure, since_ms: int, tries: int) -> Outage:
    error, by = failure.exception, failure.component
    fix = (error.fix if isinstance(error, ConnectorError) else "") or "see the reason"
    reason = f"{failure.reason.splitlines()[0] if failure.reason else failure.cause} (bolt {by!r})"
    return Outage(reason, fix, since_ms, tries, dependency_of(failure) or "")


def configuration_error(failure: Failure) -> AcktreeError:
    """The error that stops the topology where a bolt says that it cannot work as it is."""
    error, where = failure.exception, f"bolt {failure.component!r}"
    is_setting = qualified_name(ConfigError) in failure.exception_types
    kind = ConfigError if is_setting else ConnectorError
    if isinstance(error, AcktreeError):
        return kind(error.what, ": ".join(filter(None, (where, error.where))), error.fix)
    return kind(failure.reason, where, "correct it, then submit again")
