"""The tree of exceptions: what happened, where, and what to do about it.

::

    AcktreeError ─┬─ TopologyError, ConfigError   the author: a topology, setting or argument is wrong
                  ├─ SpoutError, BoltError        the author: user code raised, or broke its contract
                  ├─ MisuseError                  the author: acked twice, undeclared stream or memory
                  ├─ ConnectorError               the operator: a queue or store; can it be retried?
                  ├─ CheckpointError              the operator: the checkpoint is in use, closed or too new
                  ├─ DeadLetterLimitError         both: so many messages fail that something must be mended
                  └─ ProtocolError                us: a bug; carries the root's whole story

Rules of this file
------------------
1. Split by who must act, not by where it was noticed.
2. Every error has three parts, and the third is something its reader can do now.
3. An error crosses from a worker to the driver by pickle: what it knows is in ``args`` or ``__dict__``.
4. Nothing of ours is imported here: every other room may import this one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AcktreeError",
    "BoltError",
    "CheckpointError",
    "ConfigError",
    "ConnectorError",
    "DeadLetterLimitError",
    "ExecuteTimeoutError",
    "KilledWorkerError",
    "MisuseError",
    "ProtocolError",
    "SpoutError",
    "TopologyError",
    "nearest",
]


class AcktreeError(Exception):
    """What happened, where, and what to do about it.

    Args:
        what: One statement of what is wrong, with the names and values it is about.
        where: The call, component, stream, tuple or file to look at.
        fix: What to change, or what to run, to make it go away.

    >>> print(AcktreeError("bolt 'count' has no input", "set_bolt('count', ...)", "chain a grouping to it"))
    bolt 'count' has no input
      where: set_bolt('count', ...)
      fix:   chain a grouping to it
    """

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what, where, fix)  # all in args, so it survives the pickle from worker to driver

    @property
    def what(self) -> str:
        """What is wrong, in one statement."""
        return str(self.args[0])

    @property
    def where(self) -> str:
        """The call, component, stream, tuple or file to look at."""
        return str(self.args[1])

    @property
    def fix(self) -> str:
        """What to change or to run."""
        return str(self.args[2])

    def __str__(self) -> str:
        return f"{self.what}\n  where: {self.where}\n  fix:   {self.fix}"


class TopologyError(AcktreeError):
    """The topology cannot be run as drawn. Raised by ``TopologyBuilder``, before anything starts."""


class ConfigError(AcktreeError):
    """A setting or an argument has no such name, type or range. Raised before anything starts."""


class SpoutError(AcktreeError):
    """A spout raised in ``open``, which stops the topology, or broke its contract.

    ``__cause__`` is its own exception. A spout may raise it in ``next_tuple`` itself, to say what follows.

    Args:
        can_go_on: False, raised in ``next_tuple``: the topology stops with this error.
        pause_secs: Raised in ``next_tuple``: it is not called again for so long.
    """

    def __init__(
        self, what: str, where: str, fix: str, *, can_go_on: bool = True, pause_secs: float = 0.0
    ) -> None:
        super().__init__(what, where, fix)
        self.can_go_on, self.pause_secs = can_go_on, pause_secs  # pickle keeps them: see ConnectorError


class BoltError(AcktreeError):
    """A bolt raised where no tuple can be blamed: in ``prepare``, ``tick``, ``flush`` or ``cleanup``.

    In ``stats().errors`` it says which; tuples of a bolt that is not prepared fail with the bolt's exception.
    Raised, and so stops the topology, where a hook ends its process each time.
    """


class MisuseError(AcktreeError):
    """User code asked for what cannot be done: a second ack, an emit after the ack, an undeclared stream.

    Raised at the call, inside user code. Left uncaught in ``execute`` it fails the tuple, as any exception.
    """


class ExecuteTimeoutError(AcktreeError):
    """A bolt's ``execute`` took longer than ``execute_timeout_secs``. Raised inside it; its tuple fails."""


class KilledWorkerError(AcktreeError):
    """A tuple was left out, because more than one worker died over it. Its message fails."""


class ConnectorError(AcktreeError):
    """A queue, broker or store refused or was not there.

    Args:
        can_retry: Whether the same call may succeed later without anyone acting: yes for a lost connection,
            no for a wrong password.
    """

    def __init__(self, what: str, where: str, fix: str, *, can_retry: bool = False) -> None:
        super().__init__(what, where, fix)
        self.can_retry = can_retry  # kept by pickle through __dict__: only args go through __init__ again


class CheckpointError(AcktreeError):
    """The checkpoint is held by another run, is another topology's, or was written by a newer acktree."""


class DeadLetterLimitError(AcktreeError):
    """More messages were given up than ``Config(dead_letter_limit_count=...)`` allows. Stops the topology.

    What was not dead-lettered is open, and comes back when the topology is submitted again.

    Attributes:
        buried: Roots that were refused with the others, though there is a letter of each: a run that died
            stored it, and could not note that it told the source.
    """

    def __init__(self, what: str, where: str, fix: str, *, recorded: frozenset[int] = frozenset()) -> None:
        super().__init__(what, where, fix)
        self.recorded = recorded


class ProtocolError(AcktreeError):
    """Our own books do not balance: a bug in acktree, never the user's. Stops the topology loudly."""


def nearest(name: object, known: Iterable[str]) -> str:
    """What a fix says about a name that nobody knows: the likeliest that somebody does, or all of them.

    >>> nearest("ordres", ["orders", "count"])
    "did you mean 'orders'?"
    >>> nearest("x", ["orders", "count"])
    "there are 'count' and 'orders'"
    >>> nearest("x", [])
    'there are none'
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if len(names) < 2:  # noqa: PLR2004  # one or none: no "and"
        return f"there is only {names[0]!r}" if names else "there are none"
    return f"there are {', '.join(map(repr, names[:-1]))} and {names[-1]!r}"
