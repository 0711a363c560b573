"""``acktree doctor`` and ``version``: whether this machine, and a checkpoint, are as they should be."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement as Line
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from acktree.checkpoint.holding import is_held
from acktree.cli.answers import DONE, FAILED, Answer, Commands, new_command
from acktree.cli.checks import Check, component_checks, data_of, free_space, line_of
from acktree.cli.targets import in_module
from acktree.errors import AcktreeError, ConfigError, installing
from acktree.ui.client import Found, find, found_topologies
from acktree.ui.observer import own_version
from acktree.ui.places import runtime_folder

_JAVA: Final = 17
_PACKAGES: Final = ("numpy", "pyarrow", "cloudpickle")
_OF_SPARK: Final = ("pyspark", "pandas", "protobuf")


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_doctor = new_command(
        commands, "doctor", "whether this machine can run topologies", _doctor, names=False, waits=False
    )
    to_doctor.add_argument(
        "checkpoint", nargs="?", metavar="CHECKPOINT|MODULE:NAME",
        help="a checkpoint to look at too; or a topology, whose components say whether it can work",
    )  # fmt: skip
    new_command(
        commands,
        "version",
        "the versions of acktree and of what it runs on",
        _version,
        names=False,
        waits=False,
    )


def _doctor(options: Namespace) -> Answer:
    checks = [*_machine(), *(_named(options.checkpoint) if options.checkpoint else ())]
    is_ok = all(check.is_ok for check in checks)
    return Answer(
        {"ok": is_ok, "checks": [data_of(check) for check in checks]},
        "\n".join(map(line_of, checks)),
        DONE if is_ok else FAILED,
    )


def _named(target: str) -> Iterator[Check]:
    """Look at a checkpoint or, if it names a module, at what the components of a topology need."""
    is_url = "://" in target
    if not is_url and (":" in target or target.endswith(".py")):
        try:
            config, topology = in_module(target)
            yield from component_checks(topology, config, may_be_away=False)
        except AcktreeError as error:
            yield Check("topology", is_ok=False, found=error.what, fix=error.fix)
    else:
        yield from _checkpoint(target)


def _machine() -> Iterator[Check]:
    yield _python()
    yield from _packages()
    yield _java()
    yield free_space("temporary folder", Path(tempfile.gettempdir()))
    sockets = _runtime()
    yield sockets
    if sockets.is_ok:  # else nothing is read there
        yield from map(_stale, filter(_has_stale_socket, found_topologies()))


def _python() -> Check:
    wanted, found = python_range(), sys.version.split()[0]
    fix = f"install a Python {wanted}, and acktree with it"
    return Check("python", fits(found, wanted), _compared(found, wanted), fix)


def _packages() -> Iterator[Check]:
    """The packages that every topology needs, then the installed ones of other extras that do not fit."""
    known = {each.name: each for each in requirements()}
    for name in _PACKAGES:
        yield _package(known.get(name, _Requirement(name, "", "")))
    for name in _OF_SPARK:
        yield _package(known.get(name, _Requirement(name, "", "spark")))
    for name, wanted in known.items():
        if name not in _PACKAGES and name not in _OF_SPARK:
            yield from _of_extra(wanted)


def _package(wanted: _Requirement) -> Check:
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        fix = installing(wanted.extra) if wanted.extra else wanted.fix
        return Check(wanted.name, is_ok=False, found="not installed", fix=fix)
    return Check(wanted.name, fits(found, wanted.range), _compared(found, wanted.range), wanted.fix)


def _of_extra(wanted: _Requirement) -> Iterator[Check]:
    """A note on an installed package of an extra that may not be used here, if its version does not fit."""
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return
    if not fits(found, wanted.range):
        said = f"{_compared(found, wanted.range)} for acktree[{wanted.extra}]"
        yield Check(wanted.name, is_ok=True, found=said, fix=wanted.fix, is_note=True)


def _compared(found: str, wanted: str) -> str:
    return found if fits(found, wanted) else f"{found}, and acktree needs {wanted}"


def _has_stale_socket(target: Found) -> bool:
    return target.entry is not None and not target.is_running and Path(target.entry.socket).exists()


def _stale(target: Found) -> Check:
    """A note: the next driver takes its place, and until then it harms nothing."""
    entry = target.entry
    assert entry is not None, "it has a stale socket"
    if target.door_is_closing:
        said = f"{entry.id}: {entry.socket}; process {entry.pid} stops, or does not answer"
        return Check("stale socket", is_ok=True, found=said, fix="wait, or see its log", is_note=True)
    return Check(
        "stale socket", is_ok=True, found=f"{entry.id}: {entry.socket}; its driver died",
        fix=f"submit it again on {entry.checkpoint}, or delete it: rm {entry.socket}", is_note=True,
    )  # fmt: skip


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


def _runtime() -> Check:
    try:
        return Check("sockets", is_ok=True, found=str(runtime_folder()))
    except ConfigError as error:
        return Check("sockets", is_ok=False, found=f"{error.what}: {error.where}", fix=error.fix)


def _checkpoint(named: str) -> Iterator[Check]:
    try:
        target = find(named)
    except AcktreeError as error:
        yield Check("checkpoint", is_ok=False, found=error.what, fix=error.fix)
        return
    if target.folder is None:
        yield Check(
            "checkpoint", is_ok=True, found=f"{target.checkpoint} is at a URL, which is not looked at"
        )
        return
    try:
        rights = target.folder.stat()
    except OSError as error:
        yield Check(
            "checkpoint", is_ok=False, found=f"{target.folder}: {error.strerror}", fix="see where it is now"
        )
        return
    mode, is_mine = stat.S_IMODE(rights.st_mode), rights.st_uid == os.getuid()
    yield Check(
        "rights", is_mine and not mode & 0o077, f"{target.folder} has {mode:04o}",
        f"only its owner may look there: chmod 700 {target.folder}",
    )  # fmt: skip
    yield free_space("disk", target.folder)
    yield _lock(target, target.folder)


def _lock(target: Found, folder: Path) -> Check:
    """Who has the checkpoint. A driver without a socket is a note: no command reaches it."""
    entry = target.entry
    if target.is_running and entry is not None:
        return Check("lock", is_ok=True, found=f"runs: process {entry.pid} on {entry.host}")
    if not is_held(folder):
        if target.is_elsewhere and entry is not None:
            said = f"its last driver ran on {entry.host}, whose locks are not seen from here"
            return Check("lock", is_ok=True, found=said, fix="run this command there", is_note=True)
        return Check("lock", is_ok=True, found="nobody on this machine runs it")
    if target.door_is_closing and entry is not None:
        said = f"held by process {entry.pid}, which stops or does not answer"
        return Check("lock", is_ok=True, found=said, fix="wait, or see its log", is_note=True)
    return Check(
        "lock", is_ok=True, found="held by a driver without a socket (control=False): no command reaches it",
        fix=f"stop it by its own program or a signal; `fuser {folder / 'lock'}` names the process",
        is_note=True,
    )  # fmt: skip


def _version(_: Namespace) -> Answer:
    found = {"acktree": own_version(), "python": sys.version.split()[0]}
    for package in (*_PACKAGES, *_OF_SPARK):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return Answer(found, "\n".join(f"{name} {text or 'not installed'}" for name, text in found.items()))


@dataclass(frozen=True, slots=True)
class _Requirement:
    """A package that acktree needs.

    Attributes:
        range: As pip takes it; empty for any version.
        extra: The extra that needs it; empty where acktree itself does.
    """

    name: str
    range: str
    extra: str

    @property
    def fix(self) -> str:
        """The command that installs a version that fits."""
        return f"pip install '{self.name}{self.range}'"


def requirements() -> Iterator[_Requirement]:
    """All packages that acktree and its extras need; none where acktree was not installed."""
    try:
        lines = [Line(line) for line in requires("acktree") or ()]
        extras = metadata("acktree").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return
    for line in lines:
        for extra in ["", *extras]:
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                bounds = sorted(map(str, line.specifier), reverse=True)  # the least first
                yield _Requirement(line.name, ",".join(bounds), extra)
                break


def python_range() -> str:
    """The versions of Python that acktree needs; empty where it was not installed."""
    try:
        return str(metadata("acktree").json.get("requires_python", ""))
    except PackageNotFoundError:
        return ""


def fits(version: str, wanted: str) -> bool:
    """Whether a version is in a range. What cannot be read fits: pip has judged it.

    >>> fits("4.2.1", ">=4.2,<4.4"), fits("4.4.0", ">=4.2,<4.4"), fits("4.2.0.dev3", ">=4.2")
    (True, False, False)
    """
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True
