"""Dead letters in a database that SQLAlchemy supports: PostgreSQL and others.

Rules of this file
------------------
1. Only SQLAlchemy Core and standard SQL: the guarantee must not depend on features of one database. So
   existing letters are found with a query; the unique constraint catches an insert made in between.
2. No password, statement or parameter is part of an error: those are users' data. The driver's exception is
   not chained either, because it may quote them.
3. A commit is durable: ``synchronous_commit`` is switched on where a session has switched it off.

Tables: ``acktree_dead_letters``, ``acktree_dead_letters_version``. They are created if missing; for a
database user that may not create tables, an administrator can create them.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from acktree.dead_letters.table import (
    COLUMNS,
    VERSION,
    Cause,
    Condition,
    Row,
    Table,
    Which,
    parts_of,
    redriven_as,
)
from acktree.errors import CheckpointError, ConfigError, ConnectorError, installing
from acktree.logs.loggers import logger
from acktree.logs.private_urls import masked_text, masked_url
from acktree.system.poolers import prepare_nothing_in_a_pooler
from acktree.system.private_files import make_private_file, make_private_folder

log = logger("acktree")

_MOST_WORDS: Final = 300
"""The most characters of a driver's error text in an error."""
_TRIES: Final = 5
"""The number of attempts when another process changes the tables at the same time."""

_METADATA: Final = sa.MetaData()
_VERSIONS: Final = sa.Table(
    "acktree_dead_letters_version",
    _METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)


def _text() -> Any:  # noqa: ANN401  # a type of SQLAlchemy's
    return sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


_LETTERS: Final = sa.Table(
    "acktree_dead_letters",
    _METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    # Bounded where a text of any length cannot be part of a constraint.
    sa.Column("topology", sa.Text().with_variant(sa.String(255), "mysql", "mariadb"), nullable=False),
    sa.Column("spout", _text(), nullable=False),
    sa.Column("task_id", sa.Integer, nullable=False),
    sa.Column("stream", _text(), nullable=False),
    sa.Column("root", sa.BigInteger, nullable=False),
    sa.Column("message_id_repr", _text(), nullable=False),
    sa.Column("fields", _text(), nullable=False),  # a JSON list
    sa.Column(  # Arrow IPC, one row
        "payload", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False
    ),
    sa.Column("reason", _text(), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("cause", sa.String(32), nullable=False),
    sa.Column("component", _text()),
    sa.Column("exception_type", _text()),
    sa.Column("traceback", _text()),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("first_emitted_ms", sa.BigInteger, nullable=False),
    sa.Column("dead_ms", sa.BigInteger, nullable=False),
    sa.Column("redriven_ms", sa.BigInteger),
    sa.Column("settled_ms", sa.BigInteger),
    sa.Column("label", sa.String(255)),
    sa.Column("origins", _text()),  # a JSON list
    sa.UniqueConstraint("topology", "root", name="acktree_dead_letters_once"),
    sqlite_autoincrement=True,  # an id is never reused
)
_ALL: Final = [_LETTERS.c[name] for name in COLUMNS]

_SYNCED: Final = sa.text(
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)


class SqlTable(Table):
    """The tables in the database of one URL.

    Args:
        url: An SQLAlchemy URL with a blocking driver: ``postgresql+psycopg://me@host/letters``.
        create: Make what is missing: the tables, and the file of an SQLite database. None: the tables alone.

    Raises:
        ConfigError: The URL is invalid, its driver is not installed, or there are no tables and none is made.
        CheckpointError: The tables belong to a newer acktree.
        ConnectorError: The database refused, or is unreachable; ``can_retry`` when it is unreachable.
    """

    def __init__(self, url: str, *, create: bool | None = True) -> None:
        self.place = masked_url(url)
        self._url, self._creates = url, create is not False
        self._is_closed = False
        try:
            self._refuse_async(sa.make_url(url).get_dialect())
            file = _sqlite_file(sa.make_url(url))
            if file is not None and create:
                with suppress(OSError):  # SQLite then raises a clearer error
                    make_private_folder(file.parent)
                    make_private_file(file)
            elif file is not None and not file.exists():  # SQLite would make it
                raise self._no_letters()
            # One connection is kept, and checked before use: the server may have been restarted.
            with warnings.catch_warnings(record=True) as warned:  # of options that the driver ignores
                self._engine = sa.create_engine(
                    url, hide_parameters=True, pool_pre_ping=True, pool_size=1, max_overflow=16
                )
            for each in warned:
                log.warning(
                    "dead letters at %s: %s", self.place, masked_text(str(each.message), url).splitlines()[0]
                )
        except (
            sa.exc.ArgumentError,
            sa.exc.InvalidRequestError,
            ImportError,
            TypeError,
            ValueError,
        ) as error:
            raise ConfigError(
                f"dead letters cannot be stored at {self.place}: {self._words(error)}",
                "Config(dead_letters_url=...)",
                f"give an SQLAlchemy URL, and install its driver: {installing('postgresql')}"
                " for postgresql+psycopg://me@host/db",
            ) from None
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _overwrite_what_is_deleted)
        elif self._engine.dialect.name == "postgresql":
            sa.event.listen(self._engine, "connect", prepare_nothing_in_a_pooler)
        self._dispose = weakref.finalize(self, self._engine.dispose)
        try:
            with self._connector_errors("open"):
                self._prepare()
        except BaseException:
            self._dispose()
            raise

    def insert(self, rows: Sequence[Row]) -> int:
        with self._connector_errors("store dead letters in"):
            for tries_left in reversed(range(_TRIES)):
                try:
                    with self._begun() as connection:
                        new = _new(connection, rows)
                        if new:
                            connection.execute(sa.insert(_LETTERS), new)
                        return len(new)
                except sa.exc.IntegrityError:
                    if not tries_left:
                        raise
            raise AssertionError("the last try returns or raises")

    def select(self, which: Which, after: int, most: int) -> list[Row]:
        tests = _where(which.conditions, which.ids)
        query = sa.select(*_ALL).where(_LETTERS.c.id > after, *tests).order_by(_LETTERS.c.id).limit(most)
        with self._connector_errors("read"), self._connected() as connection:
            return list(map(tuple, connection.execute(query)))

    def known_roots(self, topology: str, roots: Sequence[int]) -> set[int]:
        with self._connector_errors("read"), self._connected() as connection:
            return _known_roots(connection, topology, roots)

    def messages(self, topology: str, roots: Sequence[int]) -> dict[int, tuple[str, int]]:
        found: dict[int, tuple[str, int]] = {}
        named = _LETTERS.c.root, _LETTERS.c.message_id_repr, _LETTERS.c.first_emitted_ms
        with self._connector_errors("read"), self._connected() as connection:
            for part in parts_of(roots):
                query = sa.select(*named).where(
                    _LETTERS.c.topology == topology, _LETTERS.c.root.in_(part or ())
                )
                for root, message_id, first_ms in connection.execute(query):
                    found[root] = (message_id, first_ms)
        return found

    def count(self, which: Which) -> int:
        query = sa.select(sa.func.count()).select_from(_LETTERS)
        with self._connector_errors("read"), self._connected() as connection:
            counts = (
                connection.execute(query.where(*_where(which.conditions, ids))).scalar_one()
                for ids in parts_of(which.ids)
            )
            return sum(map(int, counts))

    def causes(self, which: Which) -> list[Cause]:
        alike = [_LETTERS.c[name] for name in ("cause", "component", "exception_type", "reason")]
        query = sa.select(*alike, sa.func.count(), sa.func.min(_LETTERS.c.id)).group_by(*alike)
        found: list[Cause] = []
        with self._connector_errors("read"), self._connected() as connection:
            for ids in parts_of(which.ids):
                rows = connection.execute(query.where(*_where(which.conditions, ids)))
                found += [Cause(*tuple(row)) for row in rows]
        return found

    def again(self, ids: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        letter, later = _LETTERS.alias("letter"), _LETTERS.alias("later")
        is_later = sa.and_(later.c.topology == letter.c.topology, later.c.dead_ms >= letter.c.redriven_ms)
        query = sa.select(sa.func.max(later.c.id)).select_from(letter.join(later, is_later))
        with self._connector_errors("read"), self._connected() as connection:
            for number in ids:
                asked = query.where(letter.c.id == number, later.c.message_id_repr == redriven_as(number))
                if (found_id := connection.execute(asked).scalar()) is not None:
                    found[number] = int(found_id)
        return found

    def mark(self, ids: Sequence[int], marks: Mapping[str, int | None]) -> None:
        with self._connector_errors("mark dead letters in"), self._begun() as connection:
            for part in parts_of(ids):
                connection.execute(sa.update(_LETTERS).where(*_where((), part)).values(**marks))

    def delete(self, which: Which) -> int:
        with self._connector_errors("delete dead letters from"), self._begun() as connection:
            gone = (
                connection.execute(sa.delete(_LETTERS).where(*_where(which.conditions, ids))).rowcount
                for ids in parts_of(which.ids)
            )
            return sum(gone)

    def close(self) -> None:
        self._is_closed = True
        self._dispose()

    def _prepare(self) -> None:
        versions: list[int] = []
        for tries_left in reversed(range(_TRIES)):
            try:
                versions = self._make_tables()
                break
            except sa.exc.DatabaseError:
                # Two drivers may start at once. Where creating tables is not transactional, each attempt
                # finds the tables that the other one has created.
                if not tries_left:
                    raise
        if versions != [VERSION]:
            raise CheckpointError(
                f"the dead letters have version {versions}, and this acktree reads version {VERSION}",
                f"dead letters in {self.place}",
                "run the acktree that wrote them; or keep them and name another database",
            )

    def _make_tables(self) -> list[int]:
        with self._begun() as connection:
            if not self._creates and not sa.inspect(connection).has_table(_LETTERS.name):
                raise self._no_letters()
            _METADATA.create_all(connection)  # those that are missing
            versions = list(connection.execute(sa.select(_VERSIONS.c.version)).scalars())
            if not versions:
                connection.execute(sa.insert(_VERSIONS), [{"version": VERSION}])
            return versions or [VERSION]

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        if self._is_closed:  # a disposed engine would connect again
            raise sa.exc.ResourceClosedError("the store is closed")
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _begun(self) -> Iterator[sa.Connection]:
        with self._connected() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(_SYNCED)
            yield connection

    @contextmanager
    def _connector_errors(self, doing: str) -> Iterator[None]:
        """Convert an error of the database to a ConnectorError."""
        try:
            yield
        except sa.exc.SQLAlchemyError as refused:
            raise self._explained(refused, f"cannot {doing} {self.place}") from None

    def _explained(self, refused: sa.exc.SQLAlchemyError, what: str) -> ConnectorError:
        orig = getattr(refused, "orig", None)
        state = str(getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None) or "")
        words = self._words(orig or refused)
        is_gone = False
        if state == "53100" or "No space left" in words:
            fix = "free some space on the server; this call stored nothing and gave no message up"
        elif state.startswith("28") or "authentication" in words:
            fix = "check the user and the password in the URL, or where else the driver reads them"
        elif isinstance(refused, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError):
            is_gone = True
            fix = "check that the database is running and reachable; this call changed nothing"
        else:
            fix = (
                "read the database's message; check that its user may SELECT, INSERT, UPDATE and DELETE in "
                "acktree_dead_letters and acktree_dead_letters_version, and that the store is not closed"
            )
        return ConnectorError(f"{what}: {words}", "the store of dead letters", fix, can_retry=is_gone)

    def _no_letters(self) -> ConfigError:
        return ConfigError(
            f"there are no dead letters in {self.place}", f"DeadLetters({self.place!r})",
            "name the database of a topology that has run with it; create=True makes a store",
        )  # fmt: skip

    def _refuse_async(self, dialect: type[sa.Dialect]) -> None:
        if dialect.is_async:
            raise ConfigError(
                f"dead letters cannot be stored at {self.place}: its driver is an asynchronous one",
                "Config(dead_letters_url=...)",
                "name a driver that blocks, such as postgresql+psycopg:// or mysql+pymysql://",
            )

    def _words(self, error: BaseException) -> str:
        """The first line of a driver's error: the other lines may quote a row, which is users' data."""
        line = next(iter(str(error).splitlines()), "")
        # Masked before it is cut: a part of a secret would not be recognised.
        return masked_text(f"{type(error).__name__}: {line}", self._url)[:_MOST_WORDS]


def _sqlite_file(url: sa.URL) -> Path | None:
    """The file that an SQLite database is in, to be made private before SQLite makes it by the umask.

    None where it is no file, or SQLite makes none.
    """
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    named = url.database
    if named.startswith("file:"):  # SQLite's own URLs, with ?uri=true
        if url.query.get("mode") in {"memory", "ro", "rw"} or named == "file::memory:":
            return None
        named = unquote(re.sub(r"^file:(//[^/]*(?=/))?", "", named).partition("?")[0])
    return Path(named).absolute()


def _overwrite_what_is_deleted(connection: Any, _: object) -> None:  # noqa: ANN401  # any driver's
    connection.execute("PRAGMA secure_delete = ON").close()


def _known_roots(connection: sa.Connection, topology: str, roots: Sequence[int]) -> set[int]:
    known: set[int] = set()
    for part in parts_of(roots):
        query = sa.select(_LETTERS.c.root).where(
            _LETTERS.c.topology == topology, _LETTERS.c.root.in_(part or ())
        )
        known.update(connection.execute(query).scalars())
    return known


def _new(connection: sa.Connection, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows that are not stored yet, each root once: the first row of a root is kept."""
    topology, root = COLUMNS.index("topology"), COLUMNS.index("root")
    first = {(row[topology], row[root]): row for row in reversed(rows)}
    known: set[tuple[str, int]] = set()
    for name in {row[topology] for row in rows}:
        roots = [row[root] for row in rows if row[topology] == name]
        known.update((name, number) for number in _known_roots(connection, name, roots))
    fresh = [row for row in rows if first.get(key := (row[topology], row[root])) is row and key not in known]
    return [{name: part for name, part in zip(COLUMNS, row, strict=True) if name != "id"} for row in fresh]


_TESTS: Final[Mapping[str, Callable[[sa.Column[Any], Any], sa.ColumnElement[bool]]]] = {
    "=": lambda column, value: column == value,
    "<": lambda column, value: column < value,
    ">=": lambda column, value: column >= value,
    "contains": lambda column, value: column.icontains(value, autoescape=True),
    "is named": lambda column, value: sa.literal(".").concat(column).iendswith(f".{value}", autoescape=True),
    "is null": lambda column, _: column.is_(None),
    "is not null": lambda column, _: column.is_not(None),
}


def _where(conditions: Sequence[Condition], ids: Sequence[int] | None) -> list[sa.ColumnElement[bool]]:
    tests = [
        _TESTS[condition.test](_LETTERS.c[condition.column], condition.value) for condition in conditions
    ]
    return tests if ids is None else [_LETTERS.c.id.in_(ids), *tests]
