from __future__ import annotations

import datetime as dt
import enum
import math
import os
import subprocess
import sys
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core import ids
from acktree.core.data.hashing import (
    combine_hashes,
    hash_column,
    hash_columns,
    hash_row,
    hash_values,
    stable_hash,
)
from acktree.errors import MisuseError

ROOT = Path(__file__).parents[4]
INT64S = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(),
    INT64S,
    st.integers(-60, 60).map(lambda power: 2 ** abs(power) * (power or 1)),
    st.floats(),
    st.fractions(),
    st.decimals(allow_nan=False),
)
TEXTS = st.text(st.characters(exclude_categories=[]))  # lone surrogates too
KEYS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS, st.binary()),
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=6,
)
# A change of a number here moves every key of every running topology to another task.
GOLDEN = {
    "None": 0xFB5DF470D98D674B,
    "0": 0x540EEEE0E3F9553D,
    "1": 0x2335DD221D8A4C0A,
    "-1": 0x5B1B19F40D7BBD94,
    "2**63": 0xAEA1AFDD63079C39,
    "-(2**80) - 1": 0x31D6EE5EBE4B0FE4,
    "0.5": 0xF514B8637F599FEA,
    "-1e300": 0x1281444D5AF8C04F,
    "math.inf": 0x24C9C7EA169C83D5,
    "math.nan": 0x8844CCB810BFF0E3,
    "Decimal('0.1')": 0x6B3A9691A37BC8DD,
    "Fraction(1, 3)": 0x79BE94F4BC652FDB,
    "''": 0x3564B439CD1E1F16,
    "'word'": 0x9847E21A9961E6EE,
    "'Wörter \\ud800'": 0x970B3CDFEA81E051,
    "b''": 0x86FA59FA943FE6F8,
    "b'word'": 0x4D40E362CB5FBB6B,
    "[]": 0x4364B4370B621F77,
    "[1, 'a']": 0xD251A946CBD25E79,
    "(1, 'a')": 0x7E40334E741243CC,
    "{'a', 'b', 'c'}": 0x4DA1CDD8E577A12E,
    "{'a': 1, 'b': None}": 0x401FF143DC8B207E,
    "dt.datetime(2024, 2, 29, 12, 30, 0, 5)": 0x6EDA5EFFB9EBA158,
    "dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)": 0x3A535653FCC134A8,
    "dt.date(2024, 2, 29)": 0x659C89C5422A30CF,
    "dt.time(12, 30, 0, 5)": 0xFEB4F5B0EE67397B,
    "dt.time(12, 30, tzinfo=dt.UTC)": 0xDFB1CC7DD137FCB7,
    "dt.timedelta(days=-1, microseconds=5)": 0x978A29B5D970F5D5,
    "uuid.UUID(int=7)": 0x0417D93AFA8730A3,
    "Colour.RED": 0xD051126B40851B36,
    "Point(1, 2.5)": 0x4C4460D618D9F637,
    "np.array([[1, 2], [3, 4]])": 0x7394E63ED2B4C5C2,
}


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    ORDER = "order"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Place:
    x: float
    y: float


class OwnText(str):
    __slots__ = ()

    def encode(self, *_):
        raise AssertionError("a subclass is taken for its characters")


def as_type(kind, value):
    """The value as this type of number, or None where it has none."""
    try:
        with np.errstate(all="ignore"):
            return kind(value)
    except (ArithmeticError, ValueError, TypeError):
        return None


# ---- equal values, equal hash -----------------------------------------------------------------------------


@given(NUMBERS)
def test_a_number_hashes_alike_in_every_type_that_holds_it(number):
    for kind in (bool, int, float, Decimal, Fraction, np.int64, np.uint64, np.float64, np.int8, np.float32):
        other = as_type(kind, number)
        # numpy compares in its own width, so 2**24 + 1 == np.float32(2**24); the law is about Python's ==.
        exact = other.item() if isinstance(other, np.generic) else other
        if exact is not None and exact == number:
            assert stable_hash(other) == stable_hash(number), (kind, number)


@given(st.integers(-400, 400), st.integers(1, 99))
def test_powers_of_ten_beyond_every_machine_type_hash_alike(exponent, mantissa):
    exact = Fraction(mantissa) * Fraction(10) ** exponent
    assert stable_hash(Decimal(mantissa).scaleb(exponent)) == stable_hash(exact)
    if exact.denominator == 1:
        assert stable_hash(-exact.numerator) == stable_hash(-exact)
        assert stable_hash(-Decimal(mantissa).scaleb(exponent)) == stable_hash(-exact)


def test_a_decimal_of_a_billion_digits_is_hashed_without_writing_them():
    assert stable_hash(Decimal("1e999999999")) == stable_hash(Decimal("10e999999998"))


def test_a_fraction_over_the_modulus_has_a_hash():
    assert stable_hash(Fraction(1, 2**61 - 1)) == stable_hash(Fraction(2, 2 * (2**61 - 1)))


@pytest.mark.parametrize("edge", [2**53, 2**63 - 2**10, 2**63, 2**63 + 2**11, 2**64, 2**70, 2**1023])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_are_equal_on_both_sides_of_every_edge(edge, sign):
    number = sign * edge
    hashes = {stable_hash(kind(number)) for kind in (int, float, Decimal, Fraction)}
    assert hashes == set(hash_column(pa.array([float(number)])).tolist())
    assert stable_hash(number + 1) not in hashes


def test_a_half_is_a_half():
    assert stable_hash(0.5) == stable_hash(Decimal("0.50")) == stable_hash(Fraction(2, 4))


def test_the_two_zeros_are_one_value_and_all_nans_are_one_key():
    assert stable_hash(-0.0) == stable_hash(0.0) == stable_hash(0) == stable_hash(Decimal("-0"))
    nans = [math.nan, -math.nan, Decimal("nan"), Decimal("snan"), np.float32("nan")]
    assert len({stable_hash(nan) for nan in nans}) == 1
    assert stable_hash(Decimal("-inf")) == stable_hash(-math.inf) != stable_hash(math.inf)


@given(KEYS, KEYS)
def test_what_python_calls_equal_hashes_alike(first, second):
    if first == second:
        assert stable_hash(first) == stable_hash(second)


@given(st.lists(KEYS, unique=True), st.data())
def test_sets_and_dicts_hash_alike_in_any_order(keys, data):
    shuffled = data.draw(st.permutations(keys))
    assert stable_hash(set(keys)) == stable_hash(frozenset(shuffled))
    numbered = {key: number for number, key in enumerate(keys)}
    assert stable_hash(numbered) == stable_hash({key: float(numbered[key]) for key in shuffled})


def test_numbers_are_equal_inside_containers_too():
    assert stable_hash((1, [2.0, {True: Decimal(3)}])) == stable_hash((1.0, [2, {1: Fraction(3)}]))


def test_arrays_and_lists_hash_by_content():
    content = [[1, 2], [3, 4]]
    assert (
        stable_hash(np.array(content)) == stable_hash(np.array(content, dtype=float)) == stable_hash(content)
    )
    assert stable_hash(np.array(["a", None], dtype=object)) == stable_hash(["a", None])
    assert stable_hash(np.array(5)) == stable_hash(np.int16(5)) == stable_hash(5)


def test_numpy_times_hash_as_pythons_in_every_unit():
    moment = dt.datetime(2024, 2, 29, 12, 30)  # noqa: DTZ001  # numpy's have no zone
    for unit in ("m", "s", "ms", "us", "ns"):
        assert stable_hash(np.datetime64("2024-02-29T12:30", unit)) == stable_hash(moment)
    assert stable_hash(np.array(["2024-02-29T12:30"], "M8[ns]")) == stable_hash([moment])
    assert stable_hash(np.timedelta64(90, "s")) == stable_hash(dt.timedelta(seconds=90))
    assert stable_hash(np.datetime64("nat", "us")) == stable_hash(None)


def test_subclasses_hash_as_what_they_extend():
    pair = namedtuple("pair", "x y")  # noqa: PYI024  # an untyped one is what users have
    assert stable_hash(pair(1, 2)) == stable_hash((1, 2))
    assert stable_hash(OrderedDict(a=1)) == stable_hash({"a": 1})
    assert stable_hash(OwnText("x")) == stable_hash(np.str_("x")) == stable_hash("x")
    assert stable_hash(Level.LOW) == stable_hash(1)
    assert stable_hash(Kind.ORDER) == stable_hash("order")


def test_bytes_are_one_value_whether_they_can_change_or_not():
    assert stable_hash(bytearray(b"ab")) == stable_hash(b"ab") == stable_hash(np.bytes_(b"ab"))


@given(st.datetimes(), st.timezones(), st.timezones())
def test_one_instant_is_one_key_in_every_zone(naive, here, there):
    try:
        first = naive.replace(tzinfo=here)
        second = first.astimezone(there)
    except OverflowError:
        return
    if first == second:
        assert stable_hash(first) == stable_hash(second)


@given(st.times(), st.sampled_from([-720, -90, -1, 0, 1, 330, 840]))
def test_a_time_of_day_is_one_key_in_every_fixed_zone(naive, minutes):
    first = naive.replace(tzinfo=dt.UTC)
    shifted = dt.datetime.combine(dt.date(2024, 5, 5), first).astimezone(
        dt.timezone(dt.timedelta(minutes=minutes))
    )
    if first == shifted.timetz():
        assert stable_hash(first) == stable_hash(shifted.timetz())
    assert stable_hash(first) != stable_hash(naive)


def test_the_fold_of_a_repeated_hour_does_not_count_as_in_python():
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert first == first.replace(fold=1)
    assert stable_hash(first) == stable_hash(first.replace(fold=1))


def test_pandas_nat_is_a_key_like_nan():
    class NaT(dt.datetime):
        def __eq__(self, other):
            return False

        def __ne__(self, other):
            return True

        __hash__ = None

    assert stable_hash(NaT(2024, 1, 1)) == stable_hash(math.nan)


def test_a_field_that_a_dataclass_does_not_compare_does_not_count():
    assert Point(1, 2, "a") == Point(1.0, 2, "b")
    assert stable_hash(Point(1, 2, "a")) == stable_hash(Point(1.0, 2, "b"))


# ---- different values, different hash ---------------------------------------------------------------------


def test_look_alikes_hash_apart():
    moment = dt.datetime(2024, 1, 1)  # noqa: DTZ001  # with and without a zone is the point
    alikes = [
        None, 0, 1, 0.5, "", "1", "None", b"", b"1", (), [], set(), {}, (1,), [1], {1},
        {1: None}, ((),), [[]],
        ("a", "b"), ("ab",), ("b", "a"), {"a": "b"}, {"b": "a"}, {("a", "b")}, "\ud800", "\ud801",
        2**63, -(2**63), 2**64, -(2**64), 2**61 - 1, 1e300, 0.1, math.inf, -math.inf, math.nan,
        Fraction(1, 3), Decimal("0.1"), moment, moment.replace(tzinfo=dt.UTC), moment.date(), moment.time(),
        dt.timedelta(1), dt.timedelta(0), uuid.UUID(int=1), uuid.UUID(int=1).bytes, str(uuid.UUID(int=1)),
        Colour.RED, Colour.GREEN, Access.READ, Access.READ | Access.WRITE, Access(0),
        Point(1, 2), Point(2, 1), Place(1, 2),
    ]  # fmt: skip
    hashes = hash_values(alikes)
    assert len(set(hashes.tolist())) == len(alikes)


@given(INT64S, INT64S)
def test_two_ints_never_collide(first, second):
    assert (stable_hash(first) == stable_hash(second)) == (first == second)


@given(TEXTS, TEXTS)
def test_two_texts_do_not_collide(first, second):
    assert (stable_hash(first) == stable_hash(second)) == (first == second)


@pytest.mark.parametrize(
    "key_of",
    [int, "user-{}".format, (1 / 7).__mul__, (2**32).__mul__],
    ids=["counting", "texts", "fractions", "multiples"],
)
@pytest.mark.parametrize("tasks", [2, 7, 8])
def test_keys_are_spread_evenly(key_of, tasks):
    keys = [key_of(number) for number in range(10_000)]
    counts = np.bincount([hash_row([key]) % tasks for key in keys], minlength=tasks)
    assert counts.min() > 0.9 * len(keys) / tasks
    assert counts.max() < 1.1 * len(keys) / tasks


# ---- what has no hash -------------------------------------------------------------------------------------


class Opaque:
    pass


@pytest.mark.parametrize(
    "value",
    [object(), Opaque(), Opaque, Point, len, 1j, range(3), memoryview(b"x"), np.longdouble(1)],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: (1, {"a": [value]})], ids=["alone", "inside"]
)
def test_what_has_no_stable_content_is_refused_by_name(value, wrap):
    with pytest.raises(MisuseError) as caught:
        stable_hash(wrap(value))
    assert type(value).__name__ in caught.value.what
    assert "group by" in caught.value.fix


def test_a_list_that_contains_itself_is_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(MisuseError, match="contains itself"):
        stable_hash(endless)


# ---- rows and columns -------------------------------------------------------------------------------------


def after_epoch(microseconds):
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)


TYPED = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): INT64S,
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.one_of(st.floats(), INT64S.map(float)),
    pa.string(): st.text(max_size=70),
    pa.large_string(): st.text(),
    pa.binary(): st.binary(max_size=70),
    pa.large_binary(): st.binary(),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.string_view(): st.text(max_size=70),
    pa.binary_view(): st.binary(max_size=70),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "Asia/Tokyo"): st.integers(0, 2**52).map(after_epoch),
    pa.duration("us"): st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6)),
    pa.decimal128(9, 2): st.decimals(-(10**6), 10**6, places=2),
    pa.dictionary(pa.int8(), pa.string()): st.text(max_size=3),
    pa.dictionary(pa.int16(), pa.int64()): INT64S,
    pa.list_(pa.int64()): st.lists(INT64S),
    pa.struct([("a", pa.int64())]): st.fixed_dictionaries({"a": INT64S}),
}


LENGTHS = st.integers(0, 12)


@st.composite
def columns(draw, length=LENGTHS):
    kind = draw(st.sampled_from(list(TYPED)))
    n = draw(length)
    values = st.one_of(TYPED[kind], st.none()) if draw(st.booleans()) else TYPED[kind]
    column = pa.array(draw(st.lists(values, min_size=n, max_size=n)), kind)
    start = draw(st.integers(0, n)) if draw(st.booleans()) else 0
    return pa.concat_arrays([pa.nulls(start, kind), column]).slice(start) if start else column


@given(columns())
def test_a_column_hashes_as_its_values(column):
    assert hash_column(column).tolist() == [stable_hash(value) for value in column.to_pylist()]


@given(st.integers(0, 6).flatmap(lambda n: st.lists(columns(st.just(n)), min_size=1, max_size=3)))
def test_columns_hash_as_their_rows(table):
    rows = zip(*(column.to_pylist() for column in table), strict=True)
    assert hash_columns(table, len(table[0])).tolist() == [hash_row(row) for row in rows]


def test_without_columns_every_row_hashes_alike():
    assert hash_columns([], 3).tolist() == [hash_row([])] * 3


def test_the_order_of_the_columns_counts():
    first, second = pa.array(["a"]), pa.array(["b"])
    assert hash_columns([first, second], 1) != hash_columns([second, first], 1)


def test_a_dictionary_that_holds_a_null_hashes_it_as_none():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    assert hash_column(column).tolist() == [stable_hash("a"), stable_hash(None)]


def test_a_null_hashes_as_none_beside_a_value_that_python_cannot_hold():
    late = pa.array([10**18], pa.timestamp("s"))
    for places in ([None], [None, None]):
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), late)
        assert hash_column(column).tolist() == [stable_hash(None)] * len(places)


def test_a_signalling_nan_is_hashed_without_a_warning():
    signalling = np.array([0x7FF0000000000001], dtype=np.uint64).view(np.float64)
    assert hash_column(pa.array(signalling)).tolist() == [stable_hash(math.nan)]


def test_the_arrays_given_stay_as_they_were():
    hashes = np.array([1, 2], dtype=np.uint64)
    combine_hashes([hashes], 2)
    assert hashes.tolist() == [1, 2]


@given(st.integers(0, 2**64 - 1))
def test_one_number_is_mixed_as_a_column_of_them(number):
    assert ids.mix64_one(number) == ids.mix64(np.array([number], dtype=np.uint64))[0]


# ---- equal in all processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", GOLDEN)
def test_no_release_may_change_a_hash(text):
    assert stable_hash(eval(text)) == GOLDEN[text]  # our own literals


def test_no_release_may_change_the_hash_of_a_row():
    assert hash_row(["word", 1, None]) == 0xADA4D6AA56863106
    assert hash_row([]) == 0x5851F42D4C957F2D


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_every_hash_seed_gives_the_same_hashes(seed):
    program = (
        "from acktree.core.data.hashing import *; import pyarrow as pa; "
        "value = {'b', 'a', ('x', 1)}, {'k': 'v', 'l': b'w'}, frozenset('hello world'); "
        "print(stable_hash(value), hash_row(value), *hash_columns([pa.array(['b', 'a', None, 'b'])], 4))"
    )
    command = [sys.executable, "-c", program]
    seeded = os.environ | {"PYTHONHASHSEED": seed}
    run = subprocess.run(command, cwd=ROOT, env=seeded, capture_output=True, text=True, check=True)
    value = {"b", "a", ("x", 1)}, {"k": "v", "l": b"w"}, frozenset("hello world")
    here = [stable_hash(value), hash_row(value), *(hash_row([text]) for text in ("b", "a", None, "b"))]
    assert [int(number) for number in run.stdout.split()] == here


@pytest.mark.slow
def test_hashing_a_value_imports_no_arrow_and_no_type_it_was_not_given():
    program = (
        "import acktree.core.data.hashing as h, sys; h.stable_hash('x'); "
        "assert not {'pyarrow', 'pyspark', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
