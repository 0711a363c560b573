"""Arrow's inference of a type, and the values that would end the process."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ArrowBolt, ColumnState, TopologyBuilder, arrow_arrays
from acktree.arrow_arrays import array_of, depth_of, holds, typed_array
from acktree.testing import FeederSpout, LocalCluster

plain = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3)),
    lambda below: st.one_of(
        st.lists(below, max_size=3), st.dictionaries(st.text(max_size=2), below, max_size=3)
    ),
    max_leaves=12,
)


def a_list():
    value = [1]
    value.append(value)
    return value


def a_dict():
    value = {"a": [1]}
    value["a"].append(value)
    return value


def a_tuple():
    value = ([],)
    value[0].append(value)
    return value


def an_array():
    value = np.empty(1, dtype=object)
    value[0] = [value]
    return value


def a_view():
    value = {}
    value["a"] = value.values()
    return value


LOOPS = {"view": a_view, "list": a_list, "dict": a_dict, "tuple": a_tuple, "array": an_array}


@given(st.lists(plain, max_size=4))
def test_other_values_are_as_arrow_has_them(values):
    try:
        expected = pa.array(values)
    except pa.ArrowException as refused:
        with pytest.raises(type(refused)):
            array_of(values)
    else:
        assert array_of(values).equals(expected)


@pytest.mark.parametrize("make", LOOPS.values(), ids=LOOPS.keys())
def test_what_contains_itself_is_refused_and_the_process_goes_on(make):
    with pytest.raises(ValueError, match="contains itself"):
        array_of([1, make()])


TIME = np.datetime64("2020-01-01", "s")
BESIDE = (np.int8(1), np.float16(1), np.bool_(1), np.complex64(1), np.void(b"a"), np.longdouble(1))
KEY = np.array(["key"])[0]
MIXED = {
    "side by side": lambda other: [TIME, None, other],
    "in lists": lambda other: [[TIME], (other,)],
    "in dicts": lambda other: [{"a": TIME}, {"a": other, "b": 1}],
    "by bytes": lambda other: [{b"a": TIME}, {b"a": other}],
    "by texts of numpy": lambda other: [{KEY: TIME}, {KEY: other}],
    "in views": lambda other: [{1: TIME}.values(), {1: other}.values()],
    "in arrays": lambda other: [np.array([TIME]), np.array([other])],
    "in arrays of objects": lambda other: [[1], np.array([TIME, other], dtype=object)],
}


@pytest.mark.parametrize("other", BESIDE, ids=repr)
@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED.keys())
def test_times_of_numpy_beside_other_values_of_numpy_are_refused_and_the_process_goes_on(make, other):
    with pytest.raises((ValueError, TypeError, pa.ArrowException)):
        array_of(make(other))


@pytest.mark.parametrize("text", [np.array(["a"]), np.array([b"a"])])
def test_an_array_of_texts_after_one_of_times_is_refused(text):
    with pytest.raises(TypeError, match="no common type"):
        array_of([np.array([TIME]), text])


def test_times_and_numbers_of_numpy_in_fields_of_their_own_are_no_mixture():
    row = {"t": TIME, "n": np.int8(1), "f": [np.float32(0.5)], "s": np.str_("a")}
    found = array_of([row, row])
    assert found.type.field("t").type == pa.timestamp("s")
    assert [(each["n"], each["f"], each["s"]) for each in found.to_pylist()] == [(1, [0.5], "a")] * 2
    shared = [TIME]
    assert len(array_of([shared, shared, [np.datetime64("2021-01-01", "s")]])) == 3
    assert array_of([np.int8(1), np.int8(2)]).type == pa.int8()


def test_a_value_that_is_met_twice_and_not_in_itself_is_no_loop():
    shared = [1]
    assert array_of([[shared, shared], [shared]]).to_pylist() == [[[1], [1]], [[1]]]


def test_an_arrow_bolt_fails_a_message_with_a_loop_alone():
    class Passes(ArrowBolt):
        outputs = []

        def execute_batch(self, batch, collector):
            pass

    feeder = FeederSpout(["value"])
    builder = TopologyBuilder("loops")
    builder.set_spout("values", feeder)
    builder.set_bolt("passes", Passes()).shuffle_grouping("values")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        feeder.feed([[1]], message_id="fine")
        feeder.feed([a_list()], message_id="loop")
        cluster.advance()
    assert feeder.acked == ["fine"]
    [(message_id, failure)] = feeder.failed
    assert message_id == "loop"
    assert "contains itself" in failure.reason


def test_keys_that_contain_themselves_are_refused():
    with pytest.raises(Exception, match="contains itself"):
        ColumnState(str, int).get_many([a_list()])


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [1, 63, 64, 100, 124, 130, 400])
def test_values_that_are_nested_too_deep_to_be_read_are_refused(depth):
    if depth < 64:
        assert depth_of(array_of([nested(depth), None]).type) == depth + 1
    else:
        with pytest.raises(ValueError, match="nested more than 64 deep"):
            array_of([None, nested(depth)])


@pytest.mark.parametrize("depth", [63, 64, 100, 400])
def test_a_value_that_is_nested_too_deep_fails_alone(depth):
    class Same(ArrowBolt):
        outputs = ["value"]

        def execute_batch(self, batch, collector):
            collector.emit_batch(batch, parents=range(batch.num_rows))

    feeder, builder = FeederSpout(["value"]), TopologyBuilder("nested")
    builder.set_spout("source", feeder)
    builder.set_bolt("same", Same()).shuffle_grouping("source")
    builder.set_bolt("again", Same()).shuffle_grouping("same")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for value in ([1], nested(depth), None):
            feeder.feed([value], message_id=repr(value)[:9])
        cluster.advance()
    assert {each for each, _ in feeder.failed} == ({"[" * 9} if depth > 63 else set())


class ToInt:
    def __int__(self):
        return 7


DAY = dt.date(2026, 1, 2)
OF_ALL_KINDS = {
    "date": DAY,
    "datetime": dt.datetime(2026, 1, 2, 3),  # noqa: DTZ001
    "datetime with a zone": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    "datetime of another zone": dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    "time": dt.time(4),
    "time with a zone": dt.time(4, tzinfo=dt.UTC),
    "timedelta": dt.timedelta(5),
    "int": 6,
    "float": 7.5,
    "bool": True,
    "decimal": Decimal("8.5"),
    "fraction": Fraction(1, 3),
    "uuid": UUID(int=9),
    "to int": ToInt(),
    "text": "a",
    "bytes": b"b",
    "null": None,
    "numpy's int": np.int64(3),
    "numpy's bool": np.bool_(True),  # noqa: FBT003
    "numpy's float": np.float32(2.5),
    "numpy's time": np.datetime64("2026-01-02"),
    "list": [1],
    "dates": [DAY],
    "dict": {"a": 1},
    "dict of a date": {"a": DAY},
    "set": {1},
    "scalar": pa.scalar(1),
    "scalar of a date": pa.scalar(DAY),
}


def plain_of(value):
    """A value as a reader of Arrow's may get it: each container of values is a list, and each text bytes."""
    if isinstance(value, pa.Scalar):
        return plain_of(value.as_py())
    if isinstance(value, np.generic):
        return plain_of(value.item())
    if isinstance(value, dict):
        return {key: plain_of(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain_of(child) for child in value]
    kinds = (dt.datetime, dt.date, dt.time, dt.timedelta)
    temporal = next((kind for kind in kinds if isinstance(value, kind)), None)
    return (temporal, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("one", OF_ALL_KINDS)
@pytest.mark.parametrize("other", OF_ALL_KINDS)
def test_no_value_becomes_another_one_beside_a_value_of_another_type(one, other):
    values = [OF_ALL_KINDS[one], OF_ALL_KINDS[other]]
    for rows in (values, [[each] for each in values], [{"k": each} for each in values]):
        try:
            array = array_of(rows)
        except Exception:  # noqa: BLE001  # no common type
            continue
        assert [plain_of(each) for each in array.to_pylist()] == [plain_of(each) for each in rows]


def test_a_number_and_a_date_in_fields_of_their_own_have_a_type():
    rows = [{"n": 1, "day": DAY}, {"n": 2, "day": None}, {"n": None, "day": DAY}]
    assert array_of(rows).to_pylist() == rows


SEEN = []


class Shown(ArrowBolt):
    outputs = []

    def execute_batch(self, batch, collector):
        SEEN.extend(batch["value"].to_pylist())


def test_a_date_and_a_number_come_to_an_arrow_bolt_in_batches_of_their_own():
    SEEN.clear()
    feeder, builder = FeederSpout(["value"]), TopologyBuilder("mixed")
    builder.set_spout("source", feeder)
    builder.set_bolt("shown", Shown()).global_grouping("source")
    values = [DAY, 6, OF_ALL_KINDS["datetime"], {"at": OF_ALL_KINDS["datetime"]}, UUID(int=9), 7.5]
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for number, value in enumerate(values):
            feeder.feed([value], message_id=number)
        cluster.advance()
    assert sorted(feeder.acked) == [*range(6)]
    assert values == SEEN


@pytest.mark.parametrize("value", [{b"at": DAY}, {b"a": {b"b": [DAY]}, b"c": None}])
def test_keys_may_be_bytes(value):
    [taken] = array_of([value]).to_pylist()
    assert taken in ({"at": DAY}, {"a": {"b": [DAY]}, "c": None})


@pytest.mark.parametrize(
    "values",
    [[{b"a": 1, "b": 2}], [[{"a": 1}, {b"a": 2}]], [{"c": {b"a": 1}}, {"c": {"b": 2}}], [{b"a": 1, "a": 2}]],
)
def test_keys_of_two_types_are_refused_for_arrow_loses_values_under_one_of_them(values):
    assert values != pa.array(values).to_pylist()
    with pytest.raises(ValueError, match="some keys of dicts are texts and some are bytes"):
        array_of(values)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("kind", [np.datetime64, np.timedelta64])
def test_times_of_numpy_are_taken_and_what_is_no_time_is_null(kind, unit):
    assert array_of([kind(5, unit), kind("NaT", unit)]).is_null().to_pylist() == [False, True]
    deep = array_of([{"at": [kind(5, unit)]}, {"at": [kind("NaT", unit)]}])
    assert [each.is_valid for row in deep for each in row["at"]] == [True, False]


NO_TYPE = {
    "no dimension": np.array(5),
    "two dimensions": np.ones((2, 2)),
    "masked": np.ma.masked_array([1, 2], [False, True]),
    "masked in none": np.ma.masked_array(3),
}


@pytest.mark.parametrize("value", NO_TYPE.values(), ids=NO_TYPE)
def test_an_array_that_arrow_has_no_type_for_is_refused_also_beside_times(value):
    for values in ([value], [np.array([TIME]), value], [[TIME], value], [{"a": value}]):
        with pytest.raises((ValueError, TypeError), match=r"an array of|a masked array"):
            array_of(values)


@pytest.mark.parametrize(
    "values",
    [
        [np.array([1], "m8[s]"), np.array([1], "m8[ns]")],
        [[np.timedelta64(1, "s")], np.array([1], "m8[ns]")],
        [np.array([3, np.timedelta64(1, "M")], object)],
        [[3], [np.timedelta64(1, "s")]],
        [TIME, None, 1.5],
        [np.array([TIME]), np.array([1])[:0]],
    ],
    ids=repr,
)
def test_times_of_numpy_beside_others_and_those_of_two_units_are_refused(values):
    with pytest.raises(TypeError, match="have no common type"):
        array_of(values)


@pytest.mark.parametrize("values", [["a", b"b"], [["a", b"\xff"]], [{"k": b"a"}, {"k": "b"}]])
def test_texts_beside_bytes_are_refused(values):
    with pytest.raises(TypeError, match="texts and bytes have no common type"):
        array_of(values)


BERLIN = ZoneInfo("Europe/Berlin")
ONE_TYPE = {
    "no times among times": [np.array(["2020-01-01", "NaT"], "M8[s]"), np.array(["NaT"], "M8[s]")],
    "a number of 64 bits beside a time": [{"t": TIME, "u": np.uint64(2**64 - 1)}],
    "a year that Python has not": [np.datetime64("12000-01-01", "s"), np.datetime64("-0044-03-15", "s")],
    "sets in arrays of objects": [np.array([{1}, None], object), [[2]]],
    "times of two zones": [
        [dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]
    ],
    "numbers of two widths beside times": [{"t": TIME, "n": np.array([1.5], "f4")}],
}


@pytest.mark.parametrize("values", ONE_TYPE.values(), ids=ONE_TYPE)
def test_what_arrow_takes_as_it_is_is_taken(values):
    assert array_of(values).equals(pa.array(values))


CHANGED = [
    [np.longdouble("1e4000"), 1.5],
    [1, np.float16(1.5)],
    [1.5, np.uint64(2**64 - 1)],
    [np.array([1.5]), np.array([2**64 - 1], np.uint64)],
]


@pytest.mark.parametrize("values", CHANGED, ids=repr)
def test_a_number_of_numpy_that_would_be_another_one_beside_others_is_refused(values):
    for rows in (values, [[each] for each in values], [{"k": each} for each in values]):
        with pytest.raises((TypeError, pa.ArrowException)):
            array_of(rows)


@pytest.mark.parametrize("make", [nested, lambda depth: [{"a": nested(depth)}]], ids=["lists", "in a dict"])
def test_a_value_of_great_depth_is_refused_before_arrow_sees_it(make):
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        array_of([make(20_000)])


def test_dicts_whose_fields_double_with_each_depth_are_refused(monkeypatch):
    assert arrow_arrays._MOST_PLACES == 100_000  # to count them takes seconds
    monkeypatch.setattr(arrow_arrays, "_MOST_PLACES", 1_000)
    value = 1
    for _ in range(60):
        value = {"a": value, "b": value}
    with pytest.raises(ValueError, match="fields in all"):
        array_of([value])


class Lying(list):
    def __iter__(self):
        return iter(())


def test_a_list_that_hides_its_items_is_seen_as_arrow_sees_it():
    value = Lying([TIME])
    value.append(np.float64(2))
    with pytest.raises(TypeError, match="no common type"):
        array_of([value])
    value.append(value)
    with pytest.raises((TypeError, ValueError)):
        array_of([value])


MAP, CODES = pa.map_(pa.string(), pa.int64()), pa.dictionary(pa.int32(), pa.string())
ENDS_THE_PROCESS = {
    "an entry that is null": ([None], MAP),
    "... in a list": ([[None]], pa.list_(MAP)),
    "... in a struct": ({"m": [None]}, pa.struct([("m", MAP)])),
    "an entry of one": ([("a",)], MAP),
    "a scalar": (pa.scalar("a"), CODES),
    "... in a list of them": ([pa.scalar("a")], pa.list_(CODES)),
    "... in a map": ({"a": pa.scalar("a")}, pa.map_(pa.string(), CODES)),
}


@pytest.mark.parametrize(("value", "kind"), ENDS_THE_PROCESS.values(), ids=ENDS_THE_PROCESS)
def test_what_ends_the_process_as_a_declared_type_is_refused(value, kind):
    with pytest.raises(TypeError, match=r"takes dicts, and lists of pairs|a scalar of Arrow's"):
        typed_array([value], kind)


@pytest.mark.parametrize("value", [{"a": 1, "b": None}, [("a", 1)], {}, [], None])
def test_a_map_takes_dicts_and_lists_of_pairs(value):
    [back] = typed_array([value], MAP).to_pylist()
    assert back == (None if value is None else [*dict(value).items()])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.float64()])
def test_a_number_does_not_hold_a_time_of_numpy(kind):
    with suppress(pa.ArrowException, TypeError):
        assert not holds(typed_array([np.timedelta64(1, "M")], kind), [np.timedelta64(1, "M")])
