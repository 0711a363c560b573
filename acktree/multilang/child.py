"""A child process that speaks the multilang protocol over its pipes. A keeper owns it; see ``keeper.py``.

Rules of this file
------------------
1. Reading and writing do not wait for each other: while a pipe to the child is full, what it writes is read.
2. A child has a session of its own, and what ends it ends its process group: also what it forked.
3. Silence is measured between messages; one that only logs, counts or reports errors is silent.
4. The keeper always reads its stderr, so it never fills; the last lines go into the error.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from acktree import BoltError
from acktree.multilang import keeper
from acktree.multilang.framing import FramingError, format_of
from acktree.system.forks import close_in_children, note_closed
from acktree.system.processes import lasting_process
from acktree.system.readable import is_readable

__all__ = ["Child", "SubprocessError"]

_CHUNK: Final = 65_536
_SLICE_SECS: Final = 0.1
_MOST_UNWRITTEN: Final = 1 << 20
_TALK: Final = ("log", "error", "metrics")
_CLOSED_SECS: Final = 1
"""How long a child that closed its output has to end."""


class SubprocessError(BoltError):
    """A child process ended, was silent for too long, or broke the protocol.

    Attributes:
        returncode: Its exit code, negative for a signal; None if it ran until it was ended for this error.
        stderr: The last lines that it wrote to stderr.
    """

    def __init__(
        self, what: str, where: str, fix: str, *, returncode: int | None = None, stderr: str = ""
    ) -> None:
        super().__init__(what, where, fix)
        self.returncode, self.stderr = returncode, stderr  # pickle keeps them in __dict__


class Child:
    """A running child process.

    Args:
        command: The program and its arguments.
        where: The component and task, for errors.
        timeout_secs: How long it may be silent while an answer is due.
        folder: Its working folder. None: this process's.
        env: Variables of its environment, over those of this process.
        serializer: How messages are written: "json" or "msgpack".
        printed: Is given each line that it printed between messages.
        most_pending: How many messages may be unwritten before ``write`` waits.
        name: A child of this name that was given back is used again; empty for one that is not.
        run_id: The run that it ends with; empty for one that ends with this process.
        version: What that child was given back with. With another one it is replaced.
        mark: Is the same while a child may be used again.

    Attributes:
        where: The component and task.
        format: How messages are written.
        pid: The number of its process.
        is_new: Whether it was started now.
        pid_folder: An empty folder that is there while it lives.
        death: How the child of this name ended before; empty if it did not, or it is not known.

    Raises:
        SubprocessError: It cannot be started.
        ModuleNotFoundError: The package of its serializer is not installed here.
    """

    def __init__(
        self,
        command: Sequence[str],
        where: str,
        timeout_secs: float,
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        serializer: str = "json",
        printed: Callable[[str], None] = lambda _: None,
        most_pending: int = 100,
        name: str = "",
        run_id: str = "",
        version: str = "",
        mark: str = "",
    ) -> None:
        self.where, self._timeout_secs, self._printed = where, timeout_secs, printed
        self.format = format_of(serializer)
        self._most_pending = most_pending
        request = {
            "command": [*command], "folder": str(folder or Path.cwd()), "run_id": run_id,
            "name": f"{run_id} {name}" if name else "", "version": version,
            "environ": {**os.environ, **(env or {})},
            "mark": hashlib.sha256(repr((command, str(folder), env, serializer, mark)).encode()).hexdigest(),
        }  # fmt: skip
        self._told: deque[dict[str, Any]] = deque()
        self._unread = b""
        self._frames = self.format.frames()
        self._messages: deque[Any] = deque()
        self._unwritten = bytearray()
        self._pending: deque[int] = deque()
        self._error: SubprocessError | None = None
        self._mistake = ""
        self._end: dict[str, Any] | None = None
        self._stdin = self._stdout = -1
        self._silent_since = time.monotonic()
        self._borrow(request)

    def write(self, message: object) -> None:
        """Write a message. Waits while much is unwritten, and reads meanwhile.

        Raises:
            UnwritableError: The format does not have a value of the message. Nothing was written.
            SubprocessError: The child is dead or does not read.
        """
        data = self.format.framed(message)
        if self._error is not None:
            raise self._error
        self._unwritten += data
        self._pending.append(len(data))
        self._poller.register(self._stdin, select.POLLOUT)
        self._pump(0)
        while len(self._unwritten) > _MOST_UNWRITTEN or len(self._pending) > self._most_pending:
            self._write_more()

    def finish_writing(self) -> None:
        """Wait until all is written.

        Raises:
            SubprocessError: The child is dead or does not read.
        """
        while self._unwritten:
            self._write_more()

    def arrived(self) -> Iterator[Any]:
        """The messages that are there.

        Raises:
            SubprocessError: It ended, or wrote what is not a message.
        """
        if not self._messages:
            self._pump(0)
        while self._messages:
            yield self._messages.popleft()

    def receive(self) -> Any:  # noqa: ANN401  # what the child's JSON says
        """The child's next message.

        Raises:
            SubprocessError: It ended, was silent for too long, or wrote what is not a message.
        """
        while not self._messages:
            self._pump(_SLICE_SECS)
            if not self._messages:
                self._die_if_silent("sent no message")
        message = self._messages.popleft()
        if isinstance(message, dict) and message.get("command") in _TALK:
            self._die_if_silent("sent only logs, errors and metrics")
        else:
            self.answer_is_due()
        return message

    def answer_is_due(self) -> None:
        """From now on the child may be silent for its timeout."""
        self._silent_since = time.monotonic()

    def _die_if_silent(self, what: str) -> None:
        if time.monotonic() > self._silent_since + self._timeout_secs:
            self._die(f"{what} for {self._timeout_secs:g} s")

    def receive_within(self, secs: float) -> Iterator[Any]:
        """The messages that are there or come within ``secs``. They need not come.

        Raises:
            SubprocessError: It ended, or wrote what is not a message.
        """
        deadline = time.monotonic() + secs
        while self._messages or time.monotonic() < deadline:
            if self._messages:
                yield self._messages.popleft()
            else:
                self._pump(min(_SLICE_SECS, secs))

    def broken(self, reason: str) -> SubprocessError:
        """End the child, which broke the protocol; the error for it."""
        with suppress(SubprocessError):
            self._die(reason)
        assert self._error is not None  # _die sets it
        return self._error

    def give_back(self, version: str) -> None:
        """Leave the child to the next one that names this version. All its messages were received.

        Raises:
            SubprocessError: It is dead, or its keeper is.
        """
        rest = base64.b64encode(self._frames.rest).decode()
        self._send({"version": version, "rest": rest})
        deadline = time.monotonic() + keeper.ANSWER_SECS
        while not any("given_back" in about for about in self._told):
            if self._end is not None or time.monotonic() > deadline:
                self._die("ended" if self._end is not None else "was ended: its keeper does not answer")
            self._hear(_SLICE_SECS)
        self._finish()

    def close(self, grace_secs: float = keeper.GRACE_SECS) -> None:
        """End the child: close its input, then SIGTERM, then SIGKILL, with a pause before each."""
        if self._connection is None:
            return
        os.close(self._stdin)
        note_closed(self._stdin)
        self._stdin = -1
        self._send({"secs": grace_secs})
        self._await_end(3 * grace_secs)
        self._kill_if_not_ended()
        self._finish()

    def abandon(self) -> None:
        """Let the keeper kill the child; nobody waits for its end. A second call does nothing."""
        self._finish()

    def _borrow(self, request: Mapping[str, Any]) -> None:
        """Get the child of the keeper."""
        try:
            connection, reply, descriptors = _asked(request)
        except OSError as error:
            what = f"the keeper of child processes cannot be reached: {error}"
            fix = "mend what the error names: its folder acktree-keeper-UID-PID is in TMPDIR"
            raise SubprocessError(what, self.where, fix) from error
        if "error" in reply:
            connection.close()
            what = f"the command {request['command'][0]!r} cannot be started: {reply['error']}"
            raise SubprocessError(what, self.where, "install it on this machine, or name its path")
        self._connection: socket.socket | None = connection
        self._keeper = connection.fileno()
        self._stdin, self._stdout = descriptors
        self.pid: int = reply["pid"]
        self.is_new: bool = reply["is_new"]
        self.pid_folder: str = reply["pid_folder"]
        self.death = "" if reply["death"] is None else f"it ended{_described(reply['death'])}"
        self._poller = select.poll()
        for number in (self._keeper, self._stdin, self._stdout):
            close_in_children(number)  # a forked process would hide that this one hangs up
        for number in (self._keeper, self._stdout):
            self._poller.register(number, select.POLLIN)
        self._is_open = True
        self._take(base64.b64decode(reply["rest"]))

    def _send(self, request: Mapping[str, Any]) -> None:
        if self._connection is not None:
            with suppress(OSError):  # it is gone; its end is heard
                self._connection.sendall(json.dumps(request).encode() + b"\n")

    def _hear(self, secs: float) -> None:
        """Hear what the keeper tells; wait for it for ``secs`` at most."""
        if self._connection is None or not is_readable(self._connection, secs):
            return
        try:
            data = self._connection.recv(_CHUNK)
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._told += [json.loads(line) for line in lines]
        for about in self._told:
            if "ended" in about or "taken" in about:
                self._end = about
        if not data and self._end is None:
            self._kill_if_not_ended()
            self._end = {"lost": True}
        if self._end is not None:
            with suppress(KeyError):
                self._poller.unregister(self._keeper)

    def _pump(self, secs: float) -> None:
        """Read and write what is possible; wait for it for ``secs`` at most."""
        if self._error is not None:
            raise self._error
        has_ended = self._end is not None
        ready = [number for number, _ in self._poller.poll(0 if has_ended or self._messages else secs * 1000)]
        for number in ready:
            if number == self._stdin:
                self._write_some()
            elif number == self._keeper:
                self._hear(0)
            elif number == self._stdout:
                self._take(self._read())
        is_over = not self._is_open or (has_ended and self._stdout not in ready)
        if is_over and not self._messages:
            if self._mistake:
                self._die(self._mistake)
            self._await_end(_CLOSED_SECS)
            self._die("ended" if self._end is not None else "closed its output")

    def _write_more(self) -> None:
        """Write what is possible; the child must read some of it within the timeout."""
        size, deadline = len(self._unwritten), time.monotonic() + self._timeout_secs
        while len(self._unwritten) == size:
            self._pump(_SLICE_SECS)
            if len(self._unwritten) == size and time.monotonic() > deadline:
                self._die(f"did not read its input for {self._timeout_secs:g} s")

    def _write_some(self) -> None:
        try:
            size = os.write(self._stdin, self._unwritten[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # it closed its input: its end, or its silence, is the error
            size = len(self._unwritten)
        del self._unwritten[:size]
        while self._pending and size >= self._pending[0]:
            size -= self._pending.popleft()
        if self._pending:
            self._pending[0] -= size
        if not self._unwritten:
            self._poller.unregister(self._stdin)

    def _read(self) -> bytes:
        try:
            data = os.read(self._stdout, _CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            self._stop_reading()
        return data

    def _stop_reading(self) -> None:
        self._is_open = False
        with suppress(KeyError):
            self._poller.unregister(self._stdout)

    def _take(self, data: bytes) -> None:
        try:
            for message, printed in self._frames.feed(data):
                for line in printed:
                    self._printed(line)
                self._messages.append(message)
        except FramingError as error:  # raised when the messages before it were received
            self._mistake = f"wrote {error}"
            self._stop_reading()

    def _await_end(self, secs: float) -> None:
        deadline = time.monotonic() + secs
        while self._end is None and time.monotonic() < deadline:
            self._hear(_SLICE_SECS)

    def _kill_if_not_ended(self) -> None:
        """Kill the child if its keeper has not told of its end: the keeper is gone, or stopped."""
        if self._end is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _die(self, what: str) -> None:
        """End the process, and raise why; the same error at each later call."""
        if self._error is not None:
            raise self._error
        was_ended = self._end is not None
        if not was_ended:
            self._send({"secs": 0})
            self._await_end(keeper.GRACE_SECS)
            self._kill_if_not_ended()
        end = self._end or {}
        unfinished = f"; unfinished output: {self._frames.text}" if self._frames.text else ""
        if "lost" in end:
            what, unfinished = "was lost: its keeper ended", ""
        elif "taken" in end:
            what, unfinished = f"was taken away: {end['taken']}", ""
        code = end.get("ended") if was_ended else None
        about = f"child process {self.pid} {what}{_code(code)}{unfinished}{_last_lines(end)}"
        fix = f"mend the program; a message is {self.format.message}"
        self._error = SubprocessError(about, self.where, fix, returncode=code, stderr=end.get("stderr", ""))
        self._finish()
        raise self._error

    def _finish(self) -> None:
        """Hang up, and close the pipes. What was not given back is killed."""
        if self._connection is None:
            return
        self._connection.close()
        self._connection = None
        note_closed(self._keeper)
        for number in (self._stdin, self._stdout):
            if number >= 0:
                note_closed(number)
                os.close(number)
        self._stdin = -1


def _asked(request: Mapping[str, Any], tries: int = 3) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """The keeper's reply to a request for a child, and the descriptors that come with it.

    A keeper that ends in this moment is replaced, and one that does not answer is killed and replaced.
    """
    connection, owner = None, lasting_process()
    process = keeper.running(owner)
    try:
        connection = keeper.connect(owner)
        connection.settimeout(keeper.ANSWER_SECS)
        connection.sendall(json.dumps(request).encode() + b"\n")
        data, descriptors, _, _ = socket.recv_fds(connection, _CHUNK, 2)
        while data and not data.endswith(b"\n"):
            data += connection.recv(_CHUNK)
        if not data:
            raise ConnectionResetError("it has just ended")
    except OSError as error:
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            keeper.kill_stopped(owner, process)
        if tries <= 1:
            raise
        return _asked(request, tries - 1)
    connection.settimeout(None)
    for number in descriptors:
        os.set_inheritable(number, False)  # noqa: FBT003
    return connection, json.loads(data), descriptors


def _described(end: Mapping[str, Any]) -> str:
    return f"{_code(end.get('ended'))}{_last_lines(end)}"


def _code(code: int | None) -> str:
    if code is None:
        return ""
    return f" with exit code {code}" if code >= 0 else f" by signal {signal.Signals(-code).name}"


def _last_lines(end: Mapping[str, Any]) -> str:
    stderr = end.get("stderr")
    return f"; the last lines of its stderr:\n{stderr}" if stderr else "; it wrote nothing to stderr"
