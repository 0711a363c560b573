"""Which pickles are read before they are saved: those with objects of classes that may refuse."""

from __future__ import annotations

import copyreg
import pickle
from dataclasses import dataclass

import pytest

from acktree.pystorm.forms import UnreadableError, pickled_and_read


@dataclass
class Plain:
    number: int
    name: str = ""


class Slots:
    __slots__ = ("number",)


class OwnEqual:
    __hash__ = None

    def __eq__(self, other):
        raise AssertionError

    def __init__(self):
        self.me = [self]


def slots(number):
    made = Slots()
    made.number = number
    return made


@pytest.mark.parametrize(
    "value", [Plain(1, "a"), {"a": [Plain(1)]}, slots(1), OwnEqual(), {Slots(): Plain(2)}]
)
def test_objects_that_python_reads_by_itself_are_not_read_before_they_are_saved(value, monkeypatch):
    loads = pickle.loads
    monkeypatch.setattr(pickle, "loads", None)
    data = pickled_and_read(value, object())
    assert type(loads(data)) is type(value)


class TwoArgumentsError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


class Asking:
    """A proxy: it asks for an attribute that it has not yet."""

    def __init__(self):
        self.target = 1

    def __getattr__(self, name):
        return getattr(self.target, name)


class AskingAlways:
    def __init__(self):
        self.target = 1

    def __getattribute__(self, name):
        if name == "__setstate__":
            raise ValueError(name)
        return object.__getattribute__(self, name)


class Hashed:
    def __init__(self):
        self.key = "key"
        self.of_itself = {self: 1}

    def __hash__(self):
        return hash(self.key)


class OddState:
    def __getstate__(self):
        return 7


class Refusing:
    def __init__(self):
        self.number = 1

    def __setstate__(self, state):
        raise ValueError(state)


class Unset:
    __slots__ = ("number",)

    def __setattr__(self, name, value):
        raise ValueError(name)


class Reducing:
    def __reduce__(self):
        return int, ("no number",)


class ReducingEx:
    def __reduce_ex__(self, protocol):
        return int, ("no number",)


class Arguments:
    def __new__(cls, number):
        return super().__new__(cls)


class Given:
    def __getnewargs__(self):
        return (1, 2)


class GivenByName:
    def __getnewargs_ex__(self):
        return (), {"number": 1}


class Closed(dict):
    def __setitem__(self, key, value):
        raise ValueError(key)


class Registered:
    pass


copyreg.pickle(Registered, lambda _: (int, ("no number",)))


def unset():
    made = Unset()
    object.__setattr__(made, "number", 1)
    return made


UNREADABLE = [
    TwoArgumentsError(1, 2), Asking(), AskingAlways(), Hashed(), OddState(), Refusing(), unset(), Reducing(),
    ReducingEx(),
    Arguments(1), Given(), GivenByName(), Closed(a=1), Registered(), [Plain(1), Refusing()],
]  # fmt: skip


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: type(value).__name__)
def test_objects_of_classes_that_refuse_are_found_before_they_are_saved(value):
    with pytest.raises(UnreadableError):
        pickled_and_read(value, object())
