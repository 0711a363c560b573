"""What a child tells by a traceback is an error of that name, with what, where and how to mend it."""

from __future__ import annotations

import pickle
import traceback

import pytest

from acktree import BoltError
from acktree.multilang.told import ToldError, told_error
from acktree.pystorm.exceptions import ComponentTypeError
from acktree.streamparse import Bolt, Spout, Topology, load
from acktree.tasks.failures import failure_of
from acktree.testing import FeederSpout, LocalCluster

WHERE = "component 'count', task 1"


class OwnError(Exception):
    """Of a user's module."""


def told(raised, first="Python {} raised while processing Tuple Tuple(id='7')\n"):
    """As a child of pystorm tells of it."""
    try:
        raise raised
    except type(raised) as error:
        return told_error(first.format(type(error).__name__) + traceback.format_exc(), WHERE)


@pytest.mark.parametrize(
    ("raised", "name", "what"),
    [
        (TypeError("no such operand"), "TypeError", "no such operand"),
        (KeyError("a: b"), "KeyError", "'a: b'"),
        (ValueError(), "ValueError", "an exception without a text"),
        (ValueError("two\nlines: of it"), "ValueError", "two\nlines: of it"),
        (OwnError("mine"), "OwnError", "mine"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), "UnicodeDecodeError", "'utf-8' codec can't decode"),
    ],
)
def test_it_is_named_as_in_the_child(raised, name, what):
    error = pickle.loads(pickle.dumps(told(raised)))
    assert type(error).__name__ == name
    assert isinstance(error, BoltError)
    assert error.what.startswith(what)
    assert error.where == f"{WHERE}, while processing Tuple Tuple(id='7')"
    failure = failure_of(error, "count")
    assert failure.reason.startswith(f"{name}: {what}")
    assert "raise raised" in failure.traceback
    assert failure.exception_types[0] == f"{type(raised).__module__}.{name}"


def test_an_error_of_ours_has_its_own_three_parts_and_pythons_name():
    error = told(ComponentTypeError("no list", "emit('a')", "write emit([value])"))
    assert type(error).__name__ == "TypeError"
    assert (error.what, error.where, error.fix) == ("no list", "emit('a')", "write emit([value])")


def test_a_traceback_alone_tells_as_much():
    error = told(TypeError("no such operand"), first="")
    assert (type(error).__name__, error.where) == ("TypeError", WHERE)


@pytest.mark.parametrize(
    "text", ["", "it broke", "TypeError: no traceback", "Traceback (most recent call last):\n  only lines\n"]
)
def test_what_has_no_traceback_tells_of_no_exception(text):
    assert told_error(text, WHERE) is None


def test_one_kind_of_error_is_one_class():
    assert type(told(TypeError("a"))) is type(told(TypeError("b")))
    assert issubclass(type(told(TypeError("a"))), ToldError)


class Words(Spout):
    outputs = ["word"]


class Adding(Bolt):
    outputs = ["word"]
    config = {"acktree.process": True}
    exit_on_exception = False

    def process(self, tup):
        if tup.values[0] == "text":
            self.emit("a text")
        self.emit([tup.values[0] + 1])


class AddingTopology(Topology):
    words = Words.spec()
    count = Adding.spec(inputs=[words])


def test_errors_of_a_python_child_have_their_names():
    feeder = FeederSpout(["word"])
    with LocalCluster() as cluster:
        running = cluster.submit(load(AddingTopology, replace={"words": feeder}).topology)
        for at, word in enumerate(["a", "text", 1]):
            feeder.feed([word], message_id=at)
        cluster.advance(0)
        reasons = [error.reason for error in running.errors]
    assert feeder.acked == [2]
    assert len(reasons) == 2
    assert reasons[0].startswith('TypeError: can only concatenate str (not "int") to str\n  where: component')
    assert reasons[1].startswith("TypeError: the values of a tuple are str, and must be a list or tuple\n")
    assert reasons[1].endswith("fix:   write emit([value])")
