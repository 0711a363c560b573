"""Which inputs create_topology refuses, and which graphs of them."""

from __future__ import annotations

import pytest

from acktree.errors import TopologyError
from acktree.topology import TopologyBuilder
from tests.unit.topology.drawings import (
    ByLength,
    Join,
    Lines,
    Sink,
    Split,
    lines,
    refused,
    with_bolt,
)

# --- inputs


def test_a_bolt_that_reads_nothing_is_refused_with_what_it_could_read():
    builder = lines()
    builder.set_bolt("split", Split())
    refused(builder, "reads no stream", "set_bolt('split', Split(...)).shuffle_grouping('lines')")


def test_an_input_chained_to_a_spout_is_refused_at_once():
    with pytest.raises(TopologyError) as caught:
        lines().set_spout("more", Lines()).shuffle_grouping("lines")
    assert "set_spout('more', ...).shuffle_grouping" in caught.value.where
    assert not hasattr(lines().set_spout("more", Lines()), "id")


def test_only_a_grouping_chained_to_a_spout_is_answered_by_us():
    with pytest.raises(AttributeError, match="paralellism"):
        _ = lines().set_spout("more", Lines()).paralellism


def test_an_unknown_source_is_refused_with_the_nearest_known_one():
    builder = lines()
    builder.set_bolt("split", Split()).shuffle_grouping("lnies")
    text = refused(builder, "reads from 'lnies', which is no component", "did you mean 'lines'?")
    assert "where: set_bolt('split', Split(...)).shuffle_grouping('lnies')" in text


def test_an_object_instead_of_an_id_is_refused():
    builder = lines()
    builder.set_bolt("split", Split()).shuffle_grouping(Lines())
    refused(builder, "reads from Lines(...), which is no component's id", "give the id, a string")


def test_an_unknown_stream_is_refused_with_those_that_there_are():
    builder = lines()
    builder.set_bolt("split", Split()).shuffle_grouping("lines", stream="erors")
    text = refused(builder, "declares only 'default', 'errors'", "did you mean 'errors'?", "Lines.outputs")
    assert ".shuffle_grouping('lines', stream='erors')" in text


def test_reading_from_a_bolt_that_emits_nothing_is_refused():
    builder = lines()
    builder.set_bolt("sink", Sink()).shuffle_grouping("lines")
    builder.set_bolt("after", Sink()).shuffle_grouping("sink")
    refused(builder, "reads from 'sink', which declares no output", 'Sink.outputs = ["field"]')


@pytest.mark.parametrize("second", ["shuffle_grouping", "all_grouping"])
def test_reading_the_same_stream_twice_is_refused_for_every_grouping(second):
    builder = lines()
    getattr(builder.set_bolt("split", Split()).shuffle_grouping("lines"), second)("lines")
    refused(builder, "reads stream 'default' of 'lines' twice", "keep one of the two")


@pytest.mark.parametrize("method", ["fields_grouping", "partial_key_grouping"])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("line", ["a string and not a list", "['line']"]),
        (None, ["no list of fields", "['line']"]),
        ([], ["names no field", "use shuffle_grouping"]),
        (["lien"], ["field 'lien'", "did you mean 'line'?"]),
        (["reason"], ["field 'reason'", "there is only 'line'"]),  # of another stream: Storm lets it pass
        (["line", "line"], ["'line' twice"]),
        ([["line"]], ["which the stream does not have"]),
    ],
    ids=str,
)
def test_a_grouping_by_fields_that_the_stream_does_not_have_is_refused(method, fields, says):
    builder = lines()
    getattr(builder.set_bolt("split", Split()), method)("lines", fields)
    refused(builder, f"the {method} of bolt 'split' (Split)", *says)


def test_a_custom_grouping_that_is_none_is_refused():
    for wrong, says in [(ByLength, "make one: "), (len, "no CustomGrouping"), (None, "no CustomGrouping")]:
        builder = lines()
        builder.set_bolt("split", Split()).custom_grouping("lines", wrong)
        refused(builder, "the custom grouping of bolt 'split' (Split)", says)


# --- the graph


def test_an_empty_topology_is_refused():
    refused(TopologyBuilder("words"), "topology 'words' has no spout", "set_spout")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_stream_that_is_read_directly_is_read_in_no_other_way(names):
    builder = lines()
    builder.set_bolt(names[0], Sink()).direct_grouping("lines")
    builder.set_bolt(names[1], Sink()).shuffle_grouping("lines")
    refused(builder, "by direct grouping, and", "declare a second stream in its outputs")


def test_two_bolts_may_read_a_stream_directly_and_others_another_stream():
    builder = lines()
    for name in "ab":
        builder.set_bolt(name, Sink()).direct_grouping("lines", "errors")
    builder.set_bolt("c", Sink()).shuffle_grouping("lines")
    assert builder.create_topology()


def test_a_cycle_is_refused_and_the_error_shows_its_path():
    builder = lines()
    builder.set_bolt("a", Split()).shuffle_grouping("lines").shuffle_grouping("c")
    builder.set_bolt("b", Split()).shuffle_grouping("a")
    builder.set_bolt("c", Split()).shuffle_grouping("b")
    text = refused(builder, "cycle: 'a' -> 'b' -> 'c' -> 'a'", "remove one of these edges")
    assert "where: set_bolt('b', Split(...)).shuffle_grouping('a')" in text


def test_a_bolt_that_reads_itself_is_a_cycle():
    builder = lines()
    builder.set_bolt("a", Split()).shuffle_grouping("lines").fields_grouping("a", ["word"])
    refused(builder, "cycle: 'a' -> 'a'", ".fields_grouping('a', ['word'])")


def test_two_ways_to_one_bolt_are_no_cycle():
    builder = with_bolt(Split())
    builder.set_bolt("left", Split()).shuffle_grouping("split")
    builder.set_bolt("right", Split()).shuffle_grouping("split")
    builder.set_bolt("join", Join()).shuffle_grouping("left").shuffle_grouping("right")
    builder.create_topology()
