"""Kills a driver and its queue's server under load, and makes the account of every message.

It does what a producer, a supervisor and a bad day would do: it puts messages, kills, and starts again.
What is known of a message comes from the queue and from the effects of bolts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, Self

from tests.brokers.account import PARTS, Account, Evidence, Kill, Look, Struck, account_of
from tests.brokers.queues import PutError, Queue
from tests.chaos.effects import RUN, Effect, effects_in
from tests.chaos.processes import kill_all, processes_of

ROOT: Final = Path(__file__).parents[2]
_PAGE_SECS: Final = 0.1
_LOOK_SECS: Final = 0.1
_PAUSE_SECS: Final = 20
"""The longest wait for a moment."""
_MOMENT_SECS: Final = 0.01
_AFTER_AN_EFFECT: Final = 0.7
"""The share of kills that come when bolts have just written effects, before the micro-batch is committed."""
_END_SECS: Final = 90
_OUTLIVE_SECS: Final = 60
"""So long the JVM of a driver that has ended may take to end."""
PATIENCE_SECS: Final = 600
"""Everything that was put must have its effects within this time after a kill."""


class StuckError(Exception):
    """Messages did not get their effects in time."""


class Producer:
    """Puts messages at a rate, on a thread of its own, until it is stopped.

    Attributes:
        put, unsure: When each message was given to the queue: confirmed, and not confirmed.
    """

    def __init__(self, queue: Queue, rate: float) -> None:
        self._queue, self._rate = queue, rate
        self.put: dict[int, float] = {}
        self.unsure: dict[int, float] = {}
        self._lock, self._stopped = Lock(), Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Put no more; returns when the last page is confirmed, or not."""
        self._stopped.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put nothing meanwhile: what is left in the queue is counted."""
        with self._lock:
            yield

    def confirmed(self) -> set[int]:
        """The messages that the queue has confirmed."""
        with self._lock:
            return set(self.put)

    def _run(self) -> None:
        number, count = 0, max(1, round(self._rate * _PAGE_SECS))
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + _PAGE_SECS, time.monotonic() - 1)  # after an outage it does not make up for all
            page = range(number, number + count)
            number += count
            with self._lock:
                given = dict.fromkeys(page, time.monotonic())
                try:
                    self._queue.put(page)
                except PutError:
                    self.unsure |= given
                else:
                    self.put |= given


class Effects:
    """The effects as they are written: which messages have them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._parts: dict[int, set[int]] = {}
        self.done: set[int] = set()

    def look(self) -> set[int]:
        """Read what was written since the last look; the messages that have all of their effects."""
        for file in self._folder.iterdir():
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                whole, _, _ = lines.read().rpartition(b"\n")
            if whole:
                self._read[file] = self._read.get(file, 0) + len(whole) + 1
                for line in whole.split(b"\n"):
                    number, _, _, _, part, *_ = line.split(b"\t")
                    self._note(int(number), int(part))
        return self.done

    def _note(self, number: int, part: int) -> None:
        if number not in self.done:
            parts = self._parts.setdefault(number, set())
            parts.add(part)
            if len(parts) == PARTS:
                self.done.add(number)
                del self._parts[number]


@dataclass
class Result:
    """What a run came to.

    Attributes:
        stuck: What did not come to an end; empty if all did.
        story: Each kill in words.
    """

    account: Account
    drivers: int
    stuck: str
    story: list[str]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.account.is_clean and not self.stuck

    def to_json(self) -> dict[str, Any]:
        """For the one line."""
        account = self.account
        return {
            "clean": self.is_clean,
            "messages": account.messages,
            "effects": account.effects,
            "findings": {name: len(found) for name, found in account.findings.items()},
            "runs": {str(runs): count for runs, count in sorted(account.runs.items())},
            "again": dict(account.again),
            "most_per_kill": account.most_per_kill,
            "drivers": self.drivers,
            "stuck": self.stuck,
        }


class Conductor:
    """One run in one folder. Used as a context manager: nothing that it started outlives it."""

    def __init__(self, folder: Path, queue: Queue, rate: float, say: Callable[[str], object]) -> None:
        self.folder, self.queue, self._say = folder, queue, say
        for name in ("effects", "logs", "local"):
            (folder / name).mkdir(parents=True)
        (folder / "driver.json").write_text(json.dumps(queue.settings()))
        self.producer, self.effects = Producer(queue, rate), Effects(folder / "effects")
        self.kills: list[Kill] = []
        self.looks: list[Look] = []
        self.story: list[str] = []
        self._sessions: list[int] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    @property
    def drivers(self) -> int:
        """How many were started."""
        return len(self._sessions)

    def __enter__(self) -> Self:
        self.producer.start()
        self.start_driver()
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.stop()
        for session in self._sessions:
            kill_all(session)
        if self._driver is not None:
            self._driver.wait()

    def start_driver(self) -> None:
        """Start the next driver."""
        number = len(self._sessions) + 1
        # A JVM that writes an archive of its classes outlives its driver.
        asked = {"PYTHONPATH": str(ROOT), RUN: str(number), "ACKTREE_CLASS_ARCHIVE": "use"}
        environment = {**os.environ, **asked}
        with (self.folder / "logs" / f"{number}.log").open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.brokers.driver", str(self.folder)], cwd=ROOT, env=environment,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._sessions.append(self._driver.pid)

    def await_done(self, numbers: set[int]) -> None:
        """Wait until these messages have their effects.

        Raises:
            StuckError: They do not get them in time, or the driver ended.
        """
        deadline = time.monotonic() + PATIENCE_SECS
        while not numbers <= self.effects.look():
            assert self._driver is not None, "it was started"
            if self._driver.poll() is not None:
                raise StuckError(f"driver {len(self._sessions)} ended by itself: {self._last_line()}")
            if time.monotonic() > deadline:
                missing = sorted(numbers - self.effects.done)
                raise StuckError(f"{len(missing)} messages have no effects, the first is {missing[0]}")
            time.sleep(_LOOK_SECS)

    def await_effect(self) -> None:
        """Wait until the next message has its effects, for a while."""
        before, deadline = len(self.effects.look()), time.monotonic() + _PAUSE_SECS
        while len(self.effects.look()) == before and time.monotonic() < deadline:
            time.sleep(_MOMENT_SECS)

    def first_page(self) -> set[int]:
        """The messages that were put first, once there are any."""
        while not (confirmed := self.producer.confirmed()):
            time.sleep(_LOOK_SECS)
        return set(sorted(confirmed)[:1])

    def kill_driver(self, *, alone: bool) -> None:
        """Kill it, alone or with all that it started; look at the queue; start the next."""
        assert self._driver is not None, "it was started"
        self.kills.append(Kill(Struck.DRIVER, time.monotonic()))
        if alone:
            os.kill(self._driver.pid, signal.SIGKILL)
        else:
            kill_all(self._driver.pid)
        self._driver.wait()
        with self.producer.paused():
            count, left = self.queue.left()
            self.looks.append(Look(time.monotonic(), count, left))
        self._note(
            f"driver {len(self._sessions)} killed{' alone' if alone else ''}, {count} left in the queue"
        )
        self.start_driver()

    def kill_server(self, away_secs: float) -> None:
        """Kill it, and start it again after a time."""
        self.kills.append(Kill(Struck.SERVER, time.monotonic()))
        self.queue.kill()
        time.sleep(away_secs)
        self.queue.start()
        self._note(f"server killed, away for {time.monotonic() - self.kills[-1].at:.1f} s")

    def end(self) -> tuple[str, int]:
        """Stop producing, and let the driver end.

        Returns:
            What is stuck, if anything is, and the number of dead letters.
        """
        self.producer.stop()
        self.await_done(self.producer.confirmed())
        assert self._driver is not None, "it was started"
        self._driver.send_signal(signal.SIGTERM)
        try:
            self._driver.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            return "the last driver does not end", 0
        ended = self.folder / "ended"
        if not ended.exists():
            return f"the last driver ended: {self._last_line()}", 0
        outlived = self._outlived()
        evidence = json.loads(ended.read_text())
        count, left = self.queue.left()
        self.looks.append(Look(time.monotonic(), count, left))
        stuck = "" if evidence["idle"] else "messages were open at the end"
        stuck = stuck or (f"processes outlived their driver: {outlived}" if outlived else "")
        return stuck, evidence["letters"]

    def _outlived(self) -> list[str]:
        """The processes that are there long after their driver."""
        deadline = time.monotonic() + _OUTLIVE_SECS
        while True:
            left = [str(each.role) for session in self._sessions for each in processes_of(session)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(_LOOK_SECS)

    def evidence(self, letters: int, *, is_over: bool) -> Evidence:
        """All that was seen."""
        producer = self.producer
        effects: list[Effect] = list(effects_in(self.folder / "effects"))
        return Evidence(
            producer.put, producer.unsure, effects, self.kills, self.looks, letters, is_over=is_over
        )

    def keep(self, evidence: Evidence) -> None:
        """Write what the account needs beside the effects, for a run that is not clean."""
        evidence = {
            "put": evidence.put,
            "unsure": evidence.unsure,
            "kills": [asdict(each) for each in self.kills],
            "looks": [
                {"at": each.at, "count": each.count, "left": sorted(each.left or ())} for each in self.looks
            ],
        }
        (self.folder / "evidence.json").write_text(json.dumps(evidence))

    def _note(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:5.0f} s  {what}")
        self._say(self.story[-1])

    def _last_line(self) -> str:
        log = self.folder / "logs" / f"{len(self._sessions)}.log"
        return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]


def perform(
    folder: Path,
    queue: Queue,
    seed: int,
    kills: int,
    server_kills: int,
    rate: float,
    say: Callable[[str], object],
) -> Result:
    """Run it.

    Args:
        folder: A folder that does not exist yet.
        seed: Gives the order of the kills, and the pauses before them.
        kills, server_kills: How many SIGKILLs of the driver and of the server.
        rate: Messages a second.
    """
    chance = random.Random(seed)
    plan = [Struck.DRIVER] * kills + [Struck.SERVER] * server_kills
    chance.shuffle(plan)
    with Conductor(folder, queue, rate, say) as conductor:
        stuck, letters = "", 0
        try:
            before = set[int]()
            for struck in plan:
                # What was put before the last kill is through, and what was put since is being worked on.
                conductor.await_done(before or conductor.first_page())
                before = conductor.producer.confirmed()
                if chance.random() < _AFTER_AN_EFFECT:
                    conductor.await_effect()
                    time.sleep(chance.uniform(0, 0.3))
                else:
                    time.sleep(chance.uniform(0.1, 2))
                if struck is Struck.DRIVER:
                    conductor.kill_driver(alone=chance.random() < 0.5)
                else:
                    conductor.kill_server(chance.uniform(0, 3))
            stuck, letters = conductor.end()
        except StuckError as error:
            stuck = str(error)
    evidence = conductor.evidence(letters, is_over=not stuck)
    account = account_of(evidence)
    result = Result(account, conductor.drivers, stuck, conductor.story)
    if not result.is_clean:
        conductor.keep(evidence)
    return result
