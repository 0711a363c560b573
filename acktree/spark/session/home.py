"""A SPARK_HOME without ``pyspark.zip``, so that Python workers import the installed PySpark.

Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` first on the path of every Python process that it starts,
for workers that have no PySpark. It holds no compiled modules: each process compiles PySpark's sources
again, which takes 0.5 s of CPU instead of 0.1. Before the first ack there are seven such processes, and one
more for each stateful level. Without the file they import the package that this process has imported.

Rules of this file
------------------
1. Where it is not certain that workers find the same PySpark, Spark keeps its own home.
2. The folder holds links only. It outlives the process: the JVM opens jars through it until its end.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from acktree.logs.loggers import logger
from acktree.system.private_files import xdg_folder

log = logger("acktree.spark")

_LINKED: Final = ("bin", "conf", "jars", "sbin")
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


@contextmanager
def lent_home() -> Iterator[Path | None]:
    """While this is open, a JVM that is started gets the lean home, if there can be one; yields it."""
    home = None
    if "SPARK_HOME" not in os.environ and os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
        import pyspark  # noqa: PLC0415  # only submit() needs it

        with suppress(RuntimeError):  # a user without a home
            home = lean_home(Path(pyspark.__file__).parent, cache_folder())
    if home is None:
        yield None
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield home
    finally:
        del os.environ["SPARK_HOME"]


def lean_home(installed: Path, cache: Path) -> Path | None:
    """The folder of links, made if it is missing; None if workers need the zip, or it cannot be made.

    Args:
        installed: The folder of the package ``pyspark``, which is Spark's home too.
        cache: Where the folder is made.
    """
    if not _INSTALLED.intersection(installed.parts) or not (installed / "jars").is_dir():
        return None
    links = {name: installed / name for name in _LINKED if (installed / name).is_dir()}
    home = cache / f"spark-home-{hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:16]}"
    try:
        if not home.is_dir():
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix="new-", dir=cache))
            for name, target in links.items():
                (new / name).symlink_to(target, target_is_directory=True)
            _rename(new, home)
        # Links of another user would start programs of his.
        is_mine = home.stat().st_uid == os.getuid() and not home.stat().st_mode & 0o022
        is_whole = all((home / name).resolve() == target.resolve() for name, target in links.items())
        return home if is_mine and is_whole else None
    except OSError as error:
        log.debug("no SPARK_HOME of links in %s: %s", cache, error)
        return None


def _rename(new: Path, home: Path) -> None:
    """Put the folder into its place, unless another process was faster."""
    try:
        new.rename(home)
    except OSError:
        for link in new.iterdir():
            link.unlink()
        new.rmdir()


def cache_folder() -> Path:
    """Where acktree keeps what it can make again.

    Raises:
        RuntimeError: The user has no home.
    """
    return (xdg_folder("XDG_CACHE_HOME") or Path.home() / ".cache") / "acktree"
