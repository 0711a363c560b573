"""Orders and questions are read strictly: no value is converted by a guess, no filter is left out unseen."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ConfigError, MisuseError
from acktree.cli.main import main
from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.ui import letters
from acktree.ui.client import find
from acktree.ui.known_names import FILTERS, ORDERS, QUESTIONS, order_of, read_order, read_question
from acktree.ui.places import entries
from tests.unit.dead_letters.letters import LETTER

LARGE = 1 << 63
NUMBERS = st.integers() | st.floats()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=3)
    | st.sampled_from(["1", "1_2", "true", "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NAMED = [(order, name) for order, kinds in ORDERS.items() for name in kinds]
TYPES = {
    "component": str, "spout": str, "topology": str, "kind": str, "cause": str, "on": bool, "all": bool,
    "label": str, "reason": str, "exception": str,
    "expected_count": int, "before": int, "since": int, "ids": list, "message_ids": list, "reset": list,
    "set": dict, "rate": float, "secs": float, "percent": float, "wait_secs": float,
}  # fmt: skip


@given(st.sampled_from(NAMED), VALUES)
def test_a_value_is_of_the_type_that_an_order_takes_and_equal_to_what_was_given_or_refused(named, value):
    order, name = named
    try:
        read = read_order(order, {name: value})
    except ConfigError:
        return  # the values that must be refused are below
    if name not in read:
        assert value is None
        assert not order.startswith("dead-letters") or name not in FILTERS
    elif name in ("redriven", "settled"):
        assert read[name] is {"true": True, "false": False}.get(str(value).lower())
    elif name in ("before", "since"):
        assert read[name] == max(1 - LARGE, min(LARGE - 1, value))
    elif name == "set":
        assert read[name].keys() == value.keys()
    else:
        assert type(read[name]) is TYPES[name]
        assert read[name] == value
        assert type(value) is not bool or TYPES[name] is bool
        json.dumps(read, ensure_ascii=False).encode()


@pytest.mark.parametrize("order", ["redrive", "purge"])
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("value", ["", None])
def test_a_filter_without_a_value_is_refused(order, name, value):
    with pytest.raises(ConfigError, match=f"{name} has no value") as refused:
        read_order(f"dead-letters/{order}", {"expected_count": 1, name: value})
    assert '"all": true' in refused.value.fix


@pytest.mark.parametrize(
    ("question", "name"),
    [(each, name) for each, names in QUESTIONS.items() for name in names if name not in ("limit", "after")],
)
def test_a_question_whose_filter_is_empty_is_refused(question, name):
    with pytest.raises(ConfigError, match=f"{name} has no value"):
        read_question(question, {name: ""})


@given(st.integers(1 - LARGE, LARGE - 1), st.lists(st.integers(0, LARGE - 1), min_size=1, max_size=4))
def test_a_query_has_numbers_by_their_digits(number, ids):
    assert read_question("traces", {"root": str(number)}) == {"root": number}
    assert read_question("dead-letters", {"ids": ",".join(map(str, ids))}) == {"ids": ids}


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "1.0", "\u0661", "1e3", "0x1", "1,", "--1", str(LARGE)])
def test_what_only_python_takes_for_a_number_is_none_in_a_query(text):
    for question, name in (("traces", "root"), ("dead-letters", "ids"), ("trace-of", "edge")):
        with pytest.raises(ConfigError, match="is no "):
            read_question(question, {name: text})


def store_of(count):
    store = DeadLetters(IN_MEMORY)
    store.put([replace(LETTER, root=root, component="b") for root in range(1, count + 1)])
    return store


WRONG_ORDERS = [
    {"ids": [1.9]}, {"ids": [True]}, {"ids": ["1_2"]}, {"ids": ["1"]}, {"ids": "1"}, {"ids": {"5": 0}},
    {"ids": [LARGE]}, {"ids": [None]}, {"ids": 5}, {"all": True, "expected_count": inf},
    {"all": True, "expected_count": 3.7}, {"all": True, "expected_count": "3"},
    {"all": True, "expected_count": True}, {"all": 1, "expected_count": 3},
    {"all": True, "expected_count": nan},
    {"component": "", "settled": False, "expected_count": 3}, {"component": None, "settled": False},
    {"component": 5, "expected_count": 0}, {"component": ["b"], "expected_count": 3},
    {"component": "b\ud800", "expected_count": 0}, {"settled": 0, "expected_count": 3},
    {"since": "0", "expected_count": 3}, {"before": 1e15, "expected_count": 3}, {"since": True},
]  # fmt: skip


@pytest.mark.parametrize("order", WRONG_ORDERS, ids=repr)
def test_a_wrong_order_about_letters_deletes_none(order):
    with store_of(3) as store:
        with pytest.raises((ConfigError, MisuseError)):
            letters.purge(store, order)
        assert len(store) == 3


@given(st.dictionaries(st.sampled_from([*FILTERS, "all", "expected_count"]), VALUES, max_size=4))
def test_an_order_deletes_what_it_names_and_nothing_else(order):
    """A letter is deleted if it is among the ids, or matches each filter and the count is right."""
    with store_of(3) as store:
        with suppress(ConfigError, MisuseError):
            letters.purge(store, order)
        gone = {1, 2, 3} - {letter.id for letter in store}
        if gone and "ids" in order:
            assert type(order["ids"]) is list
            assert gone <= {each for each in order["ids"] if type(each) is int}
        elif gone:
            assert (type(order["expected_count"]), order["expected_count"]) == (int, 3)
            assert all(order[name] not in ("", None) for name in order if name in FILTERS)


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"5", b"{", b"null", b'"{}"', b'{"message_ids": ["\\ud800"]}', b'{"a": {"\\udfff": 1}}',
        b'{"a": "\xed\xa0\x80"}', b'{"a": "\xff"}', b"[" * 100_000, b'{"a": ' + b"9" * 5_000 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_object_or_has_a_lone_surrogate_is_no_order(body):
    with pytest.raises(ValueError):  # noqa: PT011  # the reasons are of json
        order_of(body)


@pytest.mark.parametrize(
    "body", [b'{"ids":[1],"ids":[2]}', b'{"set":{"a":{"level":"INFO","level":"DEBUG"}}}']
)
def test_a_name_that_is_given_twice_is_no_order(body):
    with pytest.raises(ValueError, match="is given twice"):
        order_of(body)


WRONG = [
    ("trace", {"rate": "0.5"}, "no number"), ("trace", {"rate": True}, "no number"),
    ("trace", {"message_ids": ["\ud800"]}, "cannot be read"), ("trace", {"message_ids": "ab"}, "no list"),
    ("trace", {"message_ids": [1.5]}, "no list"),
    ("trace", {"message_ids": ["a"], "secs": "9"}, "no time to watch"),
    ("debug", {"percent": "10"}, "no number"), ("debug", {"percent": True}, "no number"),
    ("debug", {"component": 7}, "no text"), ("debug", {"on": 1}, "no truth value"),
    ("kill", {"wait_secs": True}, "no number of seconds"),
    ("kill", {"wait_secs": "5"}, "no number of seconds"),
    ("log-levels", {"set": {"acktree": "DEBUG"}}, "no object of levels"),
    ("log-levels", {"set": {"acktree": {"level": "DEBUG", "secs": "5"}}}, "no object of levels"),
    ("log-levels", {"reset": "acktree"}, "no list of loggers"),
    ("dead-letters/purge", {"ids": [1.9]}, "no list of numbers"),
    ("dead-letters/redrive", {"all": True, "expected_count": 1e999}, "no count"),
    ("dead-letters/purge", {"component": "", "expected_count": 4}, "component has no value"),
]  # fmt: skip


@pytest.mark.parametrize("order", WRONG, ids=lambda order: f"{order[0]} {order[1]}")
def test_the_drivers_socket_refuses_a_wrong_value_with_its_reason_and_logs_it(running, caplog, order):
    name, body, reason = order
    (entry,) = entries()
    sent = json.dumps(body).encode()
    with socket.socket(socket.AF_UNIX) as connection, caplog.at_level("INFO", "acktree"):
        connection.connect(entry.socket)
        connection.sendall(
            b"POST /v1/%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (name.encode(), len(sent)) + sent
        )
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, said = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 400")
    assert reason in json.loads(said)["error"]
    [line] = [each.getMessage() for each in caplog.records if f"order={name} " in each.getMessage()]
    assert "outcome=refused: " in line
    assert reason in line
    assert running.handle.is_running
    assert len(running.letters) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["dead-letters", "purge", "T", "--settled", "false", "--component", "", "--yes"],
        ["dead-letters", "redrive", "T", "--spout=", "--yes"],
        ["dead-letters", "export", "T", "out.jsonl", "--component", ""],
        ["dead-letters", "list", "T", "--kind", ""],
        ["dead-letters", "list", "T", "--store", ""],
        ["dead-letters", "purge", "T", "1", "", "--yes"],
        ["kill", ""],
        ["reset-state", "cp", "--component", ""],
        ["rebalance", ""],
        ["trace", "T", "--component", ""],
        ["run", "t.py", "--checkpoint", ""],
    ],
    ids=" ".join,
)
def test_a_command_with_an_empty_value_is_refused_before_anything_is_done(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "has no value" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1_0", "+5", " 7", "\u0665", "1.0", "1e2"])
@pytest.mark.parametrize(
    "command",
    [["dead-letters", "show", "T"], ["dead-letters", "list", "T", "--after"], ["open", "T", "--limit"],
     ["rebalance", "cp", "--partitions"]],
    ids=" ".join,
)  # fmt: skip
def test_a_number_of_a_command_is_its_digits(command, number, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, number])
    assert ended.value.code == 2
    assert "is no" in capsys.readouterr().err


def test_a_question_in_another_encoding_is_refused_and_not_asked_as_another_one(running):
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        find("numbers").door.get("dead-letters", {"component": "b\udcff"})
