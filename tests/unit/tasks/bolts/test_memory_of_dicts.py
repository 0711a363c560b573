"""A dict of plain values is pickled in a shorter way, with the same result."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict
from types import SimpleNamespace

import pytest

from acktree import KeyValueState
from acktree.core.state.store import MemoryStore
from acktree.tasks.bolts.memory import TaskMemory


class OwnText(str):
    """Not exactly a str, so it may hold what a str does not."""

    __slots__ = ()


def of_a_class_that_only_travels_by_value():
    class OwnDict(dict):
        """Plain pickle does not find it."""

    return OwnDict(a=1)


LOOK_ALIKES = [
    {"int": 1, "float": 0.5, "bool": True, "text": "ä", "bytes": b"b", "none": None, "complex": 2j},
    {1: "a", 2.5: "b", None: "c", b"d": "d", "e": "e"},
    {},
    Counter("aab"),
    OrderedDict(b=1, a=2),
    defaultdict(int, a=1),
    of_a_class_that_only_travels_by_value(),
    {"a": OwnText("b")},
    {OwnText("a"): "b"},
    {"a": {"b": [1]}},
]


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=repr)
def test_a_dict_comes_back_as_what_it_was_types_and_order_and_all(value):
    store = MemoryStore()
    for turn in range(2):
        remembering = SimpleNamespace(
            table=copy.deepcopy(value) if turn == 0 else None, state=KeyValueState()
        )
        memory = TaskMemory(["table", "state"], store, None)
        memory.restore(remembering)
        if turn == 0:
            remembering.state.update(value)
            memory.save(remembering)
    table, state = remembering.table, dict(remembering.state)
    assert type(table) is type(value)
    assert list(table.items()) == list(value.items())
    for found in (table, state):
        assert {repr(key): type(key) for key in found} == {repr(key): type(key) for key in value}
        assert {key: type(found[key]) for key in found} == {key: type(value[key]) for key in value}
