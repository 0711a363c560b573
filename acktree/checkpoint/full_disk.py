"""A full disk, told as what it is: whoever must make room is told where, and that nothing is lost.

It is met wherever something is written: by spout threads in the inbox, by Spark in its logs and its state, by
the sink in the acker's log, by workers in their marks. What each says is its own; what follows is the same.
Nothing that was not written whole counts, so the topology stops, and goes on from there once there is room.

Not here: dead letters that cannot be written wait (see ``tasks/spouts/task.py``), and large rows that find no
room in Spark's scratch folder travel without it (see ``scratch``).
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Final

from acktree.errors import AcktreeError, CheckpointError

_NUMBERS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WORDS: Final = (
    "No space left on device",  # of the C library: in what Java and RocksDB say, and in Python's
    "Disk quota exceeded",
    f"[Errno {errno.ENOSPC}]",  # of a Python process beside ours, in whatever language
    f"[Errno {errno.EDQUOT}]",
)

_SCARCE_MB: Final = 16
"""With less room than this a failed query is put down to the disk. Where it fails to write a bolt's memory,
Spark tells its worker nothing and closes the connection: an ``EOFError`` is all that arrives."""


def is_of_the_query(error: BaseException) -> bool:
    """Whether PySpark raised it: a failure of the query, whatever the cause."""
    return any(kind.__module__.partition(".")[0] == "pyspark" for kind in type(error).__mro__)


def told(error: BaseException, *folders: Path) -> BaseException:
    """The error, or that a disk is full where that is what it comes to. Ours are left as they are.

    Args:
        folders: Where it was written to, or may have been.
    """
    if isinstance(error, AcktreeError):
        return error
    if _says_so(error):
        what = "no space left on a disk that the topology writes to"
    elif is_of_the_query(error) and any(_free_mb(folder) < _SCARCE_MB for folder in folders):
        what = "the query failed, and a disk that the topology writes to is full or nearly so"
    else:
        return error
    full = CheckpointError(
        f"{what}: {_line_of(error)}",
        "; ".join(f"{folder} ({_free_mb(folder):,.1f} MB free now)" for folder in folders),
        "make room there, and submit again on the same checkpoint: it goes on where it was, nothing is lost",
    )
    full.__cause__ = error
    return full


@contextmanager
def telling(*folders: Path) -> Iterator[None]:
    """Whatever is raised meanwhile is raised as :func:`told` has it."""
    try:
        yield
    except BaseException as error:
        raised = told(error, *folders)
        if raised is error:
            raise
        raise raised from error


def _says_so(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NUMBERS
    # What Spark, or py4j, passes on is text.
    return any(words in str(error) for words in _WORDS)


def _line_of(error: BaseException) -> str:
    """Of a long story the line that says so; else the last before Spark describes its query."""
    said = str(error).partition("=== Streaming Query ===")[0]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if any(words in line for words in _WORDS)), lines[-1])[:300]


def _free_mb(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 1e6 if folder.exists() else nan
