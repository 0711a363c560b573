"""What ``health`` and ``doctor`` have looked at: one check, and its line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from acktree.config import Config
from acktree.errors import ConnectorError
from acktree.tasks.component_checks import checks_of, unchecked
from acktree.topology.model import Topology

_LEAST_FREE: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, what was found, and what mends it.

    Attributes:
        fix: What to do if it is not ok, or is a note. Of any other check it is not shown.
        is_note: Whether it is said with its fix although nothing is wrong.
    """

    name: str
    is_ok: bool
    found: str
    fix: str = ""
    is_note: bool = False


def data_of(check: Check) -> dict[str, Any]:
    """A check for ``--json``. Its fix is empty where nothing is to be done."""
    return asdict(check) | {"fix": _shown_fix(check)}


def line_of(check: Check) -> str:
    """A check for a terminal, with what mends it below."""
    mark = "BAD " if not check.is_ok else "note" if check.is_note else "ok  "
    shown = _shown_fix(check)
    fix = f"\n       fix: {shown}" if shown else ""
    return f"  {mark} {check.name}: {check.found}{fix}"


def _shown_fix(check: Check) -> str:
    return check.fix if check.is_note or not check.is_ok else ""


def component_checks(topology: Topology, config: Config, *, may_be_away: bool) -> Iterator[Check]:
    """What the components of a topology say of what they need, and which of those that need something cannot.

    Args:
        may_be_away: Whether something that does not answer for now is only a note.
    """
    for name, error in checks_of(topology, config):
        if error is None:
            yield Check(name, is_ok=True, found="what it needs is there")
            continue
        is_note = may_be_away and isinstance(error, ConnectorError) and error.can_retry
        found = f"{error.what} ({error.where})"
        yield Check(name, is_ok=is_note, found=found, fix=error.fix, is_note=is_note)
    for name in unchecked(topology):
        fix = "see yourself that what it needs is there, or give it a method check(self, config, context)"
        yield Check("not checked", is_ok=True, found=name, fix=fix, is_note=True)


def free_space(name: str, folder: Path) -> Check:
    """Whether a folder is there and has room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            name, is_ok=False, found=f"{folder}: {error.strerror}", fix="name a folder that is there"
        )
    return Check(name, free >= _LEAST_FREE, f"{free >> 20:,} MB free in {folder}", "make room there")
