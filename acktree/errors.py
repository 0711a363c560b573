"""The tree of exceptions: what happened, where, and what to do about it.

::

    AcktreeError ─┬─ TopologyError, ConfigError   the author: a topology, setting or argument is wrong
                  ├─ SpoutError, BoltError        the author: user code raised, or broke its contract
                  ├─ MisuseError                  the author: acked twice, undeclared stream or memory
                  ├─ ConnectorError               the operator: a queue or store; can it be retried?
                  │   └─ Unavailable              the operator: what a bolt needs is away
                  ├─ CheckpointError              the operator: the checkpoint is in use, changed or too new
                  ├─ DeadLetterLimitError         both: more messages fail than the configured limit
                  └─ ProtocolError                us: a bug in acktree

Rules of this file
------------------
1. Errors are divided by who must act, not by where they were detected.
2. Every error has three parts; the third is an action that its reader can take. Code of users may leave out
   the last two.
3. An error is pickled from a worker to the driver: all its data is in ``args`` or ``__dict__``.
4. This file imports no module of acktree: every other module may import it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar, cast

__all__ = [
    "AcktreeError",
    "BoltError",
    "CheckpointError",
    "ConfigError",
    "ConnectorError",
    "DeadLetterLimitError",
    "ExecuteTimeoutError",
    "HookError",
    "KilledWorkerError",
    "MisuseError",
    "ProtocolError",
    "SpoutError",
    "TopologyError",
    "Unavailable",
    "closest",
    "ending_at_caller",
    "installing",
    "name_keywords_of_connector",
    "naming_keywords",
    "nearest",
]


_Call = TypeVar("_Call", bound=Callable[..., Any])
full_tracebacks = False
"""Whether errors show the lines of acktree, too: ``ACKTREE_TRACEBACK=full`` in the environment sets it."""
_OURS: Final = __name__.partition(".")[0]
_OF_PYTHON: Final = Path(sysconfig.get_paths()["stdlib"])
_MOST_RETRY_AFTER_SECS: Final = 86_400
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})


class AcktreeError(Exception):
    """What happened, where, and what to do about it.

    Args:
        what: One statement of what is wrong, with the names and values concerned.
        where: The call, component, stream, tuple or file to look at. Empty: the text has no such line.
        fix: What to change or to run. The same.

    >>> print(AcktreeError("bolt 'count' has no input", "set_bolt('count', ...)", "chain a grouping to it"))
    bolt 'count' has no input
      where: set_bolt('count', ...)
      fix:   chain a grouping to it
    """

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
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
        where = f"\n  where: {self.where}" if self.where else ""
        fix = f"\n  fix:   {self.fix}" if self.fix else ""
        return f"{self.what}{where}{fix}"


class TopologyError(AcktreeError):
    """The topology is invalid. Raised by ``TopologyBuilder``, before anything starts."""


class ConfigError(AcktreeError):
    """A setting or argument has an unknown name, a wrong type or a value out of range. Raised first."""


class SpoutError(AcktreeError):
    """A spout raised in ``open``, which stops the topology, or broke its contract.

    ``__cause__`` is the spout's exception. A spout may also raise it in ``next_tuple``, with these arguments.

    Args:
        what: See :class:`AcktreeError`.
        where: See :class:`AcktreeError`.
        fix: See :class:`AcktreeError`.
        can_go_on: False: the topology stops with this error.
        pause_secs: The time for which ``next_tuple`` is not called again.

    Raises:
        MisuseError: ``pause_secs`` is no finite number from 0 on.
    """

    def __init__(
        self, what: str, where: str = "", fix: str = "", *, can_go_on: bool = True, pause_secs: float = 0.0
    ) -> None:
        super().__init__(what, where, fix)
        given: object = pause_secs
        if not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise MisuseError(
                f"pause_secs is {pause_secs!r:.60}", "SpoutError(pause_secs=...)", "give seconds, 0 or more"
            )
        self.can_go_on, self.pause_secs = can_go_on, pause_secs  # pickle keeps them: see ConnectorError


class BoltError(AcktreeError):
    """A bolt raised outside of ``execute``: in ``prepare``, ``tick``, ``flush`` or ``cleanup``.

    It is listed in ``stats().errors`` with the name of the hook; if ``prepare`` raises, the tuples of the
    task fail with the bolt's exception. It stops the topology if a hook kills its process each time.
    """


class HookError(AcktreeError):
    """A task hook, a worker hook or a metrics consumer raised. It is reported, and fails nothing."""


class MisuseError(AcktreeError):
    """User code made a call that is not allowed: a second ack, an emit after the ack, an undeclared stream.

    Raised by the call, inside user code. Uncaught in ``execute`` it fails the tuple, as any exception.
    """


class ExecuteTimeoutError(AcktreeError):
    """A bolt's ``execute`` took longer than ``execute_timeout_secs``. Raised inside it; its tuple fails."""


class KilledWorkerError(AcktreeError):
    """A tuple was left out because more than one worker died while executing it. Its message fails."""


class ConnectorError(AcktreeError):
    """A queue, broker or store refused a call or is unreachable.

    Args:
        what: See :class:`AcktreeError`.
        where: See :class:`AcktreeError`.
        fix: See :class:`AcktreeError`.
        can_retry: Whether the same call may succeed later without any action: True for a lost connection,
            False for a wrong password.

    Attributes:
        nothing_written: Of what ``Sink.write`` raises: whether it is certain that nothing was written. Its
            rows then wait at once; else the task asks for the mark first.
    """

    nothing_written = False

    def __init__(self, what: str, where: str = "", fix: str = "", *, can_retry: bool = False) -> None:
        super().__init__(what, where, fix)
        self.can_retry = can_retry  # kept by pickle through __dict__: only args go through __init__ again


class Unavailable(ConnectorError):  # noqa: N818  # says what is, and may be returned
    """What a bolt or sink needs is away: its messages wait. An attempt that finds it away does not count.

    Raise it in ``prepare``, ``execute`` or ``flush``, ``from`` the error of the client; an ``ArrowBolt`` may
    also return it from ``execute_batch``. A ``ConnectorError`` with ``can_retry`` does the same, under the
    name of the bolt.

    Args:
        name: What is away, as operators know it. Line breaks and the like are escaped.
        retry_after_secs: When to try again; None: after pauses that double from 0.5 s to 30 s.

    >>> Unavailable("prices", retry_after_secs=5)
    Unavailable('prices', retry_after_secs=5)
    """

    def __init__(self, name: str, retry_after_secs: float | None = None) -> None:
        given: object = name
        if not (isinstance(given, str) and given):
            raise ConfigError(
                f"Unavailable needs the name of what is away, and got {name!r:.80}",
                "raise Unavailable(...)",
                'give one name for all messages: raise Unavailable("prices") from error',
            )
        secs: object = retry_after_secs
        if secs is not None and not (isinstance(secs, int | float) and 0 <= secs <= _MOST_RETRY_AFTER_SECS):
            raise ConfigError(
                f"Unavailable cannot have retry_after_secs={secs!r}",
                f"raise Unavailable({name!r}, ...)",
                f"give seconds from 0 to {_MOST_RETRY_AFTER_SECS:,}, or None",
            )
        name = name if name.isprintable() else repr(name)[1:-1]  # it is shown in lines
        fix = f"see whether {name} runs and can be reached; messages wait, and are tried again until then"
        super().__init__(f"{name} is not available", "a bolt or sink", fix, can_retry=True)
        self.name, self.retry_after_secs = name, retry_after_secs

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it with its name and pause; one of a subclass is an Unavailable then."""
        return Unavailable, (self.name, self.retry_after_secs)

    def __repr__(self) -> str:
        after = "" if self.retry_after_secs is None else f", retry_after_secs={self.retry_after_secs:g}"
        return f"Unavailable({self.name!r}{after})"


class CheckpointError(AcktreeError):
    """The checkpoint cannot be used.

    It is in use, full, damaged or of another version, or the topology changed in a way that it cannot follow.
    """


class DeadLetterLimitError(AcktreeError):
    """More messages were given up than ``Config(dead_letter_limit_count=...)`` allows. Stops the topology.

    Messages that were not dead-lettered are open, and are tried again when the topology is submitted again.

    Attributes:
        recorded: Roots that were refused with the others but have a dead letter already: an earlier run
            stored it, and died before it journalled the spout's ``fail``.
    """

    def __init__(self, what: str, where: str, fix: str, *, recorded: frozenset[int] = frozenset()) -> None:
        super().__init__(what, where, fix)
        self.recorded = recorded


class ProtocolError(AcktreeError):
    """The engine's state is inconsistent: a bug in acktree, not in user code. Stops the topology."""


def closest(name: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """The most similar known name; None where none is as similar as that, from 0 to 1.

    >>> closest("ordres", ["orders", "count"])
    'orders'
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=similarity)), None)


def installing(extra: str) -> str:
    """How to install what an extra needs, for the fix of an error: acktree may be on no package index.

    >>> installing("ui")
    "pip install '.[ui]' in a clone of acktree, 'FILE.whl[ui]' with its wheel, or 'acktree[ui]' from an index"
    """
    clone, wheel, index = (f"'{where}[{extra}]'" for where in (".", "FILE.whl", "acktree"))
    return f"pip install {clone} in a clone of acktree, {wheel} with its wheel, or {index} from an index"


def nearest(name: object, known: Iterable[str]) -> str:
    """The text of a fix for an unknown name: the most similar known name, or all known names.

    >>> nearest("ordres", ["orders", "count"])
    "did you mean 'orders'?"
    >>> nearest("x", ["orders", "count"])
    "there are 'count' and 'orders'"
    >>> nearest("x", [])
    'there are none'
    """
    names = sorted(known)
    if (close := closest(str(name), names)) is not None:
        return f"did you mean {close!r}?"
    if len(names) < 2:  # noqa: PLR2004  # one or none: no "and"
        return f"there is only {names[0]!r}" if names else "there are none"
    return f"there are {', '.join(map(repr, names[:-1]))} and {names[-1]!r}"


def ending_at_caller(call: _Call) -> _Call:
    """Let the traceback of an AcktreeError of a public call end at the user's line.

    That of a ProtocolError is left whole, and so are all with :data:`full_tracebacks`.
    """

    @functools.wraps(call)
    def called(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  # as what it wraps
        try:
            return call(*arguments, **keywords)
        except AcktreeError as error:
            if not isinstance(error, ProtocolError) and not full_tracebacks:
                _end_at_user(error)
            raise

    return cast("_Call", called)


def _end_at_user(error: BaseException | None) -> None:
    """Leave out the frames after the last one of a user's file, also of the error's causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        last, frame = None, error.__traceback__
        while frame is not None:
            last, frame = frame if _is_of_user(frame) else last, frame.tb_next
        if last is None:
            error.__traceback__ = None
        else:
            last.tb_next = None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_of_user(place: TracebackType) -> bool:
    frame = place.tb_frame
    file = Path(frame.f_code.co_filename)
    is_ours = str(frame.f_globals.get("__name__")).partition(".")[0] == _OURS
    is_of_python = _OF_PYTHON in file.parents and _PACKAGES.isdisjoint(file.parts)
    return not (is_ours or is_of_python or str(file).startswith("<frozen "))


def naming_keywords(call: _Call) -> _Call:
    """Let a call refuse an unknown keyword with the nearest known one, and name an argument that is missing.

    For set-up; it costs a microsecond. Its errors end at the user's line: :func:`ending_at_caller`.

    Raises:
        ConfigError: A keyword is unknown, or an argument without a default is not given.

    >>> @naming_keywords
    ... def set_bolt(id, parallelism=1): ...
    >>> set_bolt("split", paralelism=2)
    Traceback (most recent call last):
    acktree.errors.ConfigError: set_bolt has no argument 'paralelism'
      where: set_bolt(..., paralelism=...)
      fix:   did you mean 'parallelism'?
    >>> set_bolt(parallelism=2)
    Traceback (most recent call last):
    acktree.errors.ConfigError: set_bolt needs the argument 'id'
      where: set_bolt(parallelism=...)
      fix:   write set_bolt(id=..., ...)
    """
    parameters = inspect.signature(call).parameters.values()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_position = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    known = {each.name for each in parameters if each.kind in by_keyword} - {"self", "cls"}
    places = [each.name for each in parameters if each.kind in by_position]
    needed = [each.name for each in parameters if each.name in known and each.default is each.empty]
    shown = call.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(call)
    def checked(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  # as what it wraps
        for name in keywords:
            if name not in known:
                what = f"{shown} has no argument {name!r}"
                raise ConfigError(what, f"{shown}(..., {name}=...)", nearest(name, known))
        for name in needed:
            if name not in keywords and name not in places[: len(arguments)]:
                given = ["..."] * any(each in known for each in places[: len(arguments)])
                where = ", ".join([*given, *(f"{each}=..." for each in keywords)])
                what, fix = f"{shown} needs the argument {name!r}", f"write {shown}({name}=..., ...)"
                raise ConfigError(what, f"{shown}({where})", fix)
        return call(*arguments, **keywords)

    return cast("_Call", ending_at_caller(checked))


def name_keywords_of_connector(made: type) -> None:
    """Let the ``__init__`` of a class of ``acktree.connectors`` do so. Classes of users keep theirs."""
    init = vars(made).get("__init__")
    if init is not None and made.__module__.startswith("acktree.connectors."):
        made.__init__ = naming_keywords(init)  # type: ignore[misc]
