"""Parquet files: a sink, for ``acktree.connectors.files``.

Rules of this file
------------------
1. A file gets its name when all of it is on the disk. Its tuples are acked after that.
2. In ``set_bolt`` a file's name is made of the ids of its tuples, so a second run of a micro-batch writes the
   same file.
3. As an ``acktree.Sink`` a task numbers its files. The mark and the refusals are in the file's metadata, so
   they get their name with the rows. A name is taken once: of two processes with the same task, the second
   finds that the file is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acktree import Config, ConfigError, ConnectorError, OutputCollector, Sink, TaskContext, Tuple
from acktree.arrow_arrays import array_of, holds, kinds_of, typed_array
from acktree.connectors.batch_sink import (
    BatchSink,
    Outcome,
    otherwise_marked,
    refusals_of,
    rows_of,
    writer_of,
)

__all__ = ["ParquetSink", "as_connector_errors"]

_MARK: Final = b"acktree.mark"
_REFUSED: Final = b"acktree.refused"
"""The keys of a file's metadata."""


class ParquetSink(BatchSink[dict[str, Any]], Sink):
    """Writes tuples into Parquet files of a folder, acked when their file is on the disk.

    At least once in ``set_bolt``; in ``set_sink`` each row once.

    Args:
        path: The folder, which every worker must see as the same; made if it is not there.
        schema: The columns and their types; a tuple whose values do not fit them fails alone. None: the
            fields, with types that fit the values of a file, so that two files may differ; where no type
            fits all, the first tuple's counts.

    Each task writes one file a micro-batch: raise ``batch_interval_secs`` for fewer and larger ones. A file's
    name is made of the ids of its tuples. A micro-batch that runs again has the same ids, and overwrites the
    file with the same content. A message that is tried again, or that its queue delivers again after a crash,
    has new ids, and is in two files. Untracked tuples have no ids: their files get random names. A name that
    begins with a dot is that of an unfinished file.
    """

    page = None

    def __init__(self, path: str | os.PathLike[str], *, schema: pa.Schema | None = None) -> None:
        if "://" in os.fspath(path):
            what, fix = "a URL cannot be written to", "give a folder, such as a mounted one"
            raise ConfigError(what, f"ParquetSink({os.fspath(path).partition('://')[0]}://...)", fix)
        self.path, self.schema = Path(path), schema

    def check(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """See whether this user may write the folder or, where it is not there yet, make it.

        Raises:
            ConfigError: The folder cannot be written from here.
        """
        path = self.path.absolute()
        # Below a folder that may not be entered `Path.exists` raises. `os.path.exists` says no, and the error
        # names that folder.
        there = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110
        try:
            with TemporaryFile(dir=there):  # the rights of root say yes where the file system says no
                return
        except NotADirectoryError:
            what = f"{there} is no folder"
        except OSError as error:
            what = f"no file can be made in {there}: {error.strerror}"
        raise ConfigError(what, f"ParquetSink({str(path)!r})", f"name another folder, or correct {there}")

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        """Begin without tuples; ``flush`` opens the file."""
        super().prepare(config, context, collector)
        # Spark and others read no file whose name begins with a dot or an underscore.
        component = re.sub(r"[^\w.-]", "_", context.component_id)
        self._name = f"part-{component}-{context.task_index}"

    def open(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """Name the files of this task."""
        digest = hashlib.blake2b(writer_of(context).encode(), digest_size=8).hexdigest()
        self._writer, self._last = f"part-{digest}", self.path / f"part-{digest}-{-1:012d}.parquet"

    def last_mark(self) -> bytes | None:
        """The mark in the newest file of this task. Keep that file."""
        newest = self._newest()
        if newest is None:
            return None
        self._last = newest
        return self._metadata_of(newest)[_MARK]

    def write(self, batch: pa.RecordBatch, mark: bytes) -> Mapping[int, str]:
        """Write a file of the rows; its metadata has the mark."""
        newest = self._newest()
        if newest is None or self._metadata_of(newest)[_MARK] != mark:
            rows, refused = rows_of(batch)
            table, unfit = self._fitting(rows, batch.schema.names)
            metadata = {_MARK: mark, _REFUSED: json.dumps(refused | unfit).encode()}
            newest = self.path / f"{self._writer}-{_number_of(self._last) + 1:012d}.parquet"
            self._write(table.replace_schema_metadata(metadata), newest, replaces=False)
        found = self._metadata_of(newest)
        if found[_MARK] != mark:  # another process has taken the name
            raise otherwise_marked(self._where)
        self._last = newest
        return refusals_of(found[_REFUSED])

    def _newest(self) -> Path | None:
        with as_connector_errors(f"the folder {self.path}"):
            return max(self.path.glob(f"{self._writer}-*.parquet"), default=None)

    def _metadata_of(self, path: Path) -> dict[bytes, bytes]:
        try:
            with as_connector_errors(f"the file {path}"):
                return dict(pq.read_schema(path).metadata or {})
        except pa.ArrowException as error:
            fix = "restore the file, or give the topology a new checkpoint and another folder"
            raise ConnectorError(f"it cannot be read: {error!s:.200}", f"the file {path}", fix) from error

    def _fitting(
        self, rows: Mapping[int, dict[str, Any]], fields: Sequence[str]
    ) -> tuple[pa.Table, dict[int, str]]:
        """A table of the rows that fit; why the others do not, by their index."""
        if lacking := self._lacking(fields):
            assert self.schema is not None
            return self.schema.empty_table(), dict.fromkeys(rows, str(lacking))
        names = fields if self.schema is None else self.schema.names
        table, refused = self._table_of(list(rows.values()), names)
        indexes = list(rows)
        return table, {indexes[number]: str(self._refusal(error)) for number, error in refused.items()}

    def entry(self, tup: Tuple) -> dict[str, Any]:
        """A row. Raises ConnectorError where Python cannot represent a value, or its unpickling raises."""
        try:
            return tup.as_dict()
        except Exception as error:
            raise self._refusal(error) from error

    def send(self, tuples: Sequence[Tuple], entries: Sequence[dict[str, Any]]) -> Iterator[Outcome]:
        """Write a file of the rows of each set of fields."""
        by_fields: dict[tuple[str, ...], list[int]] = {}
        for index, tup in enumerate(tuples):
            by_fields.setdefault(tup.fields, []).append(index)
        for fields, indexes in by_fields.items():
            if lacking := self._lacking(fields):
                yield indexes, lacking
                continue
            names = fields if self.schema is None else tuple(self.schema.names)
            table, refused = self._table_of([entries[index] for index in indexes], names)
            for number, error in refused.items():
                yield [indexes[number]], self._refusal(error)
            fitting = [index for number, index in enumerate(indexes) if number not in refused]
            if fitting:
                digest = _digest_of([tuples[index] for index in fitting])
                self._write(table, self.path / f"{self._name}-{digest}.parquet")
                yield fitting, None

    def _lacking(self, fields: Sequence[str]) -> ConnectorError | None:
        """What is wrong where fields of the schema are missing."""
        missing = [repr(name) for name in (self.schema.names if self.schema else ()) if name not in fields]
        if not missing:
            return None
        what = f"the tuples have no field {', '.join(missing)}, which the schema names"
        return ConnectorError(what, self._where, "emit it, or leave it out of the schema")

    def _write(self, table: pa.Table, path: Path, *, replaces: bool = True) -> None:
        """Write a file. Raises ConnectorError if it cannot be written."""
        try:
            with as_connector_errors(f"the folder {self.path}"):
                _write_file(table, path, replaces=replaces)
        except pa.ArrowException as error:
            fix = "give the sink a schema of types that Parquet has"
            raise ConnectorError(f"Parquet cannot hold a column: {error!s:.200}", self._where, fix) from error

    def _table_of(
        self, rows: Sequence[dict[str, Any]], names: Sequence[str]
    ) -> tuple[pa.Table, dict[int, Exception]]:
        """A table of the rows that fit; the others by their number, and why they do not fit."""
        with suppress(*_UNFIT):
            return _as_table(rows, names, self.schema), {}
        schema = self.schema or pa.schema([(name, _first_type(rows, name)) for name in names])
        refused: dict[int, Exception] = {}
        for number, row in enumerate(rows):
            try:
                _as_table([row], names, schema)
            except _UNFIT as error:
                refused[number] = error if self.schema else _reason(row, schema) or error
        fitting = [row for number, row in enumerate(rows) if number not in refused]
        return _as_table(fitting, names, schema), refused

    def _refusal(self, error: Exception) -> ConnectorError:
        fix = "correct the value, or give the sink a schema that it fits"
        return ConnectorError(f"the values do not fit: {error!s:.200}", self._where, fix)

    @property
    def _where(self) -> str:
        return f"ParquetSink, {self.path}"


_UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises over a value that does not fit a type."""


def _as_table(rows: Sequence[dict[str, Any]], names: Sequence[str], schema: pa.Schema | None) -> pa.Table:
    values = [[row[name] for row in rows] for name in names]
    if schema is None:
        return pa.table({name: _inferred(column) for name, column in zip(names, values, strict=True)})
    columns = [_as_column(column, schema.field(name)) for name, column in zip(names, values, strict=True)]
    return pa.table(columns, schema=schema)


def _inferred(values: Sequence[object]) -> pa.Array | pa.ChunkedArray:
    """A column of the type that Arrow infers. Raises one of _UNFIT, also where Parquet has no such type."""
    try:
        column = array_of(values)
        _refuse_unwritable(column.type)
        if pa.types.is_timestamp(column.type):
            pc.min_max(column).as_py()  # raises where one is outside of Python's years in UTC
    except _UNFIT:
        raise
    except Exception as error:
        raise _unreadable(error) from error
    if pa.types.is_list(column.type) and not {set, frozenset}.isdisjoint(kinds_of(values)):
        raise TypeError("a set would become a list in any order: emit sorted(value)")
    return column


@lru_cache
def _refuse_unwritable(kind: pa.DataType) -> None:
    """Raise ValueError where Parquet has no such type, as that of a dict without keys."""
    try:
        pq.write_table(pa.table({"value": pa.array([], kind)}), pa.BufferOutputStream())
    except pa.ArrowException as error:
        raise ValueError(f"Parquet cannot hold a value of the type {kind}: {error!s:.100}") from error


def _reason(row: Mapping[str, object], schema: pa.Schema) -> Exception | None:
    """Why a row does not fit the types that other rows have. What Arrow says of it may name a null."""
    for field in schema:
        value = [row[field.name]]
        try:
            kind = _inferred(value).type
        except _UNFIT as error:
            return ValueError(f"{field.name!r}: {error!s:.150}")
        with suppress(*_UNFIT):
            _as_column(value, field)
            continue
        return ValueError(f"{field.name!r} is of the type {kind}, and the first one of {field.type}")
    return None


def _as_column(values: Sequence[object], field: pa.Field) -> pa.Array:
    """A column of a declared type. Raises one of _UNFIT, also where a value would become another one."""
    try:
        fitting = [_as_given_type(value, field.type) for value in values]
        column = typed_array(fitting, field.type)
        is_kept = holds(column, fitting)
    except _UNFIT:
        raise
    except Exception as error:
        raise _unreadable(error) from error
    if column.null_count and not field.nullable:
        raise ValueError(f"{field.name!r} is null, and the schema allows no null")
    if not is_kept:
        raise ValueError(f"a value of {field.name!r} would become another one as {field.type}")
    return column


def _as_given_type(value: object, kind: pa.DataType) -> object:
    """A day, and midnight of it, are the same in a column of days and in one of times."""
    if pa.types.is_date(kind) and isinstance(value, datetime) and value.time() == time.min:
        return value.date()
    if pa.types.is_timestamp(kind) and type(value) is date:
        return datetime.combine(value, time.min)
    return value


def _unreadable(error: Exception) -> ValueError:
    """What a method of a value raised."""
    return ValueError(f"a value cannot be read: {type(error).__name__}: {error!s:.100}")


def _first_type(rows: Sequence[dict[str, Any]], name: str) -> pa.DataType:
    """The type of a column's first value that Arrow has a type for."""
    for row in rows:
        with suppress(*_UNFIT):
            found = _inferred([row[name]]).type
            if not pa.types.is_null(found):
                return found
    return pa.null()


def _digest_of(tuples: Sequence[Tuple]) -> str:
    """A name made of the ids of tuples, in any order; a random one where a tuple has no id."""
    ids = [tuple(sorted(tup.anchors.items())) for tup in tuples]
    text = repr(sorted(ids)) if all(ids) else uuid4().hex
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _number_of(path: Path) -> int:
    """The number of a file of a task."""
    return int(path.stem.removeprefix("part-").partition("-")[2])


def _write_file(table: pa.Table, path: Path, *, replaces: bool) -> None:
    """Write a file and sync it, then give it its name. A file of that name is replaced, or stays."""
    _make_folder(path.parent)
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with beside.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            beside.replace(path)
        else:
            with suppress(FileExistsError):
                path.hardlink_to(beside)
            beside.unlink()
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, and sync each parent."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def as_connector_errors(where: str, *, may_appear: bool = False) -> Iterator[None]:
    """Raise the system's errors about files as a ConnectorError.

    Args:
        where: The file or folder.
        may_appear: Whether a missing file may appear later, so that a new attempt may succeed.
    """
    stops = (PermissionError, IsADirectoryError, NotADirectoryError)
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        can_retry = not isinstance(error, stops if may_appear else (*stops, FileNotFoundError))
        fix = "see that it is there, and that the user of this program has the right to it"
        fix += "; it is tried again until then" if can_retry else "; then submit again"
        name = str(getattr(error, "filename", None) or "")
        where = f"{where} ({name})" if name and name not in where else where
        words = getattr(error, "strerror", None) or str(error)
        raise ConnectorError(f"it cannot be used: {words:.200}", where, fix, can_retry=can_retry) from error
