"""Which values a column of a database returns as they were written. Needs ``acktree[sql]``.

Rules of this file
------------------
1. A column is judged by its declared type, as SQLAlchemy reads it from the database, and by the dialect. If
   nothing is known of a type, all values pass, and the database decides.
2. A value is compared as Python compares: 1 equals True and 1.0, and -0.0 equals 0. A day and midnight of it
   are equal, as are a list and a tuple, a UUID and its text, a day or time and its text in ISO 8601, and a
   number and a Decimal with the same digits. A float may be rounded to a column of single precision.
3. Values are judged by their exact type. One that does not fit is made plain, with all that is in it, and
   judged again: a subclass, such as an enumeration's, or a value of numpy's.

Source: the pages on data types of SQLite and PostgreSQL, and the types of SQLAlchemy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite, isnan
from typing import Any, Final, Literal
from uuid import UUID

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

__all__ = ["Change", "Takes", "changes", "takes_of"]

Change = tuple[str, str]
"""What would become of a value, and how to write it instead."""
Check = Callable[[Any], Change | None]
"""Returns how a value would change; None: it is returned as it is."""
_Checks = Mapping[type, Check | None]
Takes = _Checks | None
"""The checks of a column, by type of the value; None for a type that needs none. None: all values pass."""

_WHOLE_FLOATS: Final = 2**53
_WHOLE_SINGLES: Final = 2**24
_WIDEST: Final = 2**63
_FLOAT_DIGITS: Final = 15
_MOST_PLACES: Final = 16_383
"""Digits behind the point of PostgreSQL's ``numeric``."""
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
"""A text that SQLite takes for a number."""

_ISO_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.]\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)
_DAY_LETTERS: Final = 10

_ZONE: Final = (
    "its zone would be lost",
    "emit value.astimezone(UTC).replace(tzinfo=None), or value.isoformat() into a column of text",
)
_NO_ZONE: Final = (
    "without a zone it would be taken for a time in the zone of the database's session",
    "emit it with its zone, such as value.replace(tzinfo=UTC)",
)
_TIME_OF_DAY: Final = ("its time of day would be lost", "emit value.date(), or declare the column as a time")
_FRACTION: Final = ("its fraction of a second would be rounded", "round it, or give the column more digits")
_YEAR: Final = ("in UTC it is not in the years 1 to 9999", "emit value.isoformat() into a column of text")
_DIGITS: Final = ("digits of it would be rounded away", "round it, or emit str(value) into a column of text")
_NAN: Final = ("NaN would become NULL", "emit None, or str(value) into a column of text")
_NOT_IN_JSON: Final = ("JSON has no NaN and no infinity", "emit None, or a text, in its place")
_KEYS: Final = ("JSON has texts as keys only", "emit a dict with texts as keys")
_JSON_TYPES: Final = ("JSON has no value of its type", "emit texts, numbers, booleans, lists and dicts")
_NUMERIC_TEXT: Final = ("this text would become a number", "emit the number, or declare the column as TEXT")
_BLANKS: Final = ("blanks at its end would be lost", "declare the column as text")
_PADDED: Final = ("blanks would be added at its end", "emit value.ljust(...), or declare the column as text")
_LONG: Final = ("it is longer than the column", "shorten it, or declare the column as text")
_NO_UUID: Final = ("it would be written in another form", "emit a uuid.UUID, or str() of one")
_EMPTY: Final = ("an array of empty arrays would become an empty one", "emit [], or use a column of JSON")
_NEITHER: Final = ("it is neither 0 nor 1", "emit a boolean")


def changes(rows: Sequence[dict[str, Any]], name: str, takes: Takes) -> Iterator[tuple[int, Change]]:
    """How values of a column would change, by the number of the row. Values are made plain in ``rows``."""
    if takes is None:
        return
    values = [row[name] for row in rows]
    checks = {takes.get(kind, _unfit) for kind in set(map(type, values))} - {None}
    if not checks or (checks == {_no_nan} and not isnan(sum(filter(None, values)))):
        return
    for number, value in enumerate(values):
        check = takes.get(type(value), _unfit)
        change = None if check is None else _checked(value, check, takes)
        if change is None:
            continue
        for plain in filter(lambda plain: type(plain) in takes, _plain_values(value)):
            rows[number][name] = plain
            check = takes[type(plain)]
            change = None if check is None else _checked(plain, check, takes)
            if change is None:
                break
        if change is not None:
            yield number, (f"the database would not return {name!r} as it is: {change[0]}", change[1])


def _checked(value: object, check: Check, takes: _Checks) -> Change | None:
    """What a check says. A value that raises when it is looked at does not fit."""
    try:
        change = check(value)
    except Exception as error:  # noqa: BLE001  # such as an overflow, or what methods of a value raise
        change = f"it cannot be read: {type(error).__name__}", "correct the value"
    if change is not _UNFIT:
        return change
    known = ", ".join(kind.__name__ for kind in takes if kind is not type(None))
    return (
        f"the column holds no {type(value).__name__}",
        f"emit one of {known}; or str(value) into a column of text",
    )


_UNFIT: Final = ("", "")


def _unfit(_: object) -> Change | None:
    return _UNFIT


def _plain_values(value: Any) -> Iterator[Any]:  # noqa: ANN401
    """Equal values of Python's own types: the same one, if there is none; then those of rule 2."""
    try:
        plain = _plain(value)
    except Exception:  # noqa: BLE001  # what methods of a value raise
        plain = value
    yield plain
    if isinstance(value, float):
        yield Decimal(repr(plain))
    elif isinstance(value, str) and _ISO_TIME.fullmatch(value):
        with suppress(ValueError):
            yield date.fromisoformat(value) if len(value) == _DAY_LETTERS else datetime.fromisoformat(value)


def _plain(value: Any) -> Any:  # noqa: ANN401
    """An equal value of Python's own types, also of what is in it; the same value if there is none."""
    if isinstance(value, dict):
        return {_plain(key): _plain(child) for key, child in dict.items(value)}
    if isinstance(value, list):
        return [*map(_plain, list.__iter__(value))]
    if isinstance(value, tuple):
        return tuple(map(_plain, tuple.__iter__(value)))
    if isinstance(value, np.ndarray):
        return [*map(_plain, value)]
    plain = value.item() if isinstance(value, np.generic) else _as_base(value)
    return plain if plain == value or (plain != plain and value != value) else value  # noqa: PLR0124


def _as_base(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, datetime):
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    if isinstance(value, timedelta):
        return timedelta(value.days, value.seconds, value.microseconds)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bool):
        return value
    bases = (int, float, bytes, Decimal)
    return next((base(value) for base in bases if isinstance(value, base)), value)  # type: ignore[arg-type]


def takes_of(kind: Any, dialect: str) -> Takes:  # noqa: ANN401  # any type of SQLAlchemy
    """What a column of a type takes, in one of the dialects that are known here."""
    if isinstance(kind, postgresql.DOMAIN):
        kind = kind.data_type
    takes: _Checks | None = None
    if dialect == "sqlite":
        takes = _of_sqlite(kind)
    elif dialect in ("postgresql", "mysql", "mariadb"):
        takes = _of_servers(kind, dialect)
    return takes and {**takes, type(None): None}


def _of_sqlite(kind: Any) -> _Checks | None:  # noqa: ANN401
    if isinstance(kind, sa.Integer):
        return {int: None, bool: None, float: _no_nan, bytes: None, str: _no_number}
    if isinstance(kind, sa.Numeric | sa.Float):  # SQLAlchemy makes floats of all
        return {int: _exact, bool: None, float: _no_nan, Decimal: _exact_decimal}
    if isinstance(kind, sa.types.NullType):
        return {int: None, bool: None, float: _no_nan, bytes: None, str: None}
    if isinstance(kind, sa.String):
        return {str: None, bytes: None}
    if isinstance(kind, sa.JSON):
        return _of_json(_sqlite_json)
    return _of_all(kind)


def _of_servers(kind: Any, dialect: str) -> _Checks | None:  # noqa: ANN401, PLR0911
    if isinstance(kind, sa.Integer):
        return {int: None, bool: None, float: _scale(0), Decimal: _scale(0)}
    if isinstance(kind, sa.Float):
        is_single = isinstance(kind, sa.REAL | sa.FLOAT)
        no_nan = None if dialect == "postgresql" else _no_nan
        return {int: _exact_single if is_single else _exact, float: no_nan, Decimal: _exact_decimal}
    if isinstance(kind, sa.Numeric):
        scale = _scale(_MOST_PLACES if kind.scale is None else kind.scale)
        return {int: None, float: scale, Decimal: scale}
    if isinstance(kind, sa.Enum):
        return {str: None}
    if isinstance(kind, sa.String):
        is_padded = isinstance(kind, sa.CHAR)
        check = _text(kind.length or 1, is_padded and dialect) if kind.length or is_padded else None
        return {str: check}
    if isinstance(kind, sa.JSON):
        return _of_json(_jsonb if isinstance(kind, postgresql.JSONB) else _json)
    if isinstance(kind, sa.Uuid):
        return {UUID: None, str: _uuid}
    if isinstance(kind, postgresql.INTERVAL):
        return {timedelta: _interval(kind.precision)}
    if isinstance(kind, sa.ARRAY):
        items = takes_of(kind.item_type, dialect)
        return items and {list: _array(items), tuple: _array(items)}
    return _of_all(kind)


def _of_all(kind: Any) -> _Checks | None:  # noqa: ANN401
    if isinstance(kind, sa.Boolean):
        return {bool: None, int: _zero_or_one}
    if isinstance(kind, sa.LargeBinary):
        return {bytes: None}
    if isinstance(kind, sa.Date):
        return {date: None, datetime: _midnight}
    digits = (kind.fsp or 0) if hasattr(kind, "fsp") else getattr(kind, "precision", None)  # MySQL's is fsp
    if isinstance(kind, sa.DateTime):
        check = _time(digits, is_aware=bool(kind.timezone))
        return {datetime: check} if kind.timezone else {datetime: check, date: None}
    if isinstance(kind, sa.Time):
        return {time: _time(digits, is_aware=bool(kind.timezone))}
    return None


# ---- numbers ----------------------------------------------------------------------------------------------


def _no_nan(value: float) -> Change | None:
    return _NAN if value != value else None  # noqa: PLR0124


def _exact(value: int) -> Change | None:
    return None if -_WHOLE_FLOATS <= value <= _WHOLE_FLOATS or int(float(value)) == value else _DIGITS


def _exact_single(value: int) -> Change | None:
    return None if -_WHOLE_SINGLES <= value <= _WHOLE_SINGLES else _DIGITS


def _exact_decimal(value: Decimal) -> Change | None:
    if value.is_nan():
        return _NAN
    return None if Decimal(repr(float(value))) == value else _DIGITS


def _scale(places: int) -> Check:
    """A check of numbers: at most ``places`` digits behind the point; of a float also 15 digits in all."""

    def check(value: float | Decimal) -> Change | None:
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        if not exact.is_finite():
            return None if places else _DIGITS
        _, digits, exponent = exact.as_tuple()
        assert isinstance(exponent, int), "finite"
        dropped = -places - exponent
        is_kept = dropped <= 0 or not any(digits[-dropped:])
        if isinstance(value, float):
            is_kept = is_kept and len("".join(map(str, digits)).strip("0")) <= _FLOAT_DIGITS
        return None if is_kept else _DIGITS

    return check


def _zero_or_one(value: int) -> Change | None:
    return None if value in (0, 1) else _NEITHER


# ---- texts ------------------------------------------------------------------------------------------------


def _no_number(value: str) -> Change | None:
    return _NUMERIC_TEXT if _NUMBER.fullmatch(value) else None


def _text(most: int, padded_by: str | Literal[False]) -> Check:
    """Whether a text fits a column. PostgreSQL pads a shorter one with blanks, MySQL drops blanks."""

    def check(value: str) -> Change | None:
        if len(value) > most:
            return _LONG
        if padded_by == "postgresql":
            return _PADDED if len(value) < most else None
        return _BLANKS if padded_by and value.endswith(" ") else None

    return check


def _uuid(value: str) -> Change | None:
    try:
        return None if str(UUID(value)) == value else _NO_UUID
    except ValueError:
        return _NO_UUID


# ---- times ------------------------------------------------------------------------------------------------


def _midnight(value: datetime) -> Change | None:
    if value.tzinfo is not None:
        return _ZONE
    return None if value.time() == time.min else _TIME_OF_DAY


def _time(digits: int | None, *, is_aware: bool) -> Check:
    """A check of times: with a zone or without one, and ``digits`` digits of a second (None: 6)."""
    step = 1 if digits is None else 10 ** (6 - min(digits, 6))

    def check(value: datetime | time) -> Change | None:
        if not is_aware and step == 1 and value.tzinfo is None:  # nearly always true, and faster
            return None
        if (value.utcoffset() is not None) != is_aware:
            return _NO_ZONE if is_aware else _ZONE
        if isinstance(value, datetime) and is_aware and value.year in (1, 9999):
            try:
                value.astimezone(UTC)
            except OverflowError:
                return _YEAR
        return _FRACTION if value.microsecond % step else None

    return check


def _interval(digits: int | None) -> Check | None:
    step = 1 if digits is None else 10 ** (6 - digits)
    return None if step == 1 else lambda value: _FRACTION if value.microseconds % step else None


# ---- values of values -------------------------------------------------------------------------------------


def _of_json(check: Check) -> _Checks:
    return dict.fromkeys((dict, list, tuple, str, int, float, bool), check)


_OF_JSON: Final = frozenset({str, int, bool, type(None)})


def _json(value: Any) -> Change | None:  # noqa: ANN401
    """What JSON would change, at any depth. Loops, for most values of most rows are seen here."""
    kind = type(value)
    children: Iterable[object] = ()
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return _KEYS
        children = value.values()
    elif kind is list or kind is tuple:
        children = value
    elif kind is float:
        return None if isfinite(value) else _NOT_IN_JSON
    elif kind not in _OF_JSON:
        return _JSON_TYPES
    for child in children:
        if type(child) not in _OF_JSON and (change := _json(child)) is not None:
            return change
    return None


def _sqlite_json(value: object) -> Change | None:
    """A number alone in a column of JSON becomes one of SQLite's."""
    if type(value) is int and not -_WIDEST <= value < _WIDEST:
        return _DIGITS
    return _json(value)


def _jsonb(value: object) -> Change | None:
    """PostgreSQL keeps the digits of a number, and writes a large float as an int."""
    change = _json(value)
    return change or next((_DIGITS for each in _floats(value) if int(Decimal(repr(each))) != int(each)), None)


def _floats(value: object) -> Iterator[float]:
    if isinstance(value, float) and abs(value) > _WHOLE_FLOATS:
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _floats(each)


def _array(takes: _Checks) -> Check:
    """Whether items are kept, also those of arrays in the array."""

    def check(value: Sequence[object]) -> Change | None:
        for item in value:
            if isinstance(item, list | tuple):
                change = check(item) if item else _EMPTY
            else:
                judge = takes.get(type(item), _unfit)
                change = None if judge is None else _checked(item, judge, takes)
            if change is not None:
                return change
        return None

    return check
