"""How a worker waits for the child in which it isolates a level: whatever becomes of it, the wait ends."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from acktree.core.data.frames import WireRow
from acktree.core.state.store import MemoryStore, StateStore
from acktree.errors import ProtocolError
from acktree.spark.worker import stopped
from acktree.tasks.bolts.rows.monitor import ExecutionMonitor
from tests.unit.spark.worker.test_isolation import (
    FIRST,
    Level,
    is_killed,
    isolation,
    row_of,
    said,
    stops,
)


def closes_all_and_stops() -> None:
    os.closerange(3, 256)  # as code does that makes a daemon of itself
    stops()


def forks_and_dies() -> None:
    if not os.fork():
        time.sleep(30)  # long after the test has seen the end of its parent
        os._exit(0)
    is_killed()


@pytest.mark.parametrize(
    ("deed", "how"), [(closes_all_and_stops, "was stopped"), (forks_and_dies, "SIGKILL")]
)
def test_the_wait_for_a_child_ends_with_it_whoever_has_its_connection(
    tmp_path: Path, monkeypatch, deed, how
) -> None:
    monkeypatch.setattr(stopped, "STOPPED_SECS", 0.1)
    found = said(isolation(tmp_path, 1, timeout_secs=60).run(Level({103: deed})))
    assert how in found.pop(103)
    assert set(found.values()) == {"done"}


class StopsItself(Level):
    """From a thread: while it sends its rows, or waits for what it remembers."""

    def __init__(self, asks: str) -> None:
        super().__init__({})
        self.asks = asks

    def __call__(self, monitor: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        threading.Timer(0.5, stops).start()
        if self.asks:
            assert store is not None
            store.get(self.asks)
        yield row_of(FIRST, "x" * 20_000_000)


class SlowStore(MemoryStore):
    """Answers with more than a socket holds, once whoever asked has stopped."""

    def get(self, name: str) -> bytes:
        until_a_child_has_stopped()
        return bytes(5_000_000)


def until_a_child_has_stopped() -> None:
    """Or was killed since."""
    task = Path("/proc/thread-self/children")
    while not any(state_of(child) in "TZ" for child in task.read_text().split()):
        time.sleep(0.01)


def state_of(process: str) -> str:
    return Path("/proc", process, "stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("asks", ["", "memory"], ids=["sends", "waits"])
def test_a_child_that_stops_while_it_sends_its_rows_or_waits_for_what_it_remembers_is_killed(
    tmp_path: Path, monkeypatch, asks: str
) -> None:
    receives = Connection.recv

    def recv(connection: Connection) -> object:
        if not asks:
            until_a_child_has_stopped()
        return receives(connection)

    monkeypatch.setattr(stopped, "STOPPED_SECS", 0.1)
    monkeypatch.setattr(Connection, "recv", recv)
    with pytest.raises(ProtocolError, match=r"without an execution mark \(its worker was stopped for 0.1 s"):
        list(isolation(tmp_path, 1).run(StopsItself(asks), SlowStore()))


def test_a_process_of_the_users_that_is_stopped_is_not_killed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stopped, "STOPPED_SECS", 0.1)
    users = subprocess.Popen(["sleep", "3600"])
    try:
        users.send_signal(signal.SIGSTOP)
        said(isolation(tmp_path, 1).run(Level({103: stops})))
        assert users.poll() is None
    finally:
        users.kill()
        users.wait()


def test_a_child_ends_with_the_process_that_isolates_it(tmp_path: Path) -> None:
    """Spark runs the task again at once: what is left of the attempt before must not run beside it."""
    mine, childs = os.pipe()

    def waits() -> None:
        os.write(childs, b"%d\n" % os.getpid())
        time.sleep(60)

    if not (parent := os.fork()):
        try:
            list(isolation(tmp_path, 1).run(Level({103: waits})))
        finally:
            os._exit(1)
    os.close(childs)
    with os.fdopen(mine) as said_by_child:
        assert said_by_child.readline()
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert said_by_child.read() == "", "the other end is closed, long before the child has slept"


def test_a_timer_of_the_interpreter_that_user_code_has_set_does_not_stop_the_child(tmp_path: Path) -> None:
    """Its thread is not in the child, which would wait for it."""
    faulthandler.dump_traceback_later(3600)
    try:
        found = said(isolation(tmp_path, 1, timeout_secs=60).run(Level({103: is_killed})))
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert "SIGKILL" in found[103]


class TwoArgumentsError(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class LockError(Exception):
    """Does not pickle."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class OtherError(Exception):
    """Unpickles as something else."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return str, ("none",)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no such table"), ValueError, "no such table"),
        (
            TwoArgumentsError(7, "the quota is used up"),
            RuntimeError,
            "TwoArgumentsError: 7: the quota is used up",
        ),
        (LockError("the quota is used up"), RuntimeError, "LockError: the quota is used up"),
        (OtherError("the quota is used up"), RuntimeError, "OtherError: the quota is used up"),
    ],
)
def test_what_a_child_raises_is_told_also_where_it_does_not_pickle(tmp_path: Path, error, kind, text) -> None:
    def raises() -> None:
        raise error

    with pytest.raises(kind) as raised:
        list(isolation(tmp_path, 1).run(Level({103: raises})))
    assert str(raised.value) == text


def test_the_child_is_ended_and_waited_for_where_what_it_remembers_cannot_be_read(tmp_path: Path) -> None:
    children: list[str] = []

    class Failing(MemoryStore):
        def get(self, name: str) -> bytes:
            children.append(name)
            raise ValueError("the store has failed")

    def asks(_: ExecutionMonitor, store: StateStore | None) -> Iterator[WireRow]:
        assert store is not None
        with suppress(EOFError):
            store.get(str(os.getpid()))
        time.sleep(60)
        yield row_of(FIRST, "done")

    with pytest.raises(ValueError, match="the store has failed"):
        list(isolation(tmp_path, 1).run(asks, Failing()))
    with pytest.raises(ChildProcessError):
        os.waitpid(int(children[0]), os.WNOHANG)
