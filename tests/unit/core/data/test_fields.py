from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from acktree.core.data.fields import StreamDeclaration, declare_streams
from acktree.errors import TopologyError

OWNER = "bolt 'count' (Count)"


def refused(outputs: object) -> str:
    with pytest.raises(TopologyError) as caught:
        declare_streams(outputs, OWNER)
    text = str(caught.value)
    assert len(text.splitlines()) == 3
    assert f"`outputs` of {OWNER}" in text
    return text


@pytest.mark.parametrize("outputs", [["word", "count"], ("word", "count")], ids=["list", "tuple"])
def test_names_alone_are_the_fields_of_the_default_stream(outputs):
    expected = StreamDeclaration("default", ("word", "count"), None)
    assert declare_streams(outputs, OWNER) == {"default": expected}


def test_a_schema_gives_names_and_types():
    schema = pa.schema([("word", pa.string()), ("count", pa.int64())])
    declared = declare_streams(schema, OWNER)["default"]
    assert declared.fields == ("word", "count")
    assert declared.schema is schema


def test_a_mapping_declares_several_streams_in_its_order_typed_or_not():
    schema = pa.schema([("line", pa.string())])
    declared = declare_streams({"late": schema, "default": ["word"]}, OWNER)
    assert list(declared) == ["late", "default"]
    assert declared["late"] == StreamDeclaration("late", ("line",), schema)
    assert declared["default"] == StreamDeclaration("default", ("word",), None)


@pytest.mark.parametrize("outputs", [[], (), {}, pa.schema([])], ids=repr)
def test_nothing_declared_is_no_stream(outputs):
    assert declare_streams(outputs, OWNER) == {}


def test_a_stream_of_tuples_without_fields_must_be_named():
    assert declare_streams({"default": []}, OWNER)["default"].fields == ()


def test_a_declaration_survives_a_pickle():
    declared = declare_streams({"a": ["x"], "b": pa.schema([("y", pa.int8())])}, OWNER)
    assert pickle.loads(pickle.dumps(declared)) == declared


def test_a_plain_string_is_refused_for_its_letters_would_be_the_fields():
    assert "outputs = ['word']" in refused("word")
    assert "outputs = {'late': ['line']}" in refused({"late": "line"})


@pytest.mark.parametrize("outputs", [None, 5, {"word"}, object(), {"word": None}, iter(["word"])])
def test_what_is_no_list_of_names_is_refused(outputs):
    assert "no list of field names" in refused(outputs)


def test_a_mapping_from_field_to_type_is_refused_with_the_way_to_write_it():
    text = refused({"word": pa.string()})
    assert "no list of field names" in text
    assert "pyarrow.schema" in text


@pytest.mark.parametrize("name", [5, None, ""], ids=repr)
def test_a_name_that_is_no_string_or_empty_is_refused(name):
    assert repr(name) in refused(["word", name])
    assert repr(name) in refused({name: ["word"]})


def test_a_field_declared_twice_is_refused_also_in_a_schema():
    assert "'word' twice" in refused(["word", "count", "word"])
    assert "'word' twice" in refused(pa.schema([("word", pa.string()), ("word", pa.int8())]))


def test_names_of_ours_are_refused():
    assert "call it 'tick'" in refused({"__tick": ["secs"]})
    assert "call it 'rows'" in refused(["__rows"])


def test_a_long_value_is_cut_in_the_text():
    assert len(max(refused({"x": {n: n for n in range(1000)}}).splitlines(), key=len)) < 250
