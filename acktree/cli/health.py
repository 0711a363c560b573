"""``acktree health``, ``doctor`` and ``version``: whether a topology, or this machine, is as it should be."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from acktree.cli.answers import DONE, FAILED, Answer, Commands, door_of, new_command
from acktree.errors import AcktreeError, ConfigError
from acktree.ui.client import (
    BADLY_ENDED,
    DoorClient,
    DoorError,
    Found,
    NobodyRunsError,
    find,
    found_topologies,
    status_of,
)
from acktree.ui.observer import own_version
from acktree.ui.places import forget_gone, runtime_folder
from acktree.ui.snapshot import Snapshot

__all__ = ["add_to"]

_LEAST_FREE: Final = 256 << 20
_OLD_SECS: Final = 10.0
_LATE: Final = 2.0
"""A message is stuck when it is open for longer than this number of message timeouts."""
_JAVA: Final = 17
_PACKAGES: Final = ("numpy", "pyarrow", "cloudpickle")
_OF_SPARK: Final = ("pyspark", "pandas", "protobuf")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, what was found, and what mends it."""

    name: str
    is_ok: bool
    found: str
    fix: str = ""


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_health = new_command(commands, "health", "whether a topology works as it should", _health, names=False)
    to_health.add_argument(
        "topology",
        nargs="?",
        help="its name, id or checkpoint; default: all that run, and those that an error has ended",
    )
    to_doctor = new_command(
        commands, "doctor", "whether this machine can run topologies", _doctor, names=False
    )
    to_doctor.add_argument("checkpoint", nargs="?", help="a checkpoint to look at too")
    new_command(commands, "version", "the versions of acktree and of what it runs on", _version, names=False)


def _health(given: Namespace) -> Answer:
    is_named = given.topology is not None
    checks: dict[str, list[Check]] = {}
    if is_named:
        doors = [door_of(find(given.topology), given)]
    else:
        forget_gone(lambda entry: DoorClient(entry).is_answering())
        known = list(found_topologies())
        doors = [door_of(found, given) for found in known if found.is_running]
        for found in known:
            ended = _bad_end(found)
            if found.entry is not None and ended is not None:
                checks[found.entry.id] = [ended]
    for door in doors:
        try:
            checks[door.entry.id] = list(_checks_of(door))
        except (NobodyRunsError, TimeoutError) as error:
            if is_named:
                raise
            said = error.what if isinstance(error, NobodyRunsError) else str(error)
            checks[door.entry.id] = [Check("driver", is_ok=False, found=said, fix="see the driver's log")]
    data = {name: [asdict(check) for check in each] for name, each in checks.items()}
    lines = [line for name, each in checks.items() for line in (name, *map(_line, each))]
    is_ok = all(check.is_ok for each in checks.values() for check in each)
    return Answer(
        {"healthy": is_ok, "topologies": data},
        "\n".join(lines) if lines else "no topology is running",
        DONE if is_ok else FAILED,
    )


def _bad_end(found: Found) -> Check | None:
    """The check of a topology that an error, or a killed driver, has ended; None for any other."""
    last = found.last_snapshot()
    status = status_of(found.entry, last, is_running=found.is_running)
    if found.is_running or status not in BADLY_ENDED:
        return None
    why = last.stopped_by if last is not None and status == "FAILED" else None
    said = status if why is None else f"{status}: {why}"
    return Check("status", is_ok=False, found=said, fix=f"submit it again on {found.checkpoint}")


def _checks_of(door: DoorClient) -> Iterator[Check]:
    try:
        snapshot = door.snapshot()
    except DoorError as error:
        yield Check("snapshot", is_ok=False, found=error.what, fix="see the driver's log")
        return
    age_secs = max(0.0, time.time() - snapshot.taken_ms / 1000)
    yield Check("driver", age_secs < _OLD_SECS, f"snapshot is {age_secs:.1f} s old", "see the driver's log")
    yield Check("status", snapshot.status != "STARTING", snapshot.status, "wait until it is warm")
    yield from map(partial(_connection, snapshot), snapshot.spouts)
    yield from _stuck(snapshot)
    inbox = snapshot.inbox
    is_roomy = inbox.bytes < inbox.limit_bytes and inbox.messages < inbox.limit_messages
    yield Check(
        "inbox", is_roomy, f"{inbox.messages:,} messages, {inbox.bytes:,} of {inbox.limit_bytes:,} bytes",
        "bolts are slower than spouts: see `acktree top`",
    )  # fmt: skip
    if "://" not in snapshot.checkpoint:
        yield _free_space("disk", Path(snapshot.checkpoint))


def _connection(snapshot: Snapshot, spout: str) -> Check:
    """Whether what a spout calls, such as its queue, answers."""
    name, outage = f"calls of spout {spout}", snapshot.outages.get(spout)
    if outage is None:
        return Check(name, is_ok=True, found="none waits to be made again")
    secs = max(0.0, (snapshot.taken_ms - outage.since_ms) / 1000)
    since = f"{datetime.fromtimestamp(outage.since_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    tried = f"{outage.tries:,} time{'s' * (outage.tries != 1)}"
    found = f"tried {tried} since {since}, for {secs:.1f} s: {outage.reason}"
    return Check(name, is_ok=False, found=found, fix=outage.fix or "see the driver's log")


def _stuck(snapshot: Snapshot) -> Iterator[Check]:
    config = snapshot.config
    if not config.get("topology.enable.message.timeouts", True):
        return
    limit_secs = _LATE * float(config["topology.message.timeout.secs"])
    for spout in snapshot.spouts:
        oldest = snapshot.stats[spout].oldest_open_secs or 0.0
        has_retry = snapshot.graph["components"][spout]["retry"] is not None
        yield Check(
            f"spout {spout}", has_retry or oldest <= limit_secs, f"oldest open message {oldest:.1f} s",
            "see `acktree open`: messages are older than two timeouts",
        )  # fmt: skip


def _doctor(given: Namespace) -> Answer:
    checks = [*_machine(), *(_checkpoint(given.checkpoint) if given.checkpoint else ())]
    is_ok = all(check.is_ok for check in checks)
    return Answer(
        {"ok": is_ok, "checks": [asdict(check) for check in checks]},
        "\n".join(map(_line, checks)),
        DONE if is_ok else FAILED,
    )


def _machine() -> Iterator[Check]:
    yield Check(
        "python", sys.version_info >= (3, 11), sys.version.split()[0], "acktree needs Python 3.11 or newer"
    )
    for package in _PACKAGES:
        yield _package(package, f"pip install {package}")
    for package in _OF_SPARK:
        yield _package(package, "pip install 'acktree[spark]'")
    yield _java()
    yield _free_space("temporary folder", Path(tempfile.gettempdir()))
    yield _runtime()
    for found in found_topologies():
        entry = found.entry
        if entry is not None and not found.is_running and Path(entry.socket).exists():
            yield Check(
                "stale socket", is_ok=True, found=f"{entry.id}: {entry.socket}; its driver died",
                fix=f"submit it again, or delete it: rm {entry.socket}",
            )  # fmt: skip


def _package(name: str, fix: str) -> Check:
    try:
        return Check(name, is_ok=True, found=version(name))
    except PackageNotFoundError:
        return Check(name, is_ok=False, found="not installed", fix=fix)


def _java() -> Check:
    fix = (
        "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), and put `java` on the "
        "path or set JAVA_HOME"
    )
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        said = subprocess.run(  # noqa: S603
            [program, "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Check("java", is_ok=False, found=f"{program} does not run: {error}", fix=fix)
    number = re.search(r'version "(\d+)', said)
    first = (said.splitlines() or [""])[0]
    return Check("java", number is not None and int(number[1]) >= _JAVA, first, fix)


def _free_space(name: str, folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            name, is_ok=False, found=f"{folder}: {error.strerror}", fix="name a folder that is there"
        )
    return Check(name, free >= _LEAST_FREE, f"{free >> 20:,} MB free in {folder}", "make room there")


def _runtime() -> Check:
    try:
        return Check("sockets", is_ok=True, found=str(runtime_folder()))
    except ConfigError as error:
        return Check("sockets", is_ok=False, found=f"{error.what}: {error.where}", fix=error.fix)


def _checkpoint(named: str) -> Iterator[Check]:
    try:
        found = find(named)
    except AcktreeError as error:
        yield Check("checkpoint", is_ok=False, found=error.what, fix=error.fix)
        return
    if found.folder is None:
        yield Check("checkpoint", is_ok=True, found=f"{found.checkpoint} is at a URL, which is not looked at")
        return
    try:
        rights = found.folder.stat()
    except OSError as error:
        yield Check(
            "checkpoint", is_ok=False, found=f"{found.folder}: {error.strerror}", fix="see where it is now"
        )
        return
    mode, is_mine = stat.S_IMODE(rights.st_mode), rights.st_uid == os.getuid()
    yield Check(
        "rights", is_mine and not mode & 0o077, f"{found.folder} has {mode:04o}",
        f"only its owner may look there: chmod 700 {found.folder}",
    )  # fmt: skip
    yield _free_space("disk", found.folder)
    who = f"process {found.entry.pid} on {found.entry.host}" if found.entry else "a driver"
    held = (
        f"runs: {who}" if found.is_running else "nobody runs it, or its driver has no socket (control=False)"
    )
    yield Check("lock", is_ok=True, found=held)


def _version(_: Namespace) -> Answer:
    found = {"acktree": own_version(), "python": sys.version.split()[0]}
    for package in (*_PACKAGES, *_OF_SPARK):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return Answer(found, "\n".join(f"{name} {text or 'not installed'}" for name, text in found.items()))


def _line(check: Check) -> str:
    mark = "ok  " if check.is_ok else "BAD "
    fix = f"\n       fix: {check.fix}" if check.fix and not check.is_ok else ""
    return f"  {mark} {check.name}: {check.found}{fix}"
