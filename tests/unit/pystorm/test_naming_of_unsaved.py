"""What a component of pystorm has that may hold data and is not saved is named."""

from __future__ import annotations

import functools
import io
import queue
import sqlite3
import threading
import types
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.pystorm.one_task import Checkpoint, Counting, holding, lines


class Guarded:
    __slots__ = ("lock", "n")

    def __init__(self):
        self.lock, self.n = threading.Lock(), 0


def a_closure(bolt):
    counts = bolt.counts
    return lambda word: counts.update([word])


def adding(step):
    return lambda n: n + step


def a_nonlocal(_):
    n = 0

    def more():
        nonlocal n
        n += 1

    return more


def of_defaults(_):
    return lambda word, seen=[]: seen.append(word)


def a_wrapped(_):
    return functools.partial(lambda seen, word: seen.append(word), [])


HOLDERS = {
    "slots": lambda _: Guarded(),
    "namespace": lambda _: types.SimpleNamespace(lock=threading.Lock(), n=0),
    "queue": lambda _: queue.Queue(),
    "simple queue": lambda _: queue.SimpleQueue(),
    "local": lambda _: threading.local(),
    "weak": lambda _: weakref.WeakValueDictionary(),
    "proxy": lambda _: types.MappingProxyType({}),
    "view": lambda bolt: bolt.counts.keys(),
    "cached": lambda _: functools.lru_cache(lambda n: n),
    "map": lambda _: map(adding(1), [1]),
    "closure": a_closure,
    "nonlocal": a_nonlocal,
    "defaults": of_defaults,
    "partial": a_wrapped,
    "method": lambda _: Guarded().__init__,
    "tuple": lambda _: (threading.Lock(), 0),
}
HARMLESS = {
    "lock": lambda _: threading.Lock(),
    "condition": lambda _: threading.Condition(),
    "event": lambda _: threading.Event(),
    "connection": lambda _: sqlite3.connect(":memory:"),
    "cursor": lambda _: sqlite3.connect(":memory:").cursor(),
    "pool": lambda _: ThreadPoolExecutor(1),
    "module": lambda _: types,
    "function": lambda _: lambda word: word.upper(),
    "closure over settings": lambda bolt: adding(5),
    "closure over the component": lambda bolt: lambda word: bolt.counts.update([word]),
    "method": lambda bolt: functools.partial(bolt.fail),
    "weak reference": weakref.ref,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_may_hold_data_and_is_not_saved_is_named(name, caplog):
    Checkpoint().run(holding(HOLDERS[name])).batch("a").batch("b", moves=True)
    (line,) = lines(caplog)
    assert line.startswith("component 'count': held is not saved, for it cannot be pickled")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_holds_no_data_is_not_named(name, caplog):
    Checkpoint().run(holding(HARMLESS[name])).batch("a").batch("b", moves=True)
    assert lines(caplog) == []


def test_a_weak_reference_to_what_is_saved_is_named(caplog):
    Checkpoint().run(holding(lambda bolt: weakref.ref(bolt.counts))).batch("a")
    assert "holds a part of counts, which is saved" in lines(caplog)[0]


def test_a_pool_that_was_given_a_part_of_what_is_saved_is_named_with_it(caplog):
    def make(bolt):
        bolt.tables = {"words": Counter()}
        words = bolt.tables["words"]
        return ThreadPoolExecutor(1, initializer=words.update, initargs=(["a"],))

    Checkpoint().run(holding(make)).batch("a")
    (line,) = lines(caplog)
    assert "held is not saved" in line
    assert "holds a part of tables, which is saved" in line
    assert "Let it look up self.tables" in line


OPENED = []


def test_a_generator_and_an_open_file_are_named_with_their_position_and_a_buffer_is_data(caplog, tmp_path):
    (tmp_path / "lines").write_text("one")

    class Reading(Counting):
        def initialize(self, storm_conf, context):
            super().initialize(storm_conf, context)
            self.numbers = (n for n in range(5))
            self.lines = (tmp_path / "lines").open()
            OPENED.append(self.lines)
            self.buffer = io.BytesIO()

        def process(self, tup):
            self.buffer.write(tup.values[0].encode())

    run = Checkpoint().run(Reading).batch("a").batch("b", moves=True)
    assert run.attributes["buffer"].getvalue() == b"ab"
    names = [line.removeprefix("component 'count': ").partition(" ")[0] for line in lines(caplog)]
    assert names == ["lines", "numbers"]
    assert "at its own position" in lines(caplog)[0]
    for opened in OPENED:
        opened.close()


def test_a_name_in_remembers_that_no_attribute_has_is_named(caplog):
    class Misspelt(Counting):
        remembers = ["totl"]

    Checkpoint().run(Misspelt).batch("a")
    (line,) = lines(caplog)
    assert line.startswith("component 'count': totl is named by remembers, and the component has no such")
