from __future__ import annotations

import threading

import cloudpickle
import pytest

from acktree.bolt import ArrowBolt, BasicBolt, BasicOutputCollector, Bolt
from acktree.errors import MisuseError, TopologyError
from acktree.function_bolt import bolt


class Kept(BasicOutputCollector):
    def __init__(self):
        self.emitted = []

    def emit(self, values, stream="default"):
        self.emitted.append((list(values), stream))

    def emit_direct(self, task_id, values, stream="default"):
        raise NotImplementedError

    def reset_timeout(self):
        raise NotImplementedError

    def report_error(self, exception):
        raise NotImplementedError


@bolt(outputs=["word"])
def split(tup):
    """The words of a line."""
    for word in tup["line"].split():
        yield [word]


def emitted(function, tup):
    collector = Kept()
    bolt(outputs=["word"])(function).execute(tup, collector)
    return [values for values, _ in collector.emitted]


@pytest.mark.parametrize("kind", [Bolt, BasicBolt, ArrowBolt])
def test_a_bolt_without_its_work_cannot_be_made_and_all_else_is_optional(kind):
    with pytest.raises(TypeError, match="execute"):
        type("Half", (kind,), {})()
    whole = type("Whole", (kind,), {"execute": lambda *a: None, "execute_batch": lambda *a: None})()
    assert tuple(whole.outputs) == ()
    assert tuple(whole.remembers) == ()
    assert whole.cleanup() is None


def test_the_hooks_that_are_not_overridden_do_nothing():
    by_hand = type("A", (Bolt,), {"execute": lambda *a: None})()
    basic = type("B", (BasicBolt,), {"execute": lambda *a: None})()
    assert by_hand.tick_secs is None
    assert basic.tick_secs is None
    assert by_hand.prepare(None, None, None) is None
    assert by_hand.tick(None) is None
    assert basic.prepare(None, None) is None
    assert basic.tick(None, None) is None


def test_a_generator_is_a_bolt_that_emits_what_it_yields():
    collector = Kept()
    split.execute({"line": "a b"}, collector)
    assert collector.emitted == [(["a"], "default"), (["b"], "default")]
    assert isinstance(split, BasicBolt)
    assert split.outputs == ["word"]


def test_a_function_may_return_a_list_of_value_lists_or_nothing():
    assert emitted(lambda tup: [["a"], ("b",)], None) == [["a"], ["b"]]
    assert emitted(lambda tup: [], None) == []
    assert emitted(lambda tup: None, None) == []


def test_what_was_yielded_before_an_exception_is_kept():
    @bolt(outputs=["word"])
    def breaks(tup):
        yield ["a"]
        raise ValueError("no")

    collector = Kept()
    with pytest.raises(ValueError, match="no"):
        breaks.execute(None, collector)
    assert [values for values, _ in collector.emitted] == [["a"]]


@pytest.mark.parametrize("wrong", ["word", ["word"], 5, [5], [{"word": 1}], [None]], ids=repr)
def test_a_result_that_is_no_list_of_value_lists_is_reported_with_the_fix(wrong):
    with pytest.raises(MisuseError, match="not a list of values") as caught:
        emitted(lambda tup: wrong, None)
    assert "yield [word]" in caught.value.fix
    assert len(str(caught.value).splitlines()) == 3


def test_a_decorated_function_can_still_be_called_and_read():
    assert list(split({"line": "a b"})) == [["a"], ["b"]]
    assert split.__doc__ == "The words of a line."
    assert repr(split) == "@bolt split"


def test_a_decorated_function_travels():
    again = cloudpickle.loads(cloudpickle.dumps(split))
    assert list(again({"line": "a b"})) == [["a"], ["b"]]
    assert again.outputs == ["word"]


def test_a_builtin_without_a_signature_is_accepted():
    assert bolt()(iter).function is iter


@pytest.mark.parametrize(
    ("decorate", "says"),
    [
        (lambda: bolt(lambda tup: None), "without parentheses"),
        (lambda: bolt()(threading.Thread), "not a function"),
        (lambda: bolt()(5), "not a function"),
        (lambda: bolt()(lambda: None), "called with one tuple"),
        (lambda: bolt()(lambda tup, collector: None), "called with one tuple"),
    ],
)
def test_what_cannot_be_a_bolt_is_refused_where_it_is_decorated(decorate, says):
    with pytest.raises(TopologyError) as caught:
        decorate()
    assert says in caught.value.what
    assert len(str(caught.value).splitlines()) == 3
