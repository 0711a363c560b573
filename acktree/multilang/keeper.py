"""A small process that owns child processes, so that they live longer than the processes that use them.

Spark gives a task's next micro-batch to another Python worker, and ends workers that rest. A *keeper* lives
as long as its *owner*: Spark's daemon of a worker, or the process that uses the children. A *borrower*
connects, names a child, and gets its pipes.

Rules of this file
------------------
1. It imports the standard library alone, and runs as a script: it takes 15 MB, and starts in 50 ms.
2. A child has one borrower. One that hangs up without giving the child back was in the middle of a message:
   the child is killed. If two ask for a child, the second gets a new one, and the first one's is killed.
3. A child is given back with a version. Who borrows it names the version that it expects; for another one
   there is a new child, and the old one is killed.
4. Messages on the socket are JSON, one a line. Its folder is the user's alone, and so is each peer.
5. No child is left when the owner ends. When the keeper is killed, Linux kills its children.
6. The children of a run end when its driver says so, and none starts for it from then on.
7. A keeper that does not answer is killed by whoever notices it, and the next request starts a new one.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import selectors
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

__all__ = ["connect", "end_run", "kill_stopped", "running"]

ANSWER_SECS: Final = 15
"""How long a keeper has to answer. One that is stopped, as by SIGSTOP, does not."""
GRACE_SECS: Final = 5
"""How long a child has to end after its input was closed, and after SIGTERM."""
_IDLE_SECS: Final = 600
"""A child that nobody borrowed for this long is ended."""
_REST_SECS: Final = 60
"""A keeper without children ends after this long."""
_SLICE_SECS: Final = 0.5
_CHUNK: Final = 65_536
_MOST_LINES: Final = 20
_MOST_OF_LINE: Final = 500
_MOST_REQUEST: Final = 64 << 20
_LONGEST_FOLDER: Final = 90
"""The path of a socket has 107 bytes at most."""
_SHORT: Final = "/tmp"  # noqa: S108  # a folder in it is checked
_PR_SET_PDEATHSIG: Final = 1
_started: Final[list[int]] = []


def connect(owner: int) -> socket.socket:
    """A connection to the keeper of an owner, which is started if it does not run.

    Args:
        owner: The process that it ends with.

    Raises:
        OSError: There is no private folder for its socket.
    """
    folder = _private_folder(owner)
    with suppress(OSError):
        return _connected(folder / "socket")
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(OSError):  # another process has started it meanwhile
            return _connected(folder / "socket")
        _start(folder, owner)
        return _connected(folder / "socket")
    finally:
        os.close(lock)


def running(owner: int) -> int:
    """The process of an owner's keeper; 0 if none was started."""
    try:
        return int((_private_folder(owner) / "pid").read_text())
    except (OSError, ValueError):
        return 0


def kill_stopped(owner: int, process: int) -> None:
    """Kill a keeper that did not answer, if no other one was started meanwhile.

    Args:
        owner: The process that it belongs to.
        process: What ``running`` said before the connection to it was made.
    """
    if process and running(owner) == process:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def end_run(run_id: str) -> None:
    """Let all keepers of this user on this machine end the children of a run; wait until they have ended."""
    for folder in {
        place for base in (tempfile.gettempdir(), _SHORT) for place in Path(base).glob(_named("*"))
    }:
        owner = folder.name.rpartition("-")[2]
        if not owner.isdecimal():
            continue
        process = running(int(owner))
        try:
            with _connected(_private_folder(int(owner)) / "socket") as connection:
                connection.settimeout(ANSWER_SECS)
                connection.sendall(json.dumps({"end_run": run_id}).encode() + b"\n")
                connection.recv(_CHUNK)
        except TimeoutError:
            kill_stopped(int(owner), process)
        except OSError:  # it has ended, and its children with it
            continue


def _named(owner: object) -> str:
    return f"acktree-keeper-{os.getuid()}-{owner}"


def _private_folder(owner: int) -> Path:
    """The folder of an owner's keeper, which only this user can access."""
    name = _named(owner)
    folder = Path(tempfile.gettempdir(), name)
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        folder = Path(_SHORT, name)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can access: delete it")
    return folder


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _start(folder: Path, owner: int) -> None:
    """Start a keeper; its socket listens already when this returns."""
    (folder / "socket").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, Path(os.devnull).open("w") as nothing:
        listener.bind(str(folder / "socket"))
        listener.listen(128)
        command = [sys.executable, "-I", "-S", *_script(), str(owner), str(folder)]
        number = listener.fileno()
        duplicates = [(os.POSIX_SPAWN_DUP2, number, 0), (os.POSIX_SPAWN_DUP2, nothing.fileno(), 1)]
        _reap()
        process = os.posix_spawn(sys.executable, command, os.environ, file_actions=duplicates)
        _started.append(process)
        (folder / "pid").write_text(str(process))


def _script() -> list[str]:
    """The arguments with which Python runs this file. An executor of a cluster has it in a zip: as text."""
    if Path(__file__).is_file():
        return [__file__]
    source: str = sys.modules[__name__].__loader__.get_source(__name__)  # type: ignore[union-attr]
    return ["-c", source]


def _reap() -> None:
    """Take note of keepers that ended, so that no zombies are left."""
    for keeper in [*_started]:
        with suppress(ChildProcessError):
            if os.waitpid(keeper, os.WNOHANG)[0] == 0:
                continue
        _started.remove(keeper)


class _Child:
    """A child, and who uses it.

    Attributes:
        version: The version that it was given back with; None while it is lent.
        rest: What its borrower had read of a message that was not complete.
        pid_folder: Where it makes a file that is named by its pid, while it lives.
        lines: The last lines of its stderr.
        borrower: Who uses it.
        signals: What is sent to it when ``deadline`` has passed, in order.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(  # noqa: S603  # the user's own command, without a shell
            request["command"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=request["folder"],
            env=request["environ"], start_new_session=True, preexec_fn=_ending_with(os.getpid()),  # noqa: PLW1509  # one thread
        )  # fmt: skip
        self.mark: str = request["mark"]
        self.name: str = request["name"]
        self.run_id: str = request["run_id"]
        self.version: str | None = None
        self.rest = self.pid_folder = ""
        self.lines: deque[str] = deque([""], maxlen=_MOST_LINES)
        self.borrower: _Borrower | None = None
        self.signals: deque[int] = deque()
        self.deadline = float("inf")
        self.secs: float = GRACE_SECS
        streams = self.process.stdin, self.process.stdout, self.process.stderr
        self.stdin, self.stdout, self.stderr = (stream for stream in streams if stream is not None)
        for stream in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)

    def read_stderr(self) -> bool:
        """Keep the last lines of what is there; False if there will be no more."""
        try:
            data = os.read(self.stderr.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        first, *others = data.decode(errors="replace").split("\n")
        self.lines[-1] = (self.lines[-1] + first)[:_MOST_OF_LINE]
        self.lines.extend(line[:_MOST_OF_LINE] for line in others[-_MOST_LINES:])
        return bool(data)

    def end_by(self, *signals: int, secs: float = 0) -> None:
        """Close its input; send it the signals, ``secs`` before each, until it ends."""
        self.stdin.close()
        self.version = None
        self.signals, self.deadline = deque(signals), time.monotonic() + secs
        self.secs = secs or GRACE_SECS
        self.signal_if_due()

    def signal_if_due(self) -> None:
        """Send the next signal to its process group if it is time."""
        while self.signals and time.monotonic() >= self.deadline:
            self.signal(self.signals.popleft())
            self.deadline = time.monotonic() + self.secs

    def signal(self, number: int) -> None:
        """Send a signal to its process group: also to what it forked."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class _Borrower:
    """A connection of a borrower, with what it has sent of a request."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.child: _Child | None = None
        self.unread = b""

    def send(self, about: Mapping[str, Any], descriptors: list[int]) -> None:
        """Send a message. A borrower that hung up is noticed when it is read from."""
        with suppress(OSError):
            socket.send_fds(self.connection, [json.dumps(about).encode() + b"\n"], descriptors)


class _Keeper:
    """All children of an owner, and their borrowers."""

    def __init__(self, listener: socket.socket, owner: int, folder: Path) -> None:
        self._owner, self._folder = owner, folder
        self._children: list[_Child] = []
        self._named: dict[str, _Child] = {}
        self._deaths: dict[str, dict[str, Any]] = {}
        self._ended_runs: set[str] = set()
        self._ending_runs: list[tuple[str, _Borrower]] = []
        self._borrowers: set[_Borrower] = set()
        self._used_at = time.monotonic()
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._watch(listener, lambda: self._accept(listener))
        woken, waking = os.pipe()
        for number in (woken, waking):
            os.set_blocking(number, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking)
        self._watch(woken, lambda: os.read(woken, _CHUNK))
        self._owner_descriptor = _descriptor_of(owner)
        if self._owner_descriptor is not None:
            self._watch(self._owner_descriptor, lambda: None)

    def run(self) -> None:
        """Serve borrowers until the owner has ended, or for some time nobody needed a child."""
        while self._owner_runs() and (self._children or self._borrowers or self._has_rest()):
            self._turn()
        self._is_ending = True
        for child in self._children:
            child.end_by(signal.SIGTERM, signal.SIGKILL)
        if self._owner_descriptor is not None:
            self._selector.unregister(self._owner_descriptor)
        while self._children:
            self._turn()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_SLICE_SECS):
            key.data()
        now = time.monotonic()
        for child in [*self._children]:
            if child.process.poll() is not None:
                self._end(child)
            elif child.borrower is None and child.version is not None and now > child.deadline:
                self._forget(child)
                child.end_by(signal.SIGTERM, signal.SIGKILL, secs=GRACE_SECS)
            else:
                child.signal_if_due()
        for run_id, asking in [*self._ending_runs]:
            if all(child.run_id != run_id for child in self._children):
                self._ending_runs.remove((run_id, asking))
                asking.send({"ended_run": run_id}, [])

    def _has_rest(self) -> bool:
        return time.monotonic() < self._used_at + _REST_SECS

    def _owner_runs(self) -> bool:
        if self._owner_descriptor is not None:
            poll = select.poll()  # select() refuses descriptors above 1,023
            poll.register(self._owner_descriptor, select.POLLIN)
            return not poll.poll(0)
        try:
            os.kill(self._owner, 0)
        except OSError:
            return False
        return True

    def _watch(self, file: socket.socket | IO[bytes] | int, call: Callable[[], object]) -> None:
        self._selector.register(file, selectors.EVENT_READ, call)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the other side has hung up, or there is no room for it
            return
        if not _is_own(connection):
            connection.close()
            return
        borrower = _Borrower(connection)
        self._borrowers.add(borrower)
        self._watch(connection, lambda: self._read(borrower))

    def _read(self, borrower: _Borrower) -> None:
        try:
            data = borrower.connection.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, borrower.unread = (borrower.unread + data).split(b"\n")
        try:
            for line in lines:
                self._obey(borrower, json.loads(line))
        except (ValueError, KeyError, TypeError):  # no borrower of ours
            data = b""
        if not data or len(borrower.unread) > _MOST_REQUEST:
            self._hang_up(borrower)

    def _hang_up(self, borrower: _Borrower) -> None:
        self._borrowers.discard(borrower)
        self._selector.unregister(borrower.connection)
        borrower.connection.close()
        self._used_at = time.monotonic()
        if borrower.child is not None:
            borrower.child.borrower = None
            self._kill(borrower.child)

    def _obey(self, borrower: _Borrower, request: Mapping[str, Any]) -> None:
        child = borrower.child
        if self._is_ending:
            raise ValueError
        if "end_run" in request:
            self._end_run(borrower, request["end_run"])
        elif "command" in request:
            self._lend(borrower, request)
        elif child is None:
            return
        elif "version" in request:
            child.version, child.rest = request["version"], request["rest"]
            child.deadline = time.monotonic() + _IDLE_SECS
            child.borrower = borrower.child = None
            borrower.send({"given_back": True}, [])
        else:
            self._forget(child)
            secs = request["secs"]
            child.end_by(*((signal.SIGTERM,) if secs else ()), signal.SIGKILL, secs=secs)

    def _end_run(self, asking: _Borrower, run_id: str) -> None:
        self._ended_runs.add(run_id)
        self._ending_runs.append((run_id, asking))
        for child in [each for each in self._children if each.run_id == run_id]:
            if child.borrower is not None:
                self._take_away(child, "its run has ended")
            else:
                self._forget(child)
                child.end_by(signal.SIGTERM, signal.SIGKILL, secs=GRACE_SECS)

    def _lend(self, borrower: _Borrower, request: Mapping[str, Any]) -> None:
        name = request["name"]
        if request["run_id"] in self._ended_runs:
            borrower.send({"error": "the run has ended"}, [])
            return
        known = self._named.get(name)
        if known is not None and known.process.poll() is not None:
            self._end(known)
            known = None
        death = self._deaths.pop(name, None)
        child = known if known is not None and _fits(known, request) else None
        if child is None:
            if known is not None:
                self._take_away(known, "another attempt of this task asked for it")
            try:
                child = self._start(request)
            except (OSError, ValueError) as error:
                borrower.send({"error": str(error)}, [])
                return
        is_new = child.version is None
        child.version, child.borrower, borrower.child = None, borrower, child
        child.deadline = float("inf")
        about = {
            "pid": child.process.pid, "is_new": is_new, "rest": child.rest, "death": death,
            "pid_folder": child.pid_folder,
        }  # fmt: skip
        borrower.send(about, [child.stdin.fileno(), child.stdout.fileno()])

    def _start(self, request: Mapping[str, Any]) -> _Child:
        pid_folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            child = _Child(request)
        except BaseException:
            pid_folder.rmdir()
            raise
        child.pid_folder = str(pid_folder)
        self._children.append(child)
        if child.name:
            self._named[child.name] = child
        self._watch(child.stderr, lambda: self._read_stderr(child))
        return child

    def _read_stderr(self, child: _Child) -> None:
        if child.stderr.closed:  # it ended in this turn
            return
        if not child.read_stderr():
            self._unwatch(child)

    def _unwatch(self, child: _Child) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(child.stderr)

    def _take_away(self, child: _Child, why: str) -> None:
        """Kill a child that is not what was expected, that another borrower has, or whose run has ended."""
        if child.borrower is not None:
            child.borrower.child = None
            child.borrower.send({"taken": why}, [])
            child.borrower = None
        self._kill(child)

    def _kill(self, child: _Child) -> None:
        self._forget(child)
        child.end_by(signal.SIGKILL)

    def _forget(self, child: _Child) -> None:
        if self._named.get(child.name) is child:
            del self._named[child.name]

    def _end(self, child: _Child) -> None:
        """Tell of a child's end, kill what it forked and left, and close its pipes."""
        child.signal(signal.SIGKILL)
        for _ in range(_MOST_LINES):  # what it wrote last, of what a pipe can hold
            child.read_stderr()
        about = {"ended": child.process.returncode, "stderr": "\n".join(child.lines).strip()}
        if child.borrower is not None:
            child.borrower.child = None
            child.borrower.send(about, [])
        elif self._named.get(child.name) is child:
            self._deaths[child.name] = about
        self._forget(child)
        self._unwatch(child)
        self._children.remove(child)
        shutil.rmtree(child.pid_folder, ignore_errors=True)
        for stream in (child.stdin, child.stdout, child.stderr):
            stream.close()


def _fits(child: _Child, request: Mapping[str, Any]) -> bool:
    return child.version is not None and (child.version, child.mark) == (request["version"], request["mark"])


def _is_own(connection: socket.socket) -> bool:
    """Whether a peer is of the same user. Where the system does not say, the folder alone protects."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", peer)[1] in (os.getuid(), 0)


def _ending_with(keeper: int) -> Callable[[], None] | None:
    """Is called in a new child: Linux kills it when the keeper ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != keeper:
            os._exit(1)

    return prepare


def _descriptor_of(process: int) -> int | None:
    """What can be read when the process has ended; None where the system has no such thing."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def _main(owner: int, folder: Path) -> None:
    os.setsid()
    os.chdir("/")
    with suppress(ValueError, OSError, ImportError):  # a worker's limit of memory is not for children
        import resource  # noqa: PLC0415

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    with socket.socket(fileno=0) as listener:
        _Keeper(listener, owner, folder).run()
        with suppress(OSError):
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # nobody starts another one meanwhile
            shutil.rmtree(folder)


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]))
