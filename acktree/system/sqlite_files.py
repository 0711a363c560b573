"""Stores that are SQLite files of a checkpoint: connections, transactions and errors."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar, Final

from acktree.errors import CheckpointError
from acktree.system.private_files import make_private_file

IN_MEMORY: Final = ":memory:"
"""The place of a database that is no file."""
_BUSY_SECS: Final = 5
_WRITE_VERSION: Final = 18
"""The byte of a file that says by which version of SQLite's format it is written (https://sqlite.org/fileformat.html)."""
_LAST_WRITE_VERSION: Final = 2

_PASSING: Final = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT,
})  # fmt: skip
_DAMAGE: Final = frozenset({
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_ERROR,  # there is no such table or column
})  # fmt: skip


def is_passing(error: sqlite3.Error) -> bool:
    """Whether SQLite says that another program holds a file, that the disk is full, or the like."""
    return _code_of(error) in _PASSING


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that a file is damaged, no database, or one with other tables.

    >>> is_damage(sqlite3.DatabaseError("Could not decode to UTF-8 column 'reason'"))
    True
    """
    return _code_of(error) in {*_DAMAGE, None}


def _code_of(error: sqlite3.Error) -> int | None:
    """What SQLite says, without details; None for an error of Python's, which reads texts."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that may write: committed at the end of the block, rolled back if it raises.

    Args:
        connection: Opened with ``isolation_level=None``: Python begins no transaction by itself.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def is_written(place: str) -> bool:
    """Whether there is a file of changes: a writer has the database open, or ended without closing it."""
    return Path(f"{place}-wal").exists()


def connected(place: str, *, read_only: bool) -> sqlite3.Connection:
    """Open a database that one process writes and any may read. Any thread may use it, one at a time.

    Args:
        place: The file, made if it is not there and readable by its owner alone; or :data:`IN_MEMORY`.
        read_only: Open an existing file for reading. Where nobody writes it, it is read as it is: a reader
            would leave files beside it.

    Raises:
        OSError, sqlite3.Error: It cannot be opened.
    """
    named = place
    if read_only:
        unchanging = "" if is_written(place) else "&immutable=1"
        named = f"{Path(place).absolute().as_uri()}?mode=ro{unchanging}"
    elif place != IN_MEMORY:
        make_private_file(Path(place))
    return sqlite3.connect(
        named, timeout=_BUSY_SECS, isolation_level=None, check_same_thread=False, uri=read_only
    )


def prepare_writer(connection: sqlite3.Connection) -> None:
    """Let readers not wait for the writer, and let deleted pages be given back.

    Raises:
        sqlite3.DatabaseError: The file is damaged, or cannot be written.
    """
    _refuse_other_format(connection)
    for setting in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {setting}")


def _refuse_other_format(connection: sqlite3.Connection) -> None:
    """Raise an error that means damage where SQLite would say "readonly database", which means the rights."""
    (_, _, place) = connection.execute("PRAGMA database_list").fetchone()
    if not place:  # it is in memory
        return
    with Path(place).open("rb") as file:
        header = file.read(_WRITE_VERSION + 1)
    if len(header) > _WRITE_VERSION and header[_WRITE_VERSION] > _LAST_WRITE_VERSION:
        raise sqlite3.DatabaseError(f"its format is {header[_WRITE_VERSION]}, and the last one is 2")


@contextmanager
def explained(what: str, place: str, damages: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise CheckpointError for an error of SQLite, unless the reason may pass.

    Args:
        what: What is stored there; the topology can go on without it.
        damages: Errors of what is stored that also mean damage.
    """
    errors: tuple[type[Exception], ...] = (sqlite3.DatabaseError, *damages)
    try:
        yield
    except sqlite3.ProgrammingError:  # it was closed
        raise
    except errors as error:
        if isinstance(error, sqlite3.Error) and is_passing(error):
            raise
        fix = "delete the file; messages are not in it"
        if isinstance(error, sqlite3.Error) and not is_damage(error):
            fix = "check the disk, and that the file and its folder can be read and written"
        raise CheckpointError(f"the {what} cannot be read or written: {error}", place, fix) from error


class SqliteStore(ABC):
    """A database that one process writes and any may read. Any thread may call any method.

    Attributes:
        place: The file; or :data:`IN_MEMORY`.

    Args:
        path: The file, made if it is not there and readable by its owner alone; or :data:`IN_MEMORY`.
        read_only: Open an existing file for reading.

    Raises:
        CheckpointError: The file is damaged or another one, a newer acktree wrote it, or it cannot be read.
            Damage that is not at its beginning raises this when it is read or written.
        OSError, sqlite3.Error: It cannot be opened, for a reason that may pass.
    """

    what: ClassVar[str]
    """What is stored there, for errors."""
    damages: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of what is stored that also mean damage."""

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        self.place = str(path)
        self._lock = threading.Lock()
        self._open(read_only=read_only)

    def _open(self, *, read_only: bool) -> None:
        with self._explained():
            self._connection = connected(self.place, read_only=read_only)
        self._finalizer = weakref.finalize(self, self._connection.close)
        try:
            with self._explained():
                self._prepare(read_only=read_only)
        except BaseException:
            self._finalizer()
            raise

    @abstractmethod
    def _prepare(self, *, read_only: bool) -> None:
        """Check the version, and make what is missing."""

    def _explained(self) -> AbstractContextManager[None]:
        """Raise CheckpointError, unless the reason may pass."""
        return explained(self.what, self.place, self.damages)

    def close(self) -> None:
        """Close the file. Nothing can be read afterwards."""
        with self._lock:
            self._finalizer()

    @property
    def used_bytes(self) -> int:
        """The size of what is stored, without free pages."""
        with self._lock, self._explained():
            return self._used_bytes()

    def _used_bytes(self) -> int:
        pages = self._value("PRAGMA page_count") - self._value("PRAGMA freelist_count")
        return pages * self._value("PRAGMA page_size")

    def _value(self, query: str) -> int:
        (value,) = self._connection.execute(query).fetchone()
        return int(value)
