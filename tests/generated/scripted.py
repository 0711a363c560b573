"""Topologies as plain data, and components that act by script.

What a component does with a tuple is a pure function of the tuple's values and the component's part: of no
task, no order, no time. So every engine that keeps its promises must do the same with the same data, and a
program that knows nothing of engines can say beforehand what that is (``tracker.py``).

Workers import this module: nothing here may need a test library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from acktree import ArrowBolt, BasicBolt, Bolt, CustomGrouping, KeyValueState
from acktree.testing import FeederSpout

FIELDS = ["path", "key", "depth", "extra"]
STREAMS = ["default", "side", "direct"]
OUTPUTS = dict.fromkeys(STREAMS, FIELDS)

Values = tuple[str, str, int, object]


@dataclass(frozen=True)
class Profile:
    """How troublesome the components are: percentages, and the most children of a tuple."""

    fan_out: int = 3
    fail: int = 0
    forget: int = 0
    throw: int = 0
    loose: int = 0
    refuse: int = 0


@dataclass(frozen=True)
class Input:
    """What a bolt reads, and how it is shared out among its tasks."""

    source: str
    stream: str
    grouping: str


@dataclass(frozen=True)
class BoltSpec:
    """A bolt: ``kind`` is basic, hand, arrow or join."""

    id: str
    kind: str
    parallelism: int
    inputs: tuple[Input, ...]


@dataclass(frozen=True)
class Message:
    """What a spout is fed: its number in all is its path and its message id. ``batch``: when it is fed."""

    spout: str
    key: str
    is_tracked: bool
    batch: int


@dataclass(frozen=True)
class Drawn:
    """A topology and its messages. Sources come before the bolts that read them."""

    seed: int
    profile: Profile
    spouts: tuple[str, ...]
    bolts: tuple[BoltSpec, ...]
    messages: tuple[Message, ...]

    def to_json(self) -> str:
        """For keeping; :meth:`from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Drawn:
        """Read what :meth:`to_json` wrote."""
        data = json.loads(text)
        bolts = tuple(
            BoltSpec(bolt["id"], bolt["kind"], bolt["parallelism"], tuple(Input(**i) for i in bolt["inputs"]))
            for bolt in data["bolts"]
        )
        messages = tuple(Message(**message) for message in data["messages"])
        return cls(data["seed"], Profile(**data["profile"]), tuple(data["spouts"]), bolts, messages)

    def part(self, component: str) -> Part:
        """What a component must know to play its part."""
        readers = tuple(
            (bolt.id, bolt.parallelism)
            for bolt in self.bolts
            for read in bolt.inputs
            if (read.source, read.stream) == (component, "direct")
        )
        # Arrow has one type for a column, so where an ArrowBolt may read, values are plain.
        is_odd = all(bolt.kind != "arrow" for bolt in self.bolts)
        return Part(self.seed, self.profile, component, readers, is_odd)


@dataclass(frozen=True)
class Emit:
    """One tuple to be emitted.

    ``anchoring`` is input, twice or none; ``target`` is (bolt, task index) if it is emitted directly.
    """

    stream: str
    values: Values
    anchoring: str
    target: tuple[str, int] | None


@dataclass(frozen=True)
class Turn:
    """What is done with one tuple: emits, then an end: ack, fail, forget, throw or throw_after_ack."""

    emits: tuple[Emit, ...]
    end: str


@dataclass(frozen=True)
class Part:
    """A component's part in the play."""

    seed: int
    profile: Profile
    component: str
    readers: tuple[tuple[str, int], ...]
    is_odd: bool

    def number(self, below: int, *words: object) -> int:
        """A number that looks random and is the same whenever it is asked for again."""
        named = "|".join(map(str, (self.seed, self.component, *words))).encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest(), "little") % below

    def happens(self, percent: int, *words: object) -> bool:
        """Whether something happens that happens so often."""
        return self.number(100, *words) < percent

    def turn(self, kind: str, values: Sequence[Any]) -> Turn:
        """What a bolt of this kind does with a tuple."""
        path, _, depth = values[:3]
        end = "ack"
        if kind != "basic" and self.happens(self.profile.fail, "fail", path):
            end = "fail"
        elif kind == "hand" and self.happens(self.profile.forget, "forget", path):
            end = "forget"
        elif kind in {"basic", "hand"} and self.happens(self.profile.throw, "throw", path):
            end = "throw"
            if self.number(3, "early", path) == 0:
                return Turn((), end)
            if kind == "hand" and self.number(2, "acked", path):
                end = "throw_after_ack"
        emits = self.emits(path, depth)
        if kind == "basic":
            emits = tuple(Emit(e.stream, e.values, "input", e.target) for e in emits)
        if kind == "arrow":
            emits = tuple(
                Emit("side" if e.stream == "direct" else e.stream, e.values, e.anchoring, None) for e in emits
            )
        return Turn(emits, end)

    def emits(self, path: str, depth: int) -> tuple[Emit, ...]:
        """What is emitted for a tuple, or for a group of joined ones."""
        most = min(self.profile.fan_out, max(1, 5 - 2 * depth))
        count = 1 + self.number(most, "fan", path) if most and not self.happens(15, "none", path) else 0
        return tuple(self.emit(f"{path}>{self.component}.{index}", depth + 1) for index in range(count))

    def emit(self, path: str, depth: int) -> Emit:
        """One tuple, named by its path: where it goes and what it hangs on."""
        stream = ("default", "default", "default", "side", "direct")[self.number(5, "stream", path)]
        target = None
        if stream == "direct" and not self.readers:
            stream = "side"
        if stream == "direct":
            bolt, tasks = self.readers[self.number(len(self.readers), "reader", path)]
            target = bolt, self.number(tasks, "task", path)
        anchoring = "none" if self.happens(self.profile.loose, "loose", path) else "input"
        if anchoring == "input" and self.number(5, "twice", path) == 0:
            anchoring = "twice"
        values = (path, "abc"[self.number(3, "key", path)], depth, self.extra(path))
        return Emit(stream, values, anchoring, target)

    def extra(self, path: str) -> object:
        """A value of some type."""
        odd = (None, True, 7, 1.5, "é", (1, "a"), b"\xff", 2**70, [1, 2], {"a": 1}, frozenset({1}))
        return odd[self.number(len(odd), "extra", path)] if self.is_odd else "x"

    def members_of(self, path: str, count: int) -> list[int]:
        """Which of the sorted members of a joined group a tuple hangs on: all, some, or none of them."""
        if self.happens(self.profile.loose, "loose", path):
            return []
        chosen = [at for at in range(count) if self.number(4, "member", at, path)]
        return chosen + chosen[:1] if self.number(3, "again", path) == 0 else chosen

    def end_of_member(self, path: str) -> str:
        """Whether a joined tuple is acked, failed or forgotten."""
        if self.happens(self.profile.fail, "fail", path):
            return "fail"
        return "forget" if self.happens(self.profile.forget, "forget", path) else "ack"

    def copies(self, reader: str, targets: int, path: str) -> list[int] | None:
        """Which tasks (from 0) the custom grouping of a reader names; None: it raises."""
        if self.happens(self.profile.refuse, "refuse", reader, path):
            return None
        kind = self.number(5, "copies", reader, path)
        one = self.number(targets, "chosen", reader, path)
        return [[], [one], [one, one], list(range(targets)), [one]][kind]


class ScriptedGrouping(CustomGrouping):
    """Names tasks by script: none, one, one twice, all; or raises."""

    def __init__(self, part: Part, reader: str) -> None:
        self.part, self.reader = part, reader

    def prepare(self, context, stream, target_task_ids):
        self.targets = target_task_ids

    def choose_tasks(self, task_id, values):
        chosen = self.part.copies(self.reader, len(self.targets), values[0])
        if chosen is None:
            raise LookupError(f"no task for {values[0]}")
        return [self.targets[index] for index in chosen]


class ScriptedSpout(FeederSpout):
    """A feeder that emits by script."""

    def __init__(self, part: Part) -> None:
        super().__init__(OUTPUTS)
        self.part = part

    def open(self, config, context, collector):
        super().open(config, context, collector)
        self.context = context

    def next_tuple(self):
        if not self._fed or self._fed[0][2] != "direct":
            super().next_tuple()
            return
        values, message_id, *_ = self._fed.popleft()
        bolt, index = self.part.emit(values[0], 0).target
        task = self.context.task_ids(bolt)[index]
        self._collector.emit_direct(task, values, message_id=message_id, stream="direct")


def message_values(part: Part, number: int, message: Message) -> tuple[str, Values]:
    """The stream and the values that a message is emitted with."""
    emit = part.emit(f"m{number}", 0)
    path, _, depth, extra = emit.values
    return emit.stream, (path, message.key, depth, extra)


class ScriptedError(Exception):
    """What a scripted bolt raises."""


class ScriptedBasic(BasicBolt):
    """Acts by script; acked or failed by itself."""

    outputs = OUTPUTS

    def __init__(self, part: Part) -> None:
        self.part = part

    def prepare(self, config, context):
        self.context = context

    def execute(self, tup, collector):
        turn = self.part.turn("basic", tup.values)
        for emit in turn.emits:
            if emit.target:
                task = self.context.task_ids(emit.target[0])[emit.target[1]]
                collector.emit_direct(task, emit.values, stream="direct")
            else:
                collector.emit(emit.values, stream=emit.stream)
        if turn.end == "throw":
            raise ScriptedError(tup["path"])


class ScriptedHand(Bolt):
    """Acts by script, acks by hand."""

    outputs = OUTPUTS

    def __init__(self, part: Part) -> None:
        self.part = part

    def prepare(self, config, context, collector):
        self.context, self.collector = context, collector

    def execute(self, tup):
        turn = self.part.turn("hand", tup.values)
        for emit in turn.emits:
            self.emit(emit, {"input": tup, "twice": [tup, tup], "none": None}[emit.anchoring])
        if turn.end in {"ack", "throw_after_ack"}:
            self.collector.ack(tup)
        elif turn.end == "fail":
            self.collector.fail(tup, tup["path"])
        if turn.end.startswith("throw"):
            raise ScriptedError(tup["path"])

    def emit(self, emit, anchors):
        """Emit one tuple, directly or not."""
        if emit.target:
            task = self.context.task_ids(emit.target[0])[emit.target[1]]
            self.collector.emit_direct(task, emit.values, stream="direct", anchors=anchors)
        else:
            self.collector.emit(emit.values, anchors=anchors, stream=emit.stream)


class ScriptedJoin(ScriptedHand):
    """Holds tuples until all of their key are there, then emits tuples that hang on several of them."""

    remembers = ["waiting", "groups"]

    def __init__(self, part: Part, expected: Mapping[str, int]) -> None:
        super().__init__(part)
        self.expected = expected

    def prepare(self, config, context, collector):
        super().prepare(config, context, collector)
        # Half of the joins keep their tuples in a state by key, changed in place; half in a plain dict.
        self.waiting = KeyValueState() if self.part.number(2, "state") else {}
        self.groups = 0

    def execute(self, tup):
        group = self.waiting.setdefault(tup["key"], [])
        group.append(tup)
        if len(group) < self.expected[tup["key"]]:
            return
        del self.waiting[tup["key"]]
        self.groups += 1
        group.sort(key=lambda member: member["path"])
        for emit in self.part.emits(joined_path(group), max(member["depth"] for member in group)):
            chosen = self.part.members_of(emit.values[0], len(group))
            self.emit(emit, [group[at] for at in chosen] or None)
        for member in group:
            end = self.part.end_of_member(member["path"])
            if end == "ack":
                self.collector.ack(member)
            elif end == "fail":
                self.collector.fail(member, member["path"])


def joined_path(group: Sequence[Any]) -> str:
    """The path of a joined group, sorted; each member shows its path as its first value."""
    return f"[{'&'.join(member[0] for member in group)}]"


class ScriptedArrow(ArrowBolt):
    """Acts by script on whole batches."""

    outputs = OUTPUTS

    def __init__(self, part: Part) -> None:
        self.part = part

    def execute_batch(self, batch, collector):
        emitted: dict[tuple[str, bool], list[tuple[int, Values]]] = {}
        failed = []
        for row, values in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True)):
            turn = self.part.turn("arrow", values)
            for emit in turn.emits:
                emitted.setdefault((emit.stream, emit.anchoring != "none"), []).append((row, emit.values))
            if turn.end == "fail":
                failed.append(row)
        for (stream, is_anchored), rows in emitted.items():
            rows.reverse()  # parents in no order are allowed
            columns = zip(*(values for _, values in rows), strict=True)
            out = pa.record_batch([pa.array(column) for column in columns], names=FIELDS)
            parents = [row for row, _ in rows] if is_anchored else None
            collector.emit_batch(out, parents=parents, stream=stream)
        collector.fail_rows(failed, "by script")
