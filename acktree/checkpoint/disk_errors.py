"""Explains what a disk refuses: it is full, or a file belongs to another user.

Many writers can meet a full disk: spout threads in the inbox, Spark in its logs and its state, the sink in
the acker's log, workers in their marks. Each raises a different error, with the same consequence. A file that
was not written whole does not count, so the topology stops, and continues from there once there is room.

Two cases are handled elsewhere. Dead letters that cannot be written wait: see ``tasks/spouts/given_up.py``.
Large rows for which Spark's scratch folder has no room are sent through Spark: see
``spark/worker/scratch.py``. ``driver/supervisor.py`` decides to stop.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Final

from acktree.errors import AcktreeError, CheckpointError

_NUMBERS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WORDS: Final = (
    "No space left on device",  # the C library's text, in messages of Java, RocksDB and Python
    "Disk quota exceeded",
    f"[Errno {errno.ENOSPC}]",  # from another Python process, whatever its language
    f"[Errno {errno.EDQUOT}]",
)

_SCARCE_MB: Final = 16
"""With less room than this, a failed query is attributed to the disk. Where Spark fails to write a bolt's
memory, it closes the connection to the worker without a reason: all that arrives is an ``EOFError``."""


def is_of_the_query(error: BaseException) -> bool:
    """Whether PySpark raised it: a failure of the query, whatever the cause."""
    return any(kind.__module__.partition(".")[0] == "pyspark" for kind in type(error).__mro__)


def explained(error: BaseException, *folders: Path, scratch: Path | None = None) -> BaseException:
    """A CheckpointError if a full disk or missing rights caused the error; otherwise the error itself.

    Args:
        folders: The checkpoint's folders, where the failed read or write was, or may have been.
        scratch: A folder in which others write too: it may be full, but its rights are not the topology's.
    """
    if isinstance(error, AcktreeError):
        return error
    if isinstance(error, PermissionError):
        return _without_rights(error, folders) or error
    places = folders if scratch is None else (*folders, scratch)
    if is_full(error):
        what = "no space left on a disk that the topology writes to"
    elif is_of_the_query(error) and any(_free_mb(folder) < _SCARCE_MB for folder in places):
        what = "the query failed, and a disk that the topology writes to is full or nearly so"
    else:
        return error
    full = CheckpointError(
        f"{what}: {_line_of(error)}",
        "; ".join(f"{folder} ({_free_mb(folder):,.1f} MB free now)" for folder in places),
        "make room there, and submit again on the same checkpoint: it goes on where it was, nothing is lost",
    )
    full.__cause__ = error
    return full


@contextmanager
def explaining(*folders: Path, scratch: Path | None = None) -> Iterator[None]:
    """Raise what the body raises as :func:`explained` returns it."""
    try:
        yield
    except BaseException as error:
        raised = explained(error, *folders, scratch=scratch)
        if raised is error:
            raise
        raise raised from error


def _without_rights(error: PermissionError, folders: Iterable[Path]) -> CheckpointError | None:
    """The error for a file in one of the folders; None if it is elsewhere, or not named."""
    if not isinstance(error.filename, str | bytes | os.PathLike):  # a call may name a descriptor
        return None
    file = Path(os.fsdecode(error.filename))
    folder = next((folder for folder in folders if file.is_relative_to(folder)), None)
    if folder is None:
        return None
    refused = CheckpointError(
        f"this user may not read or write a file: {error}",
        str(folder),
        "run it as the user who made it, give its files to this user (chown -R), or name another folder",
    )
    refused.__cause__ = error
    return refused


def is_full(error: BaseException) -> bool:
    """Whether an error names a full disk."""
    if isinstance(error, OSError):
        return error.errno in _NUMBERS
    # Spark and py4j pass errors on as text.
    return any(words in str(error) for words in _WORDS)


def _line_of(error: BaseException) -> str:
    """The line of a long message that names the full disk; else the last before Spark describes its query."""
    said = str(error).partition("=== Streaming Query ===")[0]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return next((line for line in lines if any(words in line for words in _WORDS)), last)[:300]


def _free_mb(folder: Path) -> float:
    try:
        return shutil.disk_usage(folder).free / 1e6
    except OSError:  # it is not there, or what has failed is the disk itself
        return nan
