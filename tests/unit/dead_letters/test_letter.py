"""A letter as text: nothing is unpickled, control characters are escaped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.dead_letters.export import texts_of
from tests.unit.dead_letters.letters import LETTER, Unreadable, letter, payload_of


def test_the_story_says_all_that_there_is():
    story = replace(LETTER, id=7, redriven_ms=3_000, settled_ms=4_000).story()
    assert story.splitlines() == [
        "dead letter 7 of topology 'flights'",
        "  message   17 of 'departures', task 3",
        "  stream    'default'",
        "  emitted   1970-01-01 00:00:01 UTC",
        "  given up  1970-01-01 00:00:02 UTC, after 3 attempts",
        "  redriven  1970-01-01 00:00:03 UTC, and settled 1970-01-01 00:00:04 UTC",
        "  FAILED    EXCEPTION, in 'parse': no departure time",
        "  f0 = 'UA'",
        f"  f1 = {LETTER.plain_values['f1']!r}",
        "  Traceback ...",
    ]


def test_what_is_not_known_is_said_to_be_so():
    story = replace(
        LETTER, attempts=1, component=None, traceback=None, fields=(), payload=payload_of()
    ).story()
    assert "after 1 attempt\n" in story
    assert "in an unknown component: no departure time" in story
    assert "redriven  never" in story


def test_words_that_would_drive_a_terminal_are_shown_and_not_obeyed():
    rude = "\x1b[2J\x07gone\r\nforged line\udce9\x9b"
    story = replace(LETTER, reason=rude, message_id_repr=rude, traceback=rude).story()
    assert all(character.isprintable() or character == "\n" for character in story)
    assert "\\x1b[2J\\x07gone\\r\\nforged line\\udce9\\x9b" in story
    assert "\n  forged line" in story  # of a traceback the lines stay lines


def test_plain_values_are_those_that_need_no_unpickling():
    letter = replace(LETTER, fields=("f0", "f1", "f2"), payload=payload_of(1, Unreadable(), None))
    assert letter.plain_values["f0"] == 1
    assert repr(letter.plain_values["f1"]).startswith("<pickled, ")
    assert letter.plain_values["f2"] is None


def test_bytes_of_a_queue_are_shown_as_text_and_json_is_indented():
    body = letter(
        1, fields=("f0", "f1", "f2", "f3"), payload=payload_of(b'{"a":[1]}', b"caf\xc3\xa9", b"\xff", "text")
    )
    assert texts_of(body, None) == {"f0": '{\n  "a": [\n    1\n  ]\n}', "f1": "café"}
    assert texts_of(body, 3)["f1"] == "caf... [1 more characters]"
    large = letter(1, fields=("f0",), payload=payload_of(b"[" + b"1," * 50_000 + b"1]"))
    assert len(texts_of(large, 2_000)["f0"]) < 2_050


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ('{"a":1.10,"a":2}', '{\n  "a": 1.10,\n  "a": 2\n}'),
        ("[12345678901234567.25, 1E400, NaN]", "[\n  12345678901234567.25,\n  1E400,\n  NaN\n]"),
        (r'{"a:[": "\u00e9\"},\\", "b": {}}', '{\n  "a:[": "\\u00e9\\"},\\\\",\n  "b": {}\n}'),
        ("[ [ ], { } , [[]]]", "[\n  [],\n  {},\n  [\n    []\n  ]\n]"),
        ("[" * 200 + "]" * 200, "[" * 200 + "]" * 200),
        ('{"a": 1', '{"a": 1'),
    ],
)
def test_json_that_is_indented_has_each_number_name_and_text_as_it_came(body, shown):
    found = letter(1, fields=("f0",), payload=payload_of(body.encode()))
    assert texts_of(found, None) == {"f0": shown}


PLAIN = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))


@given(st.recursive(PLAIN, lambda of: st.lists(of) | st.dictionaries(st.text('a"{[:, \\'), of)))
def test_what_json_writes_is_indented_as_json_does(value):
    body = json.dumps([value], ensure_ascii=False)
    found = letter(1, fields=("f0",), payload=payload_of(body.encode("utf-8")))
    assert texts_of(found, None) == {"f0": json.dumps([value], ensure_ascii=False, indent=2)}
