"""An operator names messages by their ids or by what is shown for them, some at a time and for a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import MisuseError
from acktree.core.tracking.attempts import CHOSEN
from acktree.tasks.spouts import watched_ids
from acktree.tasks.spouts.retries import Redriven
from acktree.tasks.spouts.trace_marks import TraceMarks
from acktree.tasks.spouts.watched_ids import MOST_WATCHED, WatchedIds
from acktree.texts import searched_id, short_repr

plain_ids = st.one_of(
    st.integers(), st.text(), st.binary(), st.text("ab .'\"\\", max_size=6), st.text("a", min_size=70)
)
ids = st.one_of(plain_ids, st.booleans(), st.floats(), st.tuples(plain_ids, plain_ids), st.uuids())


@dataclass(frozen=True)
class Key:
    part: int


class Clock:
    now_ms = 0

    def __call__(self):
        return self.now_ms


def watching(*named, secs=1.0, clock=None):
    watched = WatchedIds(clock or Clock())
    watched.add(named, secs)
    return watched


@given(ids, st.lists(ids, max_size=20))
def test_an_id_is_found_as_it_is_and_as_it_is_shown_among_others(one, others):
    found = [*others, one]
    for named in (one, short_repr(one), searched_id(one)):
        which = watching(named).names.among(found)
        assert which[-1]
        for other, is_watched in zip(others, which, strict=False):
            if is_watched:  # the same, or shown by the same text
                assert other == named or {short_repr(other), searched_id(other)} & {named, searched_id(named)}


@given(st.lists(plain_ids, min_size=1, max_size=20), st.data())
def test_what_is_watched_is_what_equals_a_name(many, data):
    named = data.draw(st.sampled_from(many))
    which = watching(named).names.among(many)
    assert all(is_watched for one, is_watched in zip(many, which, strict=True) if one == named)
    for one, is_watched in zip(many, which, strict=True):
        assert not is_watched or one == named or named in {short_repr(one), searched_id(one)}


def test_a_number_and_its_text_are_told_apart_where_the_name_does():
    many = [7, "7", "'7'", 7.0, True, b"7", Key(7), (7,)]
    assert watching(7).names.among(many).tolist() == [True, *[False] * 7]
    assert watching("7").names.among(many).tolist() == [True, True, *[False] * 6]  # `open` shows 7 as 7
    assert watching("'7'").names.among(many).tolist() == [False, True, True, *[False] * 5]
    assert watching("Key(part=7)", (7,)).names.among(many).tolist() == [*[False] * 6, True, True]
    assert watching(1).names.among([True, 1]).tolist() == [False, True]


def test_arrays_of_ids_and_dead_letters_that_are_sent_again_are_found():
    assert watching(3).names.among(np.arange(5)).tolist() == [False, False, False, True, False]
    assert watching("Redriven(letter_id=9)").names.among([Redriven(8), Redriven(9)]).tolist() == [False, True]


def test_a_text_of_a_long_or_blank_id_is_found():
    long, blanks = "x" * 500, "a  b"
    many = [long, "x", long + "x"]
    assert watching(short_repr(long)).names.among(many).tolist() == [True, False, True]
    assert watching(searched_id(long)).names.among(many).tolist() == [True, False, False]
    assert watching(long).names.among(many).tolist() == [True, False, False]
    assert watching(short_repr(blanks)).names.among([blanks, "a b", "ab"]).tolist() == [True, True, False]


def test_an_id_whose_repr_raises_or_that_has_no_hash_stops_nothing():
    class Hostile:
        def __repr__(self):
            raise ValueError("no")

    assert watching("a").names.among([Hostile(), ["list"], "a"]).tolist() == [False, False, True]
    assert watching(["list"]).names.among([Hostile(), ["list"]]).tolist() == [False, True]


@pytest.mark.parametrize("named", ["order 17", 7, b"x y", ("a", "b c"), "x" * 500])
def test_plain_ids_are_looked_up_without_their_texts_whatever_is_watched(named, monkeypatch):
    names = watching(named).names

    def refused(message_id):
        raise AssertionError(f"the text of {message_id!r} was asked for")

    monkeypatch.setattr(watched_ids, "short_repr", refused)
    monkeypatch.setattr(watched_ids, "searched_id", refused)
    assert not names.among(["order 18", 8, b"z z", "y" * 500]).any()


def test_of_a_long_id_the_whole_text_is_made_only_where_its_beginning_is_that_of_a_watched_one():
    class Long:
        def __init__(self, text):
            self.text, self.asked = text, 0

        def __repr__(self):
            self.asked += 1
            return self.text

    watched, alike, other = (Long(text) for text in ("x" * 500, "x" * 501, "y" * 500))
    names = watching(watched).names
    watched.asked = 0
    assert names.among([watched, alike, other]).tolist() == [True, False, False]
    assert (watched.asked, alike.asked, other.asked) == (3, 3, 1)


def test_a_repr_that_is_a_text_of_its_own_kind_stops_nothing():
    class Text(str):
        __slots__ = ()

        def encode(self, *given):
            raise RuntimeError("no")

    class Hostile:
        def __repr__(self):
            return Text("x" * 500)

    assert watching(searched_id(Hostile())).names.among([Hostile(), "a"]).tolist() == [True, False]


def test_a_text_that_is_no_literal_is_an_id_of_its_own():
    for text in ("(" * 150, "1+", "__import__('os')", "\0", "x" * 100_000, "[" * 100_000):
        assert watching(text).names.among([text, "x"]).tolist() == [True, False]


def test_each_is_watched_until_its_time_is_over():
    clock = Clock()
    watched = watching("a", secs=2.0, clock=clock)
    watched.add(["b"], 1.0)
    assert watched.secs_left == {"a": 2.0, "b": 1.0}
    clock.now_ms = 999
    assert watched.names.among(["a", "b"]).tolist() == [True, True]
    clock.now_ms = 1_000
    assert watched.names.among(["a", "b"]).tolist() == [True, False]
    assert watched.secs_left == {"a": 1.0}
    watched.add(["a"], 5.0)
    clock.now_ms = 5_999
    assert watched.names.among(["a"]).all()
    clock.now_ms = 6_000
    assert watched.names is None
    assert watched.secs_left == {}


def test_a_bounded_number_is_watched_at_a_time_and_what_is_over_makes_room():
    clock = Clock()
    watched = watching(*range(MOST_WATCHED), clock=clock)
    watched.add([0, 1, 2], 1.0)  # the same ones
    with pytest.raises(MisuseError, match="101 messages would be watched"):
        watched.add([0, "new"], 9.0)
    assert "new" not in watched.secs_left
    assert watched.secs_left["0"] == 1.0
    clock.now_ms = 1_000
    watched.add(["new"], 1.0)
    assert watched.secs_left == {"new": 1.0}


@pytest.mark.parametrize(
    ("given", "secs", "said"),
    [
        ("abc", 1, "no list"), (b"abc", 1, "no list"), (7, 1, "no list"), ([], 1, "no message id"),
        (["a", None], 1, "without an id"), (["a"], 0, "no time"), (["a"], -1, "no time"),
        (["a"], float("nan"), "no time"), (["a"], 86_401, "no time"), (["a"], float("inf"), "no time"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_refused(given, secs, said):
    watched = WatchedIds()
    with pytest.raises(MisuseError, match=said):
        watched.add(given, secs)
    assert watched.names is None


def test_names_come_and_go_while_spouts_ask():
    watched, errors = WatchedIds(), []

    def ask():
        try:
            for _ in range(5_000):
                names = watched.names
                assert names is None or names.among(["a", "b"]).any()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        watched.add(["a"], 0.001)
        watched.add(["b"], 0.001)
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("rate", [0.0, 0.001, 1.0])
def test_a_watched_message_is_marked_at_any_rate(rate):
    marker = TraceMarks(lambda: rate, None, None, lambda: watching("b").names)
    mark = CHOSEN if rate == 1 else 0  # at a rate of 1 all are traced
    assert marker.put_on(None, ["a", "b"], np.arange(1, 3), 0).tolist() == [mark | 1, CHOSEN | 1]
    assert rate == 1 or marker.put_on(None, ["a", "c"], np.arange(1, 3), 0) is None


class Seven:
    def __repr__(self):
        return "7"


def test_ids_that_are_shown_alike_are_told_apart_and_what_is_shown_can_be_watched():
    clock = [0]
    watched = WatchedIds(lambda: clock[-1])
    long = [b"a" * 100 + bytes([letter]) + b"a" * 100 for letter in b"bc"]
    for secs, message_id in enumerate(["7", 7, "'7'", Seven(), *long], 1):
        watched.add([message_id], secs)
    left = watched.secs_left
    assert (left["7"], left["'7'"], left["\"'7'\""], left["7 (Seven 2)"]) == (2.0, 1.0, 3.0, 4.0)
    assert sorted(left.values()) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    again = WatchedIds(lambda: clock[-1])
    again.add(["'7'"], 1)
    assert again.names.among(["7", 7]).tolist() == [True, False]


def test_an_id_that_is_shown_as_no_other_is_shown_as_it_was_named():
    watched = WatchedIds(lambda: 0)
    watched.add(["7", "line 8", 9], 1)
    assert watched.secs_left.keys() == {"7", "line 8", "9"}
