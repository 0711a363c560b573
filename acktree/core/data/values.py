"""The value codec: converts rows of Python values to an Arrow batch, and back.

Rules of this file
------------------
1. Without a schema, decoding returns equal values of the same types. A column is native only when all its
   values have exactly one type that Arrow returns unchanged; any other column holds pickled values.
2. With a schema, a value fits when decoding returns an equal value. Tuples and arrays are accepted as lists,
   structs may omit fields, floats may be rounded to the declared width. Arrow alone would silently truncate
   1.5 to 1.
3. None is null in every column, native or pickled.
4. An Arrow batch without columns does not store its number of rows; a hidden column of nulls does.

Encoding or decoding a value may run user code (``__eq__``, ``__reduce__``, a time zone), and pyarrow raises
many types of exceptions. Every such call is guarded, and its exceptions become MisuseErrors.

A column may be native in one batch of a stream and pickled in the next.

What is emitted is what was there at the emit: a value that can change is pickled at once, as :class:`Frozen`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from acktree.arrow_arrays import FAITHFUL, IMMUTABLE, array_of, holds, kinds_of, typed_array
from acktree.core import durable
from acktree.core.data.reading import Column, PartlyReadable, columns_of, decoded
from acktree.core.programs import may_be_named_in
from acktree.errors import CheckpointError, MisuseError
from acktree.system.stopped_by import pass_on
from acktree.texts import error_text, short_repr

_MARK: Final = b"acktree"
_PICKLE: Final = b"pickle"
_HIDDEN: Final = b"rows"
_WRITES: Final = pa.ipc.IpcWriteOptions()  # the default; else pyarrow asks the environment for each batch
_NO_FIELDS: Final = pa.schema([pa.field("__rows", pa.null(), metadata={_MARK: _HIDDEN})])
ANYWHERE: Final = frozenset({*FAITHFUL, type(None)})
"""Types whose values can always be encoded without a schema."""
LOOKED_AT: Final = 8 << 10
"""The longest text or bytes value that a quick look accepts; the size of a longer one must be counted."""
_SURELY_FITS: Final = 1 << 30
"""A tuple of fewer bytes is surely taken by Arrow."""
_LOOKS: Final[Mapping[int, Callable[[object], bool]]] = {
    # A text that is not ASCII may contain a lone surrogate.
    pa.string().id: lambda value: type(value) is str and len(value) <= LOOKED_AT and value.isascii(),
    pa.int64().id: lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    pa.float64().id: lambda value: type(value) is float,
    pa.bool_().id: lambda value: type(value) is bool,
    pa.binary().id: lambda value: type(value) is bytes and len(value) <= LOOKED_AT,
}


class Frozen:
    """A value as it was when it was emitted: its pickle, or why it has none."""

    __slots__ = ("_error", "_pickle")

    def __init__(self, payload: bytes, error: MisuseError | None = None) -> None:
        self._pickle, self._error = payload, error

    def to_bytes(self) -> bytes:
        """The pickle. MisuseError if the value could not be pickled when it was emitted."""
        if self._error is not None:
            raise self._error
        return self._pickle


UNCHANGING: Final = IMMUTABLE | {Frozen}
"""The types whose values cannot change; exactly these, no subclasses."""


def frozen(fields: Sequence[str], values: Sequence[object]) -> list[object]:
    """The values of a tuple without a schema; each that can change as it is now.

    Such a value is pickled here instead of in :func:`encode_rows`: about 2 us more for a small list.
    """
    kept = [*values]
    for at, value in enumerate(kept):
        if type(value) not in UNCHANGING:
            kept[at] = _frozen(fields[at], value)
    return kept


def _frozen(name: str, value: object) -> object:
    if _is_unchanging(value):
        return value
    try:
        plain = pickle.dumps(value, 5)
        return Frozen(_pickled_alone(name, value) if durable.must_be_rewritten(plain) else plain)
    except Exception:  # noqa: BLE001  # its own code
        return _frozen_by_value(name, value)


def _frozen_by_value(name: str, value: object) -> Frozen:
    try:
        return Frozen(_pickled_alone(name, value))
    except MisuseError as error:
        return Frozen(b"", error)


def copied(value: object) -> object:
    """A copy of a value for a declared type, if it can change; itself if it fits no type anyway."""
    if _is_unchanging(value):
        return value
    if isinstance(value, memoryview):
        return value.tobytes()
    with suppress(Exception):  # its own code
        return pickle.loads(pickle.dumps([*value] if isinstance(value, ValuesView) else value, 5))
    with suppress(Exception):  # a defaultdict with a lambda does not pickle, and Arrow takes it
        return _rebuilt(value)
    return value


def _rebuilt(value: Any) -> object:  # noqa: ANN401  # a user's value
    if isinstance(value, dict):
        return {copied(key): copied(item) for key, item in value.items()}
    if isinstance(value, list | np.ndarray):
        return [*map(copied, value)]
    return tuple(map(copied, value)) if isinstance(value, tuple) else value


def _is_unchanging(value: object) -> bool:
    kind = type(value)
    if kind is tuple or kind is frozenset:
        with suppress(RecursionError):
            return all(map(_is_unchanging, value))  # type: ignore[call-overload]  # mypy does not narrow
        return False
    return kind in UNCHANGING


def encode_rows(
    fields: Sequence[str], rows: Sequence[Sequence[object]], schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """Put rows of values into a batch with one column per field.

    Args:
        fields: Names of the stream's fields, in order.
        rows: The values of each tuple, one for each field. Neither kept nor changed.
        schema: The stream's declared types, named as ``fields``; None where only names were declared.

    Raises:
        MisuseError: The number of values of a row is not the number of fields, a value does not fit its
            declared type, or a value cannot be pickled. Names the field and shows the value.

    A native value costs about 0.1 us, a pickled one about 1 us. A value whose class is defined in the user's
    main program costs about 100 us, because the class is pickled with it.

    >>> batch = encode_rows(["word", "count"], [["a", 1], ["b", (2, 3)]])
    >>> [str(kind) for kind in batch.schema.types], decode_rows(batch)
    (['string', 'binary'], [('a', 1), ('b', (2, 3))])
    """
    if not set(map(len, rows)) <= {len(fields)}:
        count = next(len(row) for row in rows if len(row) != len(fields))
        raise MisuseError(
            f"a tuple has {count} values for {len(fields)} fields",
            f"a tuple with the fields {list(fields)}",
            "emit one value for each field that `outputs` declares, in that order",
        )
    # Not zip(*rows): it makes one iterator per row, and takes ten times as long.
    columns = [list(map(itemgetter(i), rows)) for i in range(len(fields))]
    return encode_columns(fields, columns, len(rows), schema)


def encode_columns(
    fields: Sequence[str], columns: Sequence[Sequence[object]], count: int, schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """:func:`encode_rows` for columns of values: one for each field, each of ``count`` values."""
    if not fields:
        return pa.RecordBatch.from_arrays([pa.nulls(count)], schema=_NO_FIELDS)
    if schema is not None:
        typed = [typed_column(field, column) for field, column in zip(schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(typed, schema=schema)
    encoded = [_untyped_column(name, column) for name, column in zip(fields, columns, strict=True)]
    declared = pa.schema([field for field, _ in encoded])
    return pa.RecordBatch.from_arrays([array for _, array in encoded], schema=declared)


def quick_look(schema: pa.Schema | None) -> Callable[[Sequence[object]], bool]:
    """Make a fast check of one tuple's values: True means that they fit and are small; False means unknown.

    Where the check returns False, only :func:`encode_rows` decides; that takes a hundred times as long.

    Args:
        schema: The stream's declared types; None where only names were declared.

    >>> look = quick_look(pa.schema([("word", pa.string())]))
    >>> look(["a"]), look([b"a"])
    (True, False)
    """
    looks = [] if schema is None else [_LOOKS.get(kind.id, _never_fits) for kind in schema.types]

    def fits_anywhere(values: Sequence[object]) -> bool:
        for value in values:  # with few values, all() of a generator takes three times as long
            kind = type(value)
            if kind is str or kind is bytes:
                if len(value) > LOOKED_AT:  # type: ignore[arg-type]  # mypy does not narrow by ``kind``
                    return False
            elif kind not in ANYWHERE:
                return False
        return True

    def fits_types(values: Sequence[object]) -> bool:
        for look, value in zip(looks, values, strict=True):  # noqa: SIM110
            if not look(value):
                return False
        return True

    return fits_anywhere if schema is None else fits_types


def size_of(fields: Sequence[str], values: Sequence[object]) -> int:
    """About how many bytes a tuple takes in a batch without a schema; a text not in ASCII counts fourfold.

    It takes a tenth of the time of :func:`encode_rows`, which raises the same.

    >>> size_of(["word", "headers"], ["a", {"key": b"0123456789"}]) < 64
    True
    """
    size = 0
    for name, value in zip(fields, values, strict=True):
        if type(value) is str:
            size += len(value) if value.isascii() else 4 * len(value)
        elif type(value) is bytes:
            size += len(value)
        elif type(value) in ANYWHERE:
            size += 8
        else:
            [payload] = _pickled(name, [value])
            size += len(payload or b"")
    return size if size < _SURELY_FITS else encode_rows(fields, [values]).nbytes


def _never_fits(value: object) -> bool:  # noqa: ARG001
    return False


def unpickled_columns(batch: pa.RecordBatch) -> list[Column]:
    """The columns of the fields, the pickled ones decoded; native columns stay Arrow arrays.

    Raises:
        MisuseError: A pickled value cannot be unpickled in this process.
    """
    return [
        unpickled_column(field, column) if _mark_of(field) == _PICKLE else column
        for field, column in zip(batch.schema, columns_of(batch), strict=True)
        if _mark_of(field) != _HIDDEN
    ]


def unpickled_column(field: pa.Field, column: pa.Array) -> list[Any]:
    """The values of a pickled column.

    Raises:
        MisuseError: A value cannot be unpickled in this process.
    """
    try:
        payloads = column.to_pylist()
        if not may_be_named_in(_bytes_of(column)):
            with suppress(pickle.UnpicklingError):  # no plain pickle: classes of ours are tags in it
                return [None if payload is None else pickle.loads(payload) for payload in payloads]
        return [None if payload is None else durable.loads(payload) for payload in payloads]
    except CheckpointError as cause:
        raise MisuseError(cause.what, f"field {field.name!r}", cause.fix) from cause
    except BaseException as cause:
        pass_on(cause)
        raise MisuseError(
            f"a value cannot be unpickled in this process: {error_text(cause)}",
            f"field {field.name!r}",
            "install the module of its class on the workers too, and make its instances picklable",
        ) from cause


def _bytes_of(column: pa.Array) -> bytes:
    """All payloads of a pickled column, one after the other."""
    _, offsets, content = column.buffers()
    if not len(column) or content is None:
        return b""
    ends = memoryview(offsets).cast("i")
    return memoryview(content)[ends[column.offset] : ends[column.offset + len(column)]].tobytes()


def decode_columns(batch: pa.RecordBatch) -> list[Sequence[object]]:
    """The values of each field, as they were emitted.

    Raises:
        MisuseError: A value cannot be unpickled in this process, or cannot be represented in Python.
    """
    columns = zip(unpickled_columns(batch), batch.schema.names, strict=False)  # a hidden column has no values
    return [[*values] if isinstance(values, PartlyReadable) else values
            for values in (decoded(column, f"field {name!r}") for column, name in columns)]  # fmt: skip


def decode_rows(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    """The values of each tuple: the inverse of :func:`encode_rows`. Raises as :func:`decode_columns`."""
    columns = decode_columns(batch)
    return list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows


def rows_to_show(batch: pa.RecordBatch) -> Iterator[Sequence[object]]:
    """:func:`decode_rows` for display: a row that cannot be decoded is replaced by the reason."""
    try:
        yield from decode_rows(batch)
    except MisuseError as error:
        if batch.num_rows == 1:
            yield (f"<{error.what}>",)
            return
        middle = batch.num_rows // 2
        yield from rows_to_show(batch.slice(0, middle))
        yield from rows_to_show(batch.slice(middle))


def native_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as an ``ArrowBolt`` receives it: pickled columns get the type that Arrow infers.

    Types may widen here (a tuple becomes a list, 1 beside 2.5 becomes 1.0). The hidden column of a batch
    without fields stays, because it holds the number of rows.

    Raises:
        MisuseError: Arrow finds no common type for the values of a field.
    """
    for at, field in enumerate(batch.schema):
        if _mark_of(field) == _PICKLE:
            batch = batch.set_column(at, *_inferred(field, batch.column(at)))
    return batch


def pickled_fields(batch: pa.RecordBatch) -> frozenset[str]:
    """The fields whose values are pickled; all other fields can be read without running user code."""
    return frozenset(field.name for field in batch.schema if _mark_of(field) == _PICKLE)


def batch_to_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch with its schema as an Arrow IPC stream; :func:`batch_from_bytes` reads it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITES) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def batch_from_bytes(payload: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """Read what :func:`batch_to_bytes` wrote. The columns are views of the payload, nothing is copied."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()


def _mark_of(field: pa.Field) -> bytes | None:
    mark: bytes | None = (field.metadata or {}).get(_MARK)
    return mark


# ---- without a schema -------------------------------------------------------------------------------------


def _untyped_column(name: str, column: Sequence[object]) -> tuple[pa.Field, pa.Array]:
    kinds = kinds_of(column)
    native = FAITHFUL.get(*kinds) if len(kinds) == 1 else None if kinds else pa.null()
    if native is not None:
        with suppress(OverflowError, UnicodeEncodeError):  # an int beyond 64 bits, a lone surrogate
            return pa.field(name, native), _whole(name, column, native)
    payloads = _whole(name, _pickled(name, column), pa.binary())
    return pa.field(name, pa.binary(), metadata={_MARK: _PICKLE}), payloads


def _whole(name: str, column: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Make one Arrow array of a column; an array holds at most 2 GiB."""
    try:
        array = pa.array(column, kind)
    except pa.ArrowCapacityError:  # a single value is too large
        array = None
    if isinstance(array, pa.Array):
        return array
    raise MisuseError(
        f"a column of more than 2 GiB (values: {len(column)}), the limit of an Arrow column",
        f"field {name!r}",
        "write large values to a file or a store, and emit their location",
    )


def _pickled(name: str, column: Sequence[object]) -> list[bytes | None]:
    """The values as ``durable.dumps_by_value`` writes them. Nearly all are plain pickles."""
    if Frozen in {*map(type, column)}:
        return [value.to_bytes() if type(value) is Frozen else _pickled(name, [value])[0] for value in column]
    with suppress(Exception):  # a user's __reduce__ raises what it likes: cloudpickle is tried
        dumps = pickle.dumps
        plain = [None if value is None else dumps(value, protocol=5) for value in column]
        if not durable.must_be_rewritten(b"".join(filter(None, plain))):
            return plain
    return [None if value is None else _pickled_alone(name, value) for value in column]


def _pickled_alone(name: str, value: object) -> bytes:
    try:
        return durable.dumps_by_value(value)
    except Exception as cause:
        raise MisuseError(
            f"{short_repr(value)} cannot be pickled, so it cannot be sent: {error_text(cause)}",
            f"field {name!r}",
            "emit what it was made from (a path, an id, plain values) and make it again in the bolt",
        ) from cause


def _inferred(field: pa.Field, column: pa.Array) -> tuple[pa.Field, pa.Array]:
    values = unpickled_column(field, column)
    try:
        array = array_of(values)
    except Exception as cause:
        raise MisuseError(
            f"Arrow finds no common type for the values of field {field.name!r}: {error_text(cause)}",
            "the input of an ArrowBolt",
            "emit values of one type, declare it (outputs = pa.schema([...])), or read it with a Bolt",
        ) from cause
    if not isinstance(array, pa.Array):  # in chunks
        raise MisuseError(
            f"field {field.name!r} holds more than 2 GiB, the limit of an Arrow column",
            "the input of an ArrowBolt",
            "write large values to a file or a store, and emit their location",
        )
    return pa.field(field.name, array.type), array


# ---- with a schema ----------------------------------------------------------------------------------------


def typed_column(field: pa.Field, column: Sequence[object]) -> pa.Array:
    """Encode values as a column of a declared type. MisuseError when one does not fit (rule 2)."""
    reason: Exception | None = None
    try:
        array = typed_array(column, field.type)
        if _is_kept(field, column, array):
            return array
    except Exception as error:  # noqa: BLE001  # pyarrow's, or the user's own code
        reason = error
    culprit = next((value for value in column if not _fits_alone(field, value)), column)
    value = f"{short_repr(culprit)} ({type(culprit).__name__})"
    declared = f"{field.type}{'' if field.nullable else ' not null'}"
    raise MisuseError(
        f"{value} does not fit field {field.name!r}, declared as {declared}",
        f"field {field.name!r}",
        "emit a value that this type can represent, or declare another type, or only the name",
    ) from reason


def _fits_alone(field: pa.Field, value: object) -> bool:
    try:
        return _is_kept(field, (value,), typed_array([value], field.type))
    except Exception:  # noqa: BLE001  # as above
        return False


def _is_kept(field: pa.Field, column: Sequence[object], array: pa.Array) -> bool:
    """Whether the array holds every value of the column, and nulls only where the field is nullable."""
    if not isinstance(array, pa.Array) or array.type != field.type:
        return False  # Arrow makes chunks of more than 2 GiB, and a wider dictionary for more than 128 texts
    if array.null_count and not field.nullable:
        return False
    return holds(array, column)
