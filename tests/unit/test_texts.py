"""Texts of strangers are bounded, and cannot drive a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.texts import MOST_REASON, bounded, error_text, printable, printable_lines


@given(st.text())
def test_what_is_printable_is_one_line_of_printable_characters(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\u202egnp", "\\u202egnp"),
        ("\u2028", "\\u2028"),
        ("\x85\x9b", "\\x85\\x9b"),
        ("\ud800", "\\ud800"),
        ("Zürich \u4e2d", "Zürich \u4e2d"),
    ],
)
def test_a_character_that_a_terminal_obeys_is_shown_escaped(text, shown):
    assert printable(text) == shown


def test_lines_stay_lines_and_a_tab_becomes_spaces():
    assert printable_lines("a\tb\n\x1bc") == "a       b\n\\x1bc"


def test_a_long_text_keeps_its_ends_and_says_how_much_was_left_out():
    assert bounded("a" * 10, most=10) == "a" * 10
    text = bounded("begin" + "x" * 100_000 + "end", MOST_REASON)
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "95,912 characters left out" in text
    assert len(text) < MOST_REASON + 40


def test_the_words_of_an_exception_are_had_whatever_its_str_does():
    class MuteError(Exception):
        def __str__(self):
            raise ValueError

    assert error_text(ValueError("x")) == "ValueError: x"
    assert error_text(ValueError()) == "ValueError"
    assert error_text(MuteError()) == "MuteError: its __str__ raises"
    assert len(error_text(ValueError("x" * 10**6))) < MOST_REASON + 40
