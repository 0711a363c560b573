"""Sends executors the code that they may lack: acktree itself, and modules beside the user's program.

A worker of a local session has the driver's disk. An executor on another machine has only the packages that
are installed there: Spark, numpy, pyarrow and pandas. So all modules that the driver has imported and that
are not installed packages are sent with the application, as one zip among Spark's Python files.

Rules of this file
------------------
1. Code is sent as source under its own names, never pickled by value. A class that is pickled twice must be
   the same class in a worker, or remembered and emitted values would not compare equal.
2. Packages in the driver's ``site-packages`` must be installed on the executors too; only acktree and
   cloudpickle are sent.
3. The zip is named by its content: it is sent once, and a worker cannot mistake an old one for it.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Final

from acktree.logs.loggers import logger
from acktree.system.private_files import write_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger("acktree")

_ALWAYS_SENT: Final = frozenset({"acktree", "cloudpickle"})
_SPARK_PACKAGES: Final = frozenset({"pyspark", "py4j"})
_BY_VALUE: Final = frozenset({"__main__", "__mp_main__"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_FIXED_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The date of all entries of the zip, so that equal sources make equal zips."""

_shipped: set[tuple[str, str]] = set()
"""(application id, name) of each zip that was sent."""


def ship_code(session: SparkSession) -> None:
    """Send this process's modules to the executors of a session; no-op in a local session.

    Call it before the operators are defined: Spark notes for each operator which Python files it needs.
    """
    context = session.sparkContext
    if re.match(r"local(\[|$)", context.master or ""):
        return
    packed = packed_code(sys.modules.copy())  # other threads may import
    name = f"acktree-code-{hashlib.sha256(packed).hexdigest()[:16]}.zip"
    if (context.applicationId, name) in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="acktree-code-"))  # Spark reads it as long as it runs
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_private(folder / name, packed)
    before = list(sys.path)
    context.addPyFile(str(folder / name))
    sys.path[:] = before  # the driver keeps using its own files
    # Spark starts two processes beside the driver. The one that unpickles a stateful operator first gets no
    # Python files; the one that runs the source looks for them in the wrong folder. Both read this path. On
    # executors it has no effect.
    paths = [context.environment.get("PYTHONPATH"), str(folder / name)]
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    _shipped.add((context.applicationId, name))
    log.info("shipped=%s bytes=%d", name, len(packed))


def packed_code(modules: Mapping[str, object]) -> bytes:
    """A zip of the sources of all modules that are not installed packages; equal for equal sources.

    Args:
        modules: The imported modules, by name: ``sys.modules``.
    """
    files: dict[str, Path] = {}
    for name, module in sorted(modules.items()):
        stem = name.replace(".", "/")
        is_packed = f"{stem}.py" in files or f"{stem}/__init__.py" in files  # with its package
        if not is_packed and _is_sent(name, module):
            files |= _sources(name, modules)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as code:
        for folder in sorted(_folders(files)):
            # Python finds a namespace package in a zip only if its folder has an entry.
            code.writestr(zipfile.ZipInfo(f"{folder}/", _FIXED_DATE), b"")
        for name, file in sorted(files.items()):
            code.writestr(zipfile.ZipInfo(name, _FIXED_DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _is_sent(name: str, module: object) -> bool:
    """Whether executors may lack a module, so that its source is sent."""
    file = _file_of(module)
    top = name.partition(".")[0]
    if file is None or top in _SPARK_PACKAGES or name in _BY_VALUE or not file.is_file():
        return False  # built in, Spark's, pickled with the plan, or in a zip that was sent otherwise
    return top in _ALWAYS_SENT or not _is_installed(file)


def _file_of(module: object) -> Path | None:
    """The source of a module, if it has one."""
    if not isinstance(module, ModuleType):
        return None  # sys.modules may hold anything: None, or an object that imports a module when it is used
    file = vars(module).get("__file__")
    return Path(file).absolute() if isinstance(file, str) and file.endswith(".py") else None


def _is_installed(file: Path) -> bool:
    if _INSTALLED.intersection(file.parts):
        return True
    return any(file.is_relative_to(sysconfig.get_path(part)) for part in ("stdlib", "platstdlib"))


def _sources(name: str, modules: Mapping[str, object]) -> dict[str, Path]:
    """The sources to send with a module, by their names in the zip: all of its outermost package.

    Modules of the package that are not imported yet are included, since bolts may import them when they run.
    Of a namespace package only the module itself is sent: its folder may hold anything.
    """
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        package = modules.get(".".join(parts[:depth]))
        init = _file_of(package)
        if init is not None and init.name == "__init__.py":
            folder = PurePosixPath(*parts[:depth])
            return {
                str(folder / file.relative_to(init.parent).as_posix()): file
                for file in init.parent.rglob("*.py")
            }
    file = _file_of(modules[name])
    assert file is not None, "_is_sent() has checked it"
    return {str(PurePosixPath(*parts).with_suffix(".py")): file}


def _folders(names: Iterable[str]) -> Iterator[str]:
    return iter({str(above) for name in names for above in list(PurePosixPath(name).parents)[:-1]})
