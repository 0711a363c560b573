"""kill -9 of a child, its keeper, a Python worker and the driver, under load: each message has its effect."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.processes import Role, kill_all, processes_of, send
from tests.spark.test_crashes import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
_LOOK_SECS = 0.05


class Kills:
    """A driver, started again where it was killed, and what it has done."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.log = folder, (folder / "driver.log").open("a")
        self.random = random.Random(seed)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.spark.shell_driver", str(self.folder)]
        self.driver = subprocess.Popen(
            command, cwd=ROOT, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def acked(self) -> list[int]:
        noted = self.folder / "noted"
        lines = noted.read_text().splitlines() if noted.exists() else []
        assert not [line for line in lines if not line.startswith("acked ")]  # none has failed for good
        return [int(line.split()[1]) for line in lines]

    def effects(self) -> list[int]:
        noted = self.folder / "effects"
        return [int(line) for line in noted.read_bytes().split()] if noted.exists() else []

    def await_more(self, count: int, seen: Callable[[], list[int]]) -> None:
        wanted = len(seen()) + count
        while len(seen()) < wanted:
            assert self.driver.poll() is None, (self.folder / "driver.log").read_text()[-5000:]
            time.sleep(_LOOK_SECS)

    def children(self) -> list[int]:
        """The children that run, by the folder among their arguments."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = file.read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.folder).encode() in arguments and any(b"noting_child" in each for each in arguments):
                found.append(int(file.parent.name))
        return found

    def keepers(self) -> list[int]:
        found = set()
        for child in self.children():
            try:
                stat = Path(f"/proc/{child}/stat").read_text()
            except OSError:
                continue
            found.add(int(stat.rpartition(") ")[2].split()[1]))
        return sorted(found)

    def workers(self) -> list[int]:
        return [each.pid for each in processes_of(self.driver.pid) if each.role is Role.WORKER]

    def kill(self, kind: str) -> None:
        """Kill one process of a kind, in the middle of a micro-batch; start the driver again.

        A driver is killed in the first micro-batch of its run, but for a third of the times.
        """
        if kind == "driver" and self.random.random() < 1 / 3:
            self.await_more(1, self.acked)
        self.await_more(self.random.randint(5, 150), self.effects)
        if kind == "driver":
            self.driver.kill()
            self.driver.wait()
            self.await_nothing_left()
            self.start()
            return
        while True:
            victims = {"child": self.children, "keeper": self.keepers, "worker": self.workers}[kind]()
            if victims and send(self.random.choice(victims), signal.SIGKILL):
                return
            time.sleep(_LOOK_SECS)

    def await_nothing_left(self) -> None:
        """Of a driver that ended nothing stays: neither its processes nor children."""
        while self.children() or processes_of(self.driver.pid):
            time.sleep(_LOOK_SECS)

    def finish(self) -> str:
        """Let it end; the account."""
        self.await_more(100, self.acked)
        (self.folder / "enough").touch()
        assert self.driver.wait() == 0, (self.folder / "driver.log").read_text()[-5000:]
        self.await_nothing_left()
        acked, effects = self.acked(), self.effects()
        assert sorted(set(acked)) == [*range(len(set(acked)))]  # none was lost
        assert set(acked) <= {*effects}  # none was acked wrongly
        return (
            f"{len(set(acked)):,} messages acked, {len(acked) - len(set(acked)):,} acks told again, "
            f"{len(effects) - len(set(effects)):,} effects more than once"
        )


@contextmanager
def driver_in(folder: Path, seed: int) -> Iterator[Kills]:
    kills = Kills(folder, seed)
    try:
        yield kills
    finally:
        kill_all(kills.driver.pid)
        for child in kills.children():
            send(child, signal.SIGKILL)
        kills.log.close()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "kinds", [["child", "keeper", "worker"], ["driver"]], ids=["its processes", "driver"]
)
def test_whatever_is_killed_under_load_no_message_is_lost_or_acked_wrongly_and_no_child_stays(
    kinds, tmp_path, sized
):
    times = sized(2, 8, 30)
    with driver_in(tmp_path, seed=len(kinds)) as kills:
        for _ in range(times):
            for kind in kinds:
                kills.kill(kind)
        account = kills.finish()
    sys.stdout.write(f"{times} kills of each of {kinds}: {account}\n")
