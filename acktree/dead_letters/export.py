"""Writes dead letters to a file for other programs: Parquet or JSON lines.

Rules of this file
------------------
1. Nothing is unpickled. A pickled value is in the payload, which is exported whole.
2. The file gets its name when it is complete, and never replaces an existing file.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, time
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from acktree.dead_letters.letter import DeadLetter, Pickled
from acktree.dead_letters.table import COLUMNS
from acktree.errors import MisuseError
from acktree.system.private_files import make_private_file

_GROUP: Final = 1000
"""The number of letters in memory at once."""

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "id": pa.int64(),
    "task_id": pa.int32(),
    "root": pa.int64(),
    "fields": pa.list_(pa.string()),
    "payload": pa.binary(),
    "attempts": pa.int32(),
    "first_emitted_ms": pa.timestamp("ms", "UTC"),
    "dead_ms": pa.timestamp("ms", "UTC"),
    "redriven_ms": pa.timestamp("ms", "UTC"),
    "settled_ms": pa.timestamp("ms", "UTC"),
}
"""All other columns are text."""

_SCHEMA: Final = pa.schema(
    [(name.removesuffix("_ms"), _TYPES.get(name, pa.string())) for name in COLUMNS]
    + [("values", pa.string())]  # a JSON object: text, since letters of different streams share this column
)


def export_to(path: Path, letters: Iterable[DeadLetter]) -> int:
    """Write letters to a new file; returns how many."""
    write = _FORMATS.get(path.suffix)
    if write is None:
        raise MisuseError(
            f"dead letters cannot be exported as {path.suffix or 'a file without a suffix'}",
            f"export({str(path)!r})",
            f"give the file a name that ends with {' or '.join(_FORMATS)}",
        )
    if path.exists():  # checked again at the end; this check refuses before the work is done
        raise _taken(path)
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_private_file(half)
        with half.open("wb") as file:
            count = write(file, iter(letters))
            file.flush()
            os.fsync(file.fileno())
        os.link(half, path)  # unlike a rename, it fails if the file exists
    except FileExistsError:
        raise _taken(path) from None
    except OSError as refused:
        raise MisuseError(
            f"dead letters cannot be exported to {path}: {refused}",
            f"export({str(path)!r})",
            "check that its folder exists, is writable and has free space; no file was written",
        ) from refused
    finally:
        with suppress(OSError):
            half.unlink()
    return count


def _taken(path: Path) -> MisuseError:
    return MisuseError(
        f"the file {path} exists already",
        f"export({str(path)!r})",
        "name another file, or move that one away",
    )


def _write_parquet(file: BinaryIO, letters: Iterator[DeadLetter]) -> int:
    count = 0
    with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
        while group := list(islice(letters, _GROUP)):
            columns = {name: [_cell(letter, name) for letter in group] for name in _SCHEMA.names}
            writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=_SCHEMA))
            count += len(group)
    return count


def _cell(letter: DeadLetter, name: str) -> object:
    if name == "values":
        return json.dumps(plain_value(letter.plain_values))
    if name == "origins":
        return json.dumps(letter.plain_origins) if letter.origins else None
    part: object = getattr(letter, name if name in COLUMNS else f"{name}_ms")
    return part


def _write_jsonl(file: BinaryIO, letters: Iterator[DeadLetter]) -> int:
    count = 0
    for letter in letters:
        parts = {name: getattr(letter, name) for name in COLUMNS}
        parts["origins"] = letter.plain_origins
        parts["payload"] = base64.b64encode(letter.payload).decode()
        parts["values"] = plain_value(letter.plain_values)
        parts["texts"] = texts_of(letter, most=None)
        file.write(json.dumps(parts).encode() + b"\n")
        count += 1
    return count


_FORMATS: Final[Mapping[str, Callable[[BinaryIO, Iterator[DeadLetter]], int]]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
}


_MOST_JSON: Final = 65_536
_DEEPEST: Final = 100
"""A larger text is not indented."""


def texts_of(letter: DeadLetter, most: int | None) -> dict[str, str]:
    """The values of a letter that are bytes of UTF-8, as texts: indented if they are JSON. Unpickles nothing.

    Args:
        most: Show at most this number of characters of each, its beginning. None: all.
    """
    texts = {}
    for name, value in letter.plain_values.items():
        if isinstance(value, bytes):
            with suppress(UnicodeDecodeError):
                texts[name] = shortened(_indented(value.decode()), most)
    return texts


def shortened(text: str, most: int | None) -> str:
    """The beginning of a text, and how much follows it.

    >>> shortened("abcdef", 4), shortened("abcd", 4)
    ('abcd... [2 more characters]', 'abcd')
    """
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}... [{len(text) - most:,} more characters]"


def _indented(text: str) -> str:
    """JSON with a line for each member, and each number, text and name as it was written.

    >>> print(_indented('{"a": 1.10, "a": []}'))
    {
      "a": 1.10,
      "a": []
    }
    """
    if not text.lstrip().startswith(("{", "[")) or len(text) > _MOST_JSON:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    words, parts, depth = _WORD.findall(text), list[str](), 0
    for word, after in zip(words, [*words[1:], ""], strict=True):
        depth += word in ("{", "[")
        is_empty = word + after in ("{}", "[]")
        depth -= after in ("}", "]")
        if depth > _DEEPEST:
            return text
        parts.append(word + " " * (word == ":"))
        if not is_empty and (word in ("{", "[", ",") or after in ("}", "]")):
            parts.append("\n" + "  " * depth)
    return "".join(parts)


_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_BYTES: Final = "base64"
_PICKLED: Final = "pickled_bytes"
_MARKS: Final = ({_BYTES}, {_PICKLED})


def plain_value(value: object) -> Any:  # noqa: ANN401  # what JSON has
    """A value as JSON: bytes and pickled values as objects, types that JSON does not have as text."""
    match value:
        case None | bool() | int() | str():
            plain: Any = value
        case float():
            plain = value if isfinite(value) else str(value)
        case bytes():
            plain = {_BYTES: base64.b64encode(value).decode()}
        case Pickled():
            plain = {_PICKLED: value.size_bytes}
        case Mapping() if (
            value.keys() in _MARKS
        ):  # as a mapping of Arrow's is shown: it is not what they mark
            plain = [[key, plain_value(item)] for key, item in value.items()]
        case Mapping():
            plain = {str(key): plain_value(item) for key, item in value.items()}
        case list() | tuple():
            plain = [plain_value(item) for item in value]
        case date() | time():  # a datetime is a date
            plain = value.isoformat()
        case _:
            plain = str(value)
    return plain
