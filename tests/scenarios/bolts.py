"""Bolts that do what the tuple says. Workers import this module: nothing here may need a test library.

A tuple of a scenario has one field, ``program``: a list of words, done one after the other. ``"ack"`` acks
the tuple, ``("emit", program)`` emits a program for the next bolt, anchored to it; see :meth:`Does.do`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from acktree import Bolt, TopologyBuilder
from acktree.errors import MisuseError
from tests.scenarios.runner import SOURCE

Program = list[Any]


class BoomError(Exception):
    """What a program raises."""


ERRORS = {
    "BoomError": BoomError("as scripted"),
    "ValueError": ValueError("a value"),
    "KeyError": KeyError("a key"),
    "OSError": OSError(5, "input/output"),
    "AssertionError": AssertionError("a test's own"),
    "StopIteration": StopIteration("from next()"),
}


class Does(Bolt):
    """Does what its tuple says."""

    outputs = ["program"]

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        for word in tup["program"]:
            name, *arguments = [word] if isinstance(word, str) else word
            self.do(name, tup, *arguments)

    def do(self, word: str, tup: Any, argument: Any = None) -> None:
        """Do one word of a program."""
        match word:
            case "ack":
                self.collector.ack(tup)
            case "try ack":
                with suppress(MisuseError):
                    self.collector.ack(tup)
            case "fail":
                self.collector.fail(tup, argument or "by hand")
            case "raise":
                raise ERRORS[argument or "BoomError"]
            case "emit":
                self.collector.emit([argument], anchors=tup)
            case "emit twice anchored":
                self.collector.emit([argument], anchors=[tup, tup])
            case "emit loose":
                self.collector.emit([argument])
            case "reset":
                self.collector.reset_timeout(tup)
            case "report":
                self.collector.report_error(BoomError("only reported"))
            case _:
                raise AssertionError(f"no such word: {word}")


class Holds(Does):
    """Does what its tuple says, and can hold tuples from one micro-batch to the next."""

    remembers = ["held"]

    def prepare(self, config, context, collector):
        super().prepare(config, context, collector)
        self.held = []

    def do(self, word, tup, argument=None):
        match word:
            case "hold":
                self.held.append(tup)
            case "emit joined":  # anchored to all that is held, and to this one
                self.collector.emit([argument], anchors=[*self.held, tup])
            case "emit held":  # anchored to the first that is held, which stays
                self.collector.emit([argument], anchors=self.held[0])
            case "ack held":
                for held in self.held:
                    self.collector.ack(held)
                self.held = []
            case "fail held":
                for held in self.held:
                    self.collector.fail(held, "held and failed")
                self.held = []
            case _:
                super().do(word, tup, argument)


class HoldsAndTicks(Holds):
    """At its n-th tick does word n to each tuple that it holds; "" does nothing."""

    tick_secs = 1
    remembers = ["held", "ticks"]

    def __init__(self, *words: str) -> None:
        self.words = words

    def prepare(self, config, context, collector):
        super().prepare(config, context, collector)
        self.ticks = 0

    def tick(self, tup):
        word = self.words[self.ticks] if self.ticks < len(self.words) else ""
        self.ticks += 1
        for held in list(self.held) if word else ():
            super().do(word, held)
            if word in {"ack", "fail"}:
                self.held.remove(held)


def chain(builder: TopologyBuilder) -> None:
    """source -> a -> b -> c: by a shuffle, by fields, to the lowest task."""
    builder.set_bolt("a", Does(), parallelism=2).shuffle_grouping(SOURCE)
    builder.set_bolt("b", Does(), parallelism=2).fields_grouping("a", ["program"])
    builder.set_bolt("c", Does()).global_grouping("b")


def holding(builder: TopologyBuilder) -> None:
    """source -> hold -> after: ``hold`` has one task, which may hold tuples."""
    builder.set_bolt("hold", Holds()).global_grouping(SOURCE)
    builder.set_bolt("after", Does(), parallelism=2).shuffle_grouping("hold")


def ticking(*words: str):
    """source -> hold: holds tuples, and does a word to each at every tick."""

    def build(builder: TopologyBuilder) -> None:
        builder.set_bolt("hold", HoldsAndTicks(*words)).global_grouping(SOURCE)

    return build


class Forgets(Does):
    """Does nothing at all."""

    def execute(self, tup):
        pass


class Passes(Does):
    """Emits what it gets, anchored, and acks it."""

    def execute(self, tup):
        self.collector.emit([tup["program"]], anchors=tup)
        self.collector.ack(tup)


class Joins(Does):
    """Joins the two tuples that carry the same program, emits it anchored to both, and acks both."""

    remembers = ["waiting"]

    def prepare(self, config, context, collector):
        super().prepare(config, context, collector)
        self.waiting = {}

    def execute(self, tup):
        other = self.waiting.pop(repr(tup["program"]), None)
        if other is None:
            self.waiting[repr(tup["program"])] = tup
            return
        self.collector.emit([tup["program"]], anchors=[other, tup])
        self.collector.ack(other)
        self.collector.ack(tup)


class TriesAgain(Does):
    """Holds the first tuple. Acks it when a second attempt comes, which it forgets; acks the rest."""

    remembers = ["first"]

    def prepare(self, config, context, collector):
        super().prepare(config, context, collector)
        self.first = None

    def execute(self, tup):
        if self.first is None:
            self.first = tup
        elif tup.attempt == 2:
            self.collector.ack(self.first)
        else:
            self.collector.ack(tup)


def joining(builder: TopologyBuilder) -> None:
    """source -> left, right -> join -> does: every message goes two ways and meets itself again."""
    builder.set_bolt("left", Passes(), parallelism=2).shuffle_grouping(SOURCE)
    builder.set_bolt("right", Passes()).fields_grouping(SOURCE, ["program"])
    builder.set_bolt("join", Joins()).global_grouping("left").global_grouping("right")
    builder.set_bolt("does", Does()).shuffle_grouping("join")


def trying_again(builder: TopologyBuilder) -> None:
    """source -> hold."""
    builder.set_bolt("hold", TriesAgain()).global_grouping(SOURCE)
