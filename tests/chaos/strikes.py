"""How each kind of strike is carried out; each says what came of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.chaos.conductor import Conductor, HungError
from tests.chaos.plan import MOMENTS, Kind, Strike
from tests.chaos.processes import Role, send

_FIND_SECS: Final = 20.0
"""How long a target is waited for: a driver that starts has no workers yet."""
_WATCH_SECS: Final = 3.0
"""How long a driver that runs on a damaged checkpoint is let go on."""
_LOOK_SECS: Final = 0.05
_GLANCE_SECS: Final = 0.002
_MOMENT_SECS: Final = 20.0


def carry_out(conductor: Conductor, strike: Strike) -> None:
    """Wait for a strike's moment, strike, and note what came of it."""
    while True:
        driver = conductor.driver
        try:
            if not strike.is_cold:
                conductor.await_open()
        except HungError:
            continue
        break
    conductor.sleep(strike.wait_secs)
    sign = _await_moment(conductor, strike)
    conductor.note(f"{strike.kind} {strike.how}")
    was_open, driver = conductor.is_open, conductor.driver
    outcome = _CARRIED_OUT[strike.kind](conductor, strike, driver, sign)
    moment = f"{strike.jitter_secs * 1000:.0f} ms after {strike.moment}" if sign else "at any moment"
    when = "running" if was_open else "starting"
    conductor.story.strikes.append(f"{strike.kind} {strike.how}, {when}, {moment}: {outcome}")


def _await_moment(conductor: Conductor, strike: Strike) -> Path | None:
    """Wait for it, not for ever; the file that came or grew. None for any moment."""
    pattern = MOMENTS[strike.moment]
    if not pattern:
        return None
    before, deadline = _sizes(conductor.folder, pattern), time.monotonic() + _MOMENT_SECS
    while time.monotonic() < deadline:
        time.sleep(_GLANCE_SECS)
        for file, _ in _sizes(conductor.folder, pattern).items() - before.items():
            time.sleep(strike.jitter_secs)
            return file
    return None


def _sizes(folder: Path, pattern: str) -> dict[Path, int]:
    sizes = {}
    for file in folder.glob(pattern):
        with suppress(FileNotFoundError):
            sizes[file] = file.stat().st_size
    return sizes


def _target(conductor: Conductor, strike: Strike, role: Role, sign: Path | None = None) -> int | None:
    """A process of this role; the one that gave the sign, if one did."""
    deadline = time.monotonic() + _FIND_SECS
    while time.monotonic() < deadline:
        found = [process.pid for process in conductor.processes() if process.role is role]
        at_work = [pid for pid in found if sign is not None and sign.name == str(pid)]
        if found:
            return (at_work or found)[int(strike.which * len(at_work or found))]
        time.sleep(_LOOK_SECS)
    return None


def _kill_one(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    if strike.how == "again":
        return _kill_again(conductor, strike, sign)
    role = Role(strike.how)
    pid = _target(conductor, strike, role, sign)
    return "killed" if pid is not None and send(pid, signal.SIGKILL) else f"no {role} to kill"


def _kill_again(conductor: Conductor, strike: Strike, sign: Path | None) -> str:
    """Also the next two that are seen at work: what a task leaves to its next attempt is struck too."""
    killed = 0
    for _ in range(3):
        pid = _target(conductor, strike, Role.WORKER, sign)
        killed += pid is not None and send(pid, signal.SIGKILL)
        sign = _await_moment(conductor, replace(strike, moment="effect"))
    return f"killed {killed}"


def _kill_driver(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    match strike.how:
        case "group":
            with suppress(ProcessLookupError):
                os.killpg(driver, signal.SIGKILL)
        case "alone":
            send(driver, signal.SIGKILL)
        case "jvm" | "source":
            return _kill_one(conductor, strike, driver, sign)
        case _:
            conductor.kill()
    return "killed"


def _stop(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    pid = _target(conductor, strike, Role(strike.how))
    if pid is None or not send(pid, signal.SIGSTOP):
        return f"no {strike.how} to stop"
    time.sleep(strike.secs)
    send(pid, signal.SIGCONT)
    return f"for {strike.secs:.1f} s"


def _break_pipe(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    assert conductor.listener is not None, "a driver runs"
    conductor.listener.turn_away()
    return "broken"


def _fill_disk(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    conductor.disk.fill()
    try:
        until = time.monotonic() + strike.secs
        while time.monotonic() < until and conductor.is_alive:
            time.sleep(_LOOK_SECS)
    finally:
        survived = conductor.is_alive
        conductor.disk.free()
    return "bore it" if survived else f"ended: {conductor.said()}"


def _damage(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    """Damage a file while nobody runs, start the driver, and undo it if it refused."""
    conductor.kill()
    chance = random.Random(strike.which)
    kinds = {name: files for name, files in _files(conductor.checkpoint).items() if files}
    if not kinds:
        return "no checkpoint yet"
    name = chance.choice(sorted(kinds))
    file = chance.choice(kinds[name][-3:])
    whole, mode = file.read_bytes(), file.stat().st_mode
    match strike.how:
        case "unreadable":
            file.chmod(0)
        case "empty":
            file.write_bytes(b"")
        case "half":
            file.write_bytes(whole[: len(whole) // 2])
        case _:
            file.write_bytes(chance.randbytes(len(whole)))
    _ = conductor.driver
    deadline = time.monotonic() + conductor.settings.patience_secs
    while conductor.is_alive and not conductor.is_open and time.monotonic() < deadline:
        time.sleep(_LOOK_SECS)
    if opened := conductor.is_open:
        time.sleep(_WATCH_SECS)
    outcome = "ran on" if opened else f"refused: {conductor.said()}"
    if strike.how == "unreadable":
        with suppress(FileNotFoundError):  # it may have been replaced, or be needed no more
            file.chmod(mode)
    elif not opened:
        conductor.kill()
        file.write_bytes(whole)
    return f"{name}: {outcome}"


def _files(checkpoint: Path) -> dict[str, list[Path]]:
    """The files of a checkpoint by what they are, the newest last."""

    def of(pattern: str) -> list[Path]:
        return sorted(file for file in checkpoint.glob(pattern) if file.is_file())

    def numbered(folder: str) -> list[Path]:
        return sorted(
            (file for file in of(f"{folder}/*") if file.name.isdigit()), key=lambda file: int(file.name)
        )

    return {
        "acktree.json": of("acktree.json"),
        "commit log": numbered("commits"),
        "inbox": of("inbox/*.data.*"),
        "verdicts": of("verdicts/*"),
        "dead letters": of("dead_letters.sqlite"),
        "offsets": numbered("spark/offsets"),
        "commits": numbered("spark/commits"),
        "metadata": of("spark/metadata"),
        "memory": sorted(of("state/[0-9]*/*"), key=lambda file: file.name),
    }


def _jump(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    conductor.clock.jump(int(strike.how))
    return "jumped"


def _cut(conductor: Conductor, strike: Strike, driver: int, sign: Path | None) -> str:
    return conductor.cut_network(strike.which)


_CARRIED_OUT: Final[Mapping[Kind, Callable[[Conductor, Strike, int, Path | None], str]]] = {
    Kind.WORKER: _kill_one,
    Kind.EXECUTOR: _kill_one,
    Kind.DRIVER: _kill_driver,
    Kind.STOP: _stop,
    Kind.PIPE: _break_pipe,
    Kind.DISK: _fill_disk,
    Kind.FILE: _damage,
    Kind.TORN: _damage,
    Kind.CLOCK: _jump,
    Kind.NETWORK: _cut,
}
