"""Storm's multilang protocol, seen from a component's parent: a state and a message in, instructions out.

A component is driven by messages, which are dicts. How a message reaches it is a transport: a pipe to a child
process, or a function call in this process. A *host* gives a protocol what happens, and carries out the
instructions that it returns, in order.

Rules of this file
------------------
1. Nothing here does I/O, reads a clock or raises: a mistake of the component is an instruction, too.
2. An id that the protocol gives is the text of a number that grows by one. So it knows an id that was never
   given from one that is closed, without a memory of closed ids.
3. After ``Broken`` a protocol takes nothing and instructs nothing: the component is dead.

==========================  ====================================  ========  ==================================
state                       input                                 next      instructions
==========================  ====================================  ========  ==================================
STARTING                    ``begin``                             SET_UP    Write the set-up
SET_UP                      ``{"pid": n}``                        READY     Ready
SET_UP                      another message                       DEAD      Broken
READY (bolt)                ``execute``, ``heartbeat``            READY     Write it
READY (bolt)                emit anchored to open ids             READY     Emit
READY (bolt)                ack, fail of an open id               READY     Ack, Fail; the id is closed
READY (bolt)                ack, fail of a closed id              READY     Ignored
READY (bolt)                ack, fail, anchor never given         DEAD      Broken
READY (bolt)                anchor that is closed                 DEAD      Broken
READY (bolt)                sync while a heartbeat is out         READY     Synced
READY (bolt)                error as pystorm writes it            READY     Report; a sync to come is its own
READY (bolt)                another sync, an unknown command      READY     none; Ignored
READY (spout)               ``command``                           WAITING   Write it, then what was kept
READY (spout)               emit                                  READY     none: kept for the next command
WAITING                     emit                                  WAITING   Emit
WAITING                     sync                                  READY     Synced
spout                       ack, fail, an unknown command         DEAD      Broken
READY, WAITING              log, error, metrics                   same      Log, Report, Metric
any but DEAD                ``end``                               DEAD      Broken
==========================  ====================================  ========  ==================================

Source: Storm's ``ShellBolt``, ``ShellSpout``, ``ShellProcess`` and its page "Multi-Lang Protocol". One
departure: a second ack or fail of an id is reported and ignored, where Storm's worker exits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

__all__ = [
    "Ack",
    "BoltProtocol",
    "Broken",
    "Emit",
    "Fail",
    "Ignored",
    "Instruction",
    "Log",
    "Metric",
    "Ready",
    "Report",
    "SpoutProtocol",
    "State",
    "Synced",
    "Write",
]

T = TypeVar("T")


class State(Enum):
    """Where a conversation with a component is."""

    STARTING = "STARTING"
    """Nothing was written."""
    SET_UP = "SET_UP"
    """The set-up was written, and is not answered."""
    READY = "READY"
    """A bolt takes tuples, a spout its next command."""
    WAITING = "WAITING"
    """A command of a spout is not answered."""
    DEAD = "DEAD"
    """It broke the protocol, or ended."""


class Write(NamedTuple):
    """Give this message to the component."""

    message: Any


class Ready(NamedTuple):
    """The component answered its set-up."""

    pid: Any


class Emit(NamedTuple):
    """Emit a tuple.

    Attributes:
        values: Its values.
        stream: Its stream.
        anchors: What the host gave with each tuple that it is anchored to; empty for none, and of a spout.
        task: The task it is sent to; None for a stream that is not direct.
        message_id: Of a spout: its id of the message; None for untracked.
        wants_tasks: Whether the component waits for a list of the tasks that the tuple went to.
        attempt: Of a spout: which attempt of the message this is.
    """

    values: Sequence[Any]
    stream: str
    anchors: Sequence[Any]
    task: int | None
    message_id: Any
    wants_tasks: bool
    attempt: int = 1


class Ack(NamedTuple):
    """Ack a tuple: what the host gave with it."""

    tup: Any


class Fail(NamedTuple):
    """Fail a tuple: what the host gave with it."""

    tup: Any


class Log(NamedTuple):
    """Write a line of the log. The level is Storm's: 0 trace, 1 debug, 2 info, 3 warn, 4 error."""

    text: str
    level: int


class Report(NamedTuple):
    """Report an error of the component. Fails nothing.

    Attributes:
        text: Its text.
        cause: The exception, if the transport brings it along.
    """

    text: str
    cause: BaseException | None = None


class Metric(NamedTuple):
    """Count a metric of the component."""

    name: Any
    params: Any


class Ignored(NamedTuple):
    """Report a mistake of the component that has no effect."""

    text: str


class Synced(NamedTuple):
    """The component answered a spout's command, or a bolt's heartbeat."""


class Broken(NamedTuple):
    """The component is dead: fail what is open. The reason is for the failure's text."""

    reason: str


Instruction: TypeAlias = Write | Ready | Emit | Ack | Fail | Log | Report | Metric | Ignored | Synced | Broken
Instructions: TypeAlias = Sequence[Instruction]

_OF_PYSTORM: Final = re.compile(r"Python \w+ raised(?: while processing Tuple .*)?\n")
"""How pystorm's text of an error begins. It sends a sync behind each, which answers no heartbeat."""
_INFO: Final = 2
_MOST_LEVEL: Final = 4
_SYNCED: Final = (Synced(),)
_MOST_SHOWN: Final = 200


class _Protocol:
    """What bolts and spouts have in common.

    Attributes:
        state: Where the conversation is.
    """

    def __init__(self) -> None:
        self.state = State.STARTING

    def begin(self, set_up: Mapping[str, Any]) -> Instructions:
        """Write the first message: ``conf``, ``context`` and ``pidDir``."""
        self.state = State.SET_UP
        return (Write(set_up),)

    def end(self, reason: str) -> Instructions:
        """The component ended, was silent for too long, or wrote what is not a message."""
        return () if self.state is State.DEAD else self._broken(reason)

    def receive(self, message: object) -> Instructions:
        """Take a message of the component."""
        if self.state is State.DEAD:
            return ()
        if self.state is State.SET_UP:
            return self._take_pid(message)
        if not isinstance(message, dict) or "command" not in message:
            return self._broken(f"a message without a command: {_shown(message)}")
        command = message["command"]
        if command == "error":
            return self._report(message)
        said = _OF_ALL.get(command) if isinstance(command, str) else None
        return self._obey(command, message) if said is None else (said(message),)

    def _take_pid(self, message: object) -> Instructions:
        if isinstance(message, dict) and "pid" in message:
            self.state = State.READY
            return (Ready(message["pid"]),)
        return self._broken(f"the set-up was answered with {_shown(message)}")

    def _report(self, message: Mapping[str, Any]) -> Instructions:
        cause = message.get("exception")
        is_one = isinstance(cause, BaseException)
        return (Report(str(message.get("msg", "")), cause if is_one else None),)

    def _obey(self, command: object, message: Mapping[str, Any]) -> Instructions:
        raise NotImplementedError

    def _broken(self, reason: str) -> Instructions:
        self.state = State.DEAD
        return (Broken(reason),)


class BoltProtocol(_Protocol, Generic[T]):
    """A conversation with a bolt.

    Args:
        unclosed: The open tuples by id; the host keeps it. The protocol adds what it writes, and removes what
            is acked and failed.
        given: How many ids were given before.
        state: READY to go on with a component that has answered its set-up.

    Attributes:
        given: How many ids were given.
    """

    def __init__(
        self, unclosed: MutableMapping[str, T], given: int = 0, state: State = State.STARTING
    ) -> None:
        self.state, self.given = state, given
        self._open = unclosed
        self._heartbeats = self._syncs_of_errors = 0

    def execute(self, tup: T, component: str, stream: str, task: int, values: Sequence[Any]) -> Instructions:
        """Write a tuple to the bolt.

        Args:
            tup: What ``Ack``, ``Fail`` and the anchors of ``Emit`` name this tuple by.
            component: The component that emitted it; ``__system`` for a tick.
            stream: Its stream; ``__tick`` for a tick.
            task: The task that emitted it.
            values: Its values.
        """
        if self.state is State.DEAD:
            return ()
        name = self._next_id()
        self._open[name] = tup
        return (Write({"id": name, "comp": component, "stream": stream, "task": task, "tuple": values}),)

    def heartbeat(self) -> Instructions:
        """Ask the bolt for a sync. What it wrote before is done when ``Synced`` comes."""
        if self.state is State.DEAD:
            return ()
        self._heartbeats += 1
        about: dict[str, Any] = {
            "id": self._next_id(),
            "comp": None,
            "stream": "__heartbeat",
            "task": -1,
            "tuple": [],
        }
        return (Write(about),)

    def _next_id(self) -> str:
        self.given += 1
        return str(self.given)

    def is_closed(self, name: object) -> bool:
        """Whether a tuple was given to the bolt, and is acked or failed."""
        return name not in self._open and self._was_given(name)

    def _report(self, message: Mapping[str, Any]) -> Instructions:
        self._syncs_of_errors += _OF_PYSTORM.match(str(message.get("msg", ""))) is not None
        return super()._report(message)

    def _obey(self, command: object, message: Mapping[str, Any]) -> Instructions:
        if command == "emit":
            return self._emit(message)
        if command in {"ack", "fail"}:
            return self._close(command, message.get("id"))
        if command == "sync":
            if self._syncs_of_errors:
                self._syncs_of_errors -= 1
                return ()
            if not self._heartbeats:
                return ()
            self._heartbeats -= 1
            return _SYNCED
        return (Ignored(f"an unknown command: {_shown(command)}"),)

    def _emit(self, message: Mapping[str, Any]) -> Instructions:
        ids = message.get("anchors") or ()
        anchors: list[T] = []
        for name in ids if isinstance(ids, list | tuple) else (ids,):
            if not isinstance(name, str) or name not in self._open:
                return self._broken(f"an emit is anchored to {_shown(name)}, {self._why_not(name)}")
            anchors.append(self._open[name])
        return _emitted(message, anchors) or self._broken(f"an emit without values: {_shown(message)}")

    def _close(self, command: object, name: object) -> Instructions:
        if isinstance(name, str) and name in self._open:
            tup = self._open.pop(name)
            return (Ack(tup) if command == "ack" else Fail(tup),)
        if self._was_given(name):
            return (Ignored(f"{command} of id {name}, {self._why_not(name)}"),)
        return self._broken(f"{command} of id {_shown(name)}, {self._why_not(name)}")

    def _was_given(self, name: object) -> bool:
        is_number = isinstance(name, str) and name.isascii() and name.isdecimal() and name[0] != "0"
        return is_number and len(str(name)) <= len(str(self.given)) and int(str(name)) <= self.given

    def _why_not(self, name: object) -> str:
        return "which was acked or failed before" if self._was_given(name) else "which was never given to it"


class SpoutProtocol(_Protocol):
    """A conversation with a spout: strictly one command, then all that it says up to its sync."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Instruction] = []

    def command(self, command: str, message_id: object = "", **more: object) -> Instructions:
        """Write a command: ``next``, ``ack``, ``fail``, ``activate`` or ``deactivate``.

        Args:
            command: Which.
            message_id: Of ``ack`` and ``fail``: as the spout emitted it.
            more: Further keys, for a transport that has them.
        """
        if self.state is State.DEAD:
            return ()
        kept, self._kept = self._kept, []
        self.state = State.WAITING
        return (Write({"command": command, "id": message_id, **more}), *kept)

    def _obey(self, command: object, message: Mapping[str, Any]) -> Instructions:
        if command == "emit":
            emitted = _emitted(message, ())
            if not emitted:
                return self._broken(f"an emit without values: {_shown(message)}")
            if self.state is State.READY:
                self._kept += emitted
                return ()
            return emitted
        if command == "sync":
            is_answer = self.state is State.WAITING
            self.state = State.READY
            return _SYNCED if is_answer else ()
        return self._broken(f"a spout sent the command {_shown(command)}")


def _logged(message: Mapping[str, Any]) -> Instruction:
    level = message.get("level")
    is_known = isinstance(level, int) and 0 <= level <= _MOST_LEVEL
    return Log(str(message.get("msg", "")), level if is_known else _INFO)  # type: ignore[arg-type]  # an int then


_OF_ALL: Mapping[str, Callable[[Mapping[str, Any]], Instruction]] = {
    "log": _logged,
    "metrics": lambda message: Metric(message.get("name"), message.get("params")),
}
"""What bolts and spouts may say at any time, beside ``error``."""


def _emitted(message: Mapping[str, Any], anchors: Sequence[Any]) -> Instructions:
    """The instruction of an emit; none where it has no values."""
    values = message.get("tuple")
    if not isinstance(values, list | tuple):
        return ()
    task = message.get("task") or None
    wants_tasks = task is None and message.get("need_task_ids", True) is not False
    stream = message.get("stream") or "default"
    attempt = message.get("attempt", 1)
    return (
        Emit(
            values, stream, anchors, task, message_id=message.get("id"), wants_tasks=wants_tasks,
            attempt=attempt,
        ),
    )  # fmt: skip


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
