"""The conductor: starts the driver, feeds its queue, starts it again, and asks at the end.

It does what a supervisor and a broker would do, and nothing more: all that is known of a message comes from
the queue's diary, the bolts' effects and acktree's own dead letters.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, cast

from acktree.dead_letters import DeadLetters
from tests.chaos.account import Account, Evidence, Letter, account_of
from tests.chaos.effects import RUN, effects_in, read_memory
from tests.chaos.environment import Disk, Listener, WallClock, unprivileged
from tests.chaos.message_queue import MessageQueue, State
from tests.chaos.nature import PROBE
from tests.chaos.processes import Process, Role, kill_all, processes_of, send
from tests.chaos.topology import SPOUT_TASKS

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = "kept"
"""Where in a folder that is kept the small disk's files are then."""
LETTERS: Final = "dead_letters.sqlite"
"""The dead letters, in the checkpoint's folder; in the chaos's own where the checkpoint is at a URL."""
_LOOK_SECS: Final = 0.1


@dataclass(frozen=True)
class Settings:
    """How a chaos is run.

    Attributes:
        rate: Messages a second that are put into the queue.
        real_time: Whether by epochs; then ``master`` means nothing.
        backlog: No message is put while this number waits.
        patience_secs: A driver that has work and does nothing for this number of seconds counts as hung.
        rest_secs: How long after the last strike every message must have its verdict.
    """

    master: str = "local[2,4]"
    queue_retries: bool = True
    real_time: bool = False
    rate: float = 60
    backlog: int = 1500
    message_timeout_secs: float = 20
    patience_secs: float = 600
    rest_secs: float = 1200


@dataclass
class Story:
    """What happened, beside the account.

    Attributes:
        strikes: What was struck, and what came of it.
        ends: How drivers ended by themselves.
        hangs: Drivers that had work and did nothing.
        outlived: Processes that were still there at the end, long after their driver.
        starts: How many drivers were started.
    """

    strikes: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    hangs: list[str] = field(default_factory=list)
    outlived: list[str] = field(default_factory=list)
    starts: int = 0


class HungError(Exception):
    """A driver had work and did nothing; it was killed."""


class Conductor:
    """One chaos, in one folder. Used as a context manager: nothing that it started outlives it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Set the stage."""
        self.folder, self.settings = folder, settings
        for name in ("effects", "memory", "logs"):
            (folder / name).mkdir()
        self.disk, self.clock = Disk(folder / "disk"), WallClock(folder)
        self.checkpoint = self.disk.folder / "checkpoint"
        self.queue = MessageQueue(folder / "queue.sqlite")
        self.story = Story()
        self.listener: Listener | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._struck, self._is_asked = "", False
        self._sessions: list[int] = []
        self._place, self._moved_at = -1, time.monotonic()
        self._fed_enough = Event()
        self._feeder = Thread(target=self._feed, daemon=True)

    def __enter__(self) -> Self:
        self._feeder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fed_enough.set()
        self._feeder.join()
        self.kill()
        for earlier in self._sessions:  # what was left to end by itself, and had the time to
            self.story.outlived += [f"{left.role} of driver {earlier}" for left in processes_of(earlier)]
            kill_all(earlier)
        self.queue.close()

    @property
    def has_executors(self) -> bool:
        """Whether there are executors to kill."""
        return self.settings.master.startswith("local-cluster")

    can_cut = False
    """Whether there is a network to cut."""

    def cut_network(self, which: float) -> str:
        """Cut the network of a Spark worker for some seconds; what came of it."""
        raise NotImplementedError

    def processes(self) -> list[Process]:
        """All that the driver has at work."""
        return processes_of(self.driver)

    def _orders(self) -> dict[str, Any]:
        """What the next driver is told."""
        return {
            "master": self.settings.master,
            "local_dir": str(self.disk.folder / "local"),
            "checkpoint": str(self.checkpoint),
            "message_timeout_secs": self.settings.message_timeout_secs,
            "queue_retries": self.settings.queue_retries,
            "real_time": self.settings.real_time,
        }

    def _command(self) -> list[str]:
        """What starts the next driver."""
        command = [sys.executable, "-m", "tests.chaos.driver", str(self.folder)]
        return unprivileged(command) or command

    def _environment(self) -> dict[str, str]:
        """What the next driver's environment has besides ours."""
        return {
            **self.clock.environment(),
            "ACKTREE_CLASS_ARCHIVE": "use",  # a JVM that writes one outlives its driver
            "PYTHONPATH": str(ROOT),
            RUN: str(self.story.starts),
        }

    @property
    def driver(self) -> int:
        """The driver's pid; the next one is started if it is not there."""
        if self._driver is None or self._driver.poll() is not None:
            self._end()
            self._start()
        assert self._driver is not None, "it was started"
        return self._driver.pid

    @property
    def is_alive(self) -> bool:
        """Whether the driver runs."""
        return self._driver is not None and self._driver.poll() is None

    def said(self) -> str:
        """The last thing that the driver printed of its own end."""
        lines = (self.folder / "logs" / f"{self.story.starts}.log").read_text(errors="replace").splitlines()
        own = [line for line in lines if line.startswith("driver stopped by")]
        return (own or lines or ["nothing"])[-1][:300]

    def kill(self) -> None:
        """End the driver and all that it started."""
        if self._driver is not None:
            kill_all(self._driver.pid)
            self._driver.wait()
            self._end()

    def note(self, struck: str) -> None:
        """Say what is struck next: if the driver ends, it was after that."""
        self._struck = struck

    def await_open(self) -> None:
        """Wait until all spouts of a driver are open, of the next one where this one ends before.

        Raises:
            HungError: It came to nothing.
        """
        while not self.is_open:
            self._look_after()

    @property
    def is_open(self) -> bool:
        """Whether this driver's spouts are open."""
        return self.queue.has_opened(self.story.starts, sum(SPOUT_TASKS.values()))

    def sleep(self, secs: float) -> None:
        """Wait; a driver that ends meanwhile is started again."""
        until = time.monotonic() + secs
        while (left := until - time.monotonic()) > 0:
            _ = self.driver
            time.sleep(min(left, _LOOK_SECS))

    def come_to_rest(self) -> bool:
        """Strike no more; True when every message has its verdict in time, and bolts wrote their memory."""
        self.clock.jump(0)
        self._fed_enough.set()
        self._feeder.join()
        self._struck = ""
        deadline = time.monotonic() + self.settings.rest_secs
        if not self._await_verdicts(deadline):
            return False
        self.queue.put([PROBE])
        return self._await_verdicts(deadline)

    def stop(self) -> bool:
        """Ask the driver to end; whether it did."""
        if self._driver is None or self._driver.poll() is not None:
            return True
        self._is_asked = True
        send(self._driver.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(self.settings.patience_secs)
        ended = self._driver.poll() is not None
        if not ended:
            self._dump("asked to end")
        return ended

    def account(self) -> Account:
        """The account, once all is over."""
        return account_in(self.folder, self.checkpoint, queue_retries=self.settings.queue_retries)

    def clear_away(self, *, keep: bool) -> None:
        """Delete all, or keep it to be looked at."""
        self.disk.close(self.folder / KEPT if keep else None)
        if not keep:
            shutil.rmtree(self.folder)

    def _await_verdicts(self, deadline: float) -> bool:
        while self.queue.count(State.READY, State.DELIVERED):
            if time.monotonic() > deadline:
                self._dump("coming to rest")
                return False
            _ = self.driver
            with suppress(HungError):
                self._look_after()
        return True

    def _look_after(self) -> None:
        """A moment of waiting, in which the driver is kept alive, and must do something."""
        _ = self.driver
        time.sleep(_LOOK_SECS)
        place = self.queue.place()
        if place != self._place or not self.queue.count(State.READY, State.DELIVERED):
            self._place, self._moved_at = place, time.monotonic()
        if time.monotonic() - self._moved_at > self.settings.patience_secs:
            self._dump("running")
            self.story.hangs.append(f"driver {self.story.starts}, after {self._struck or 'nothing'}")
            self.kill()
            raise HungError

    def _dump(self, doing: str) -> None:
        """Let the driver and its JVM print their stacks."""
        assert self._driver is not None, "somebody hangs"
        dumps = self.folder / "logs" / f"{self.story.starts}.dump"
        with dumps.open("a") as file:
            file.write(f"--- {doing}\n")
            for process in processes_of(self._driver.pid):
                wait = Path(f"/proc/{process.pid}/wchan")
                file.write(f"{process} {wait.read_text() if wait.exists() else ''}\n")
            file.flush()
            for process in processes_of(self._driver.pid):
                if process.role in (Role.JVM, Role.EXECUTOR) and shutil.which("jstack"):
                    subprocess.run(["jstack", str(process.pid)], check=False, stdout=file, timeout=60)
        send(self._driver.pid, signal.SIGUSR1)
        time.sleep(1)

    def _start(self) -> None:
        self.story.starts += 1
        logs = self.folder / "logs"
        (self.folder / "driver.json").write_text(json.dumps(self._orders()))
        self._driver = subprocess.Popen(
            self._command(), cwd=ROOT, env=os.environ | self._environment(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output = cast("BinaryIO", self._driver.stdout)
        self.listener = Listener(output, logs / f"{self.story.starts}.log")
        self._sessions.append(self._driver.pid)
        self._moved_at = time.monotonic()

    def _end(self) -> None:
        """After a driver's death: note how it came about, if nobody killed it."""
        if self._driver is None:
            return
        assert self.listener is not None, "every driver has one"
        if self._driver.returncode >= 0 and not self._is_asked:
            self.listener.join()
            kind = self.said().split(":")[0]
            self.story.ends[f"{kind}, after {self._struck or 'nothing'}"] += 1
        self._driver = None

    def _feed(self) -> None:
        queue = MessageQueue(self.folder / "queue.sqlite")
        number, owed = 0, 0.0
        while not self._fed_enough.wait(0.25):
            owed = min(owed + self.settings.rate * 0.25, self.settings.rate)
            if owed >= 1 and queue.count(State.READY) < self.settings.backlog:
                queue.put(range(number, number + int(owed)))
                number, owed = number + int(owed), owed - int(owed)
        queue.close()


def account_in(folder: Path, checkpoint: Path, *, queue_retries: bool) -> Account:
    """The account of a chaos that is over, from what lies in its folder."""
    memory = folder / "memory"
    letters = folder / LETTERS
    with closing(MessageQueue(folder / "queue.sqlite")) as queue:
        return account_of(
            Evidence(
                queue.messages(),
                queue.diary(),
                effects_in(folder / "effects"),
                _letters_in(letters if letters.exists() else checkpoint / LETTERS),
                queue_retries,
                read_memory(memory) if any(memory.glob("task-*")) else None,
            )
        )


def _letters_in(file: Path) -> Sequence[Letter]:
    if not file.exists():
        return []
    letters = []
    for letter in DeadLetters(file, create=True):
        number, delivery = json.loads(letter.message_id_repr.replace("(", "[").replace(")", "]"))
        letters.append(Letter(number, delivery, letter.attempts))
    return letters
