"""Placeholders are replaced once, left to right, and lines keep their numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.flux.substitution import properties_in, substitute

KEYS = st.sampled_from(["a", "b", "a.b", "ENV-HOME", "list[0]", "no"])
VALUES = st.text("ab ${}[]\"',:#\\\n", max_size=12)
PIECES = st.one_of(KEYS.map(lambda key: f"${{{key}}}"), st.text("ab ${}:\n\r", max_size=5))
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def by_hand(text, values):
    """A naive model: looks for the next placeholder, and goes on behind what replaced it."""
    done = ""
    for line in re.split("(\r\n|[\r\n])", text):
        rest, is_comment = line, line.lstrip().startswith("#")
        while not is_comment and (found := re.search(r"\$\{([^{}]+)\}", rest)):
            done += rest[: found.start()] + values.get(found[1], found[0])
            rest = rest[found.end() :]
        done += rest
    return done


@given(TEXTS, st.dictionaries(KEYS.filter(lambda key: not key.startswith("ENV")), VALUES))
def test_each_placeholder_is_replaced_once_and_none_in_what_replaced_another(text, values):
    assert substitute(text, values).text == by_hand(text, values)


@given(TEXTS)
def test_a_text_without_values_stays_and_each_placeholder_is_named_with_its_line(text):
    done = substitute(text, {})
    assert done.text == text
    lines = re.split("\r\n|[\r\n]", text)
    assert list(done.missing) == [
        (found, number) for number, line in enumerate(lines, 1) for found in re.findall(r"\$\{[^{}]+\}", line)
    ]


@given(st.lists(st.sampled_from(["x", "${a}", "${a} ${a}", "# ${a}"]), max_size=8), VALUES)
def test_each_line_of_the_result_leads_back_to_its_line_of_the_file(lines, value):
    done = substitute("\n".join(lines), {"a": value})
    for line, number in zip(done.text.split("\n"), done.lines, strict=True):
        assert number in range(1, len(lines) + 1) or not lines
        if lines and "a" not in lines[number - 1]:
            assert line == lines[number - 1]
    assert list(done.lines) == sorted(done.lines)


def test_the_environment_is_read_only_where_it_is_asked_for():
    assert substitute("${ENV-X}", {"ENV-X": "no"}, None).text == "${ENV-X}"
    assert substitute("${ENV-X}${ENV-Y}", {}, {"X": "1"}).text == "1${ENV-Y}"


def test_an_element_of_a_list_and_the_list_itself():
    values = {"l": '["a", "b"]'}
    assert substitute("${l} ${l[1]} ${l[2]}", values).text == '["a", "b"] b ${l[2]}'


PAIRS = st.dictionaries(st.text("ab.é =:#!\\\t", min_size=1), st.text("ab é=:#!\\\n\t"))


def as_java_stores_it(text, *, is_key):
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    escaped = re.sub("([=:#!])", r"\\\1", escaped)
    escaped = escaped.replace(" ", "\\ ") if is_key else re.sub("^ ", "\\ ", escaped)
    return "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in escaped)


@given(PAIRS)
def test_properties_are_read_as_java_stores_them(pairs):
    lines = ["# made by Java", "! too", ""]
    lines += [
        f"{as_java_stores_it(key, is_key=True)}={as_java_stores_it(value, is_key=False)}"
        for key, value in pairs.items()
    ]
    assert properties_in("\n".join(lines)) == pairs


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a : 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a", {"a": ""}),
        ("  a = b = c  ", {"a": "b = c  "}),
        ("a=1\\\r\n   2\nb=3\\\\\nc=4", {"a": "12", "b": "3\\", "c": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_the_forms_of_a_pair(text, pairs):
    assert properties_in(text) == pairs
