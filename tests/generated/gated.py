"""Topologies with gates as plain data, and what must be left of them: said by a model that replays nothing.

What a component does is a function of the path of a tuple and of its attempt. Attempts of a message may emit
different tuples, so what an attempt that failed has emitted is known by its path wherever it turns up. Or
attempts fail by chance; then every attempt emits the same tuples, and each must count once.

Workers import this module: nothing here may need a test library.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from acktree import ArrowBolt, BasicBolt, Bolt, KeyValueState, Retry, Sink, Topology, TopologyBuilder
from acktree.testing import FeederSpout

FIELDS = ["path", "word"]
OUTPUTS = {"default": FIELDS, "side": FIELDS, "memory": ["task", "found"]}
DUMP = "dump"
"""The path of the question that is asked at the end: what a bolt remembers."""
LOOSE = "loose"
"""The spout of messages without an id: it can have no ``Retry``."""
ONCE = ("basic once", "async once", "flush once", "arrow once")
NEVER = 99
ATTEMPTS = 3


@dataclass(frozen=True)
class Read:
    """An input of a component."""

    source: str
    stream: str
    grouping: str
    gate: bool = True


@dataclass(frozen=True)
class Spec:
    """A bolt or sink: ``kind`` is basic, hand, arrow, one of :data:`ONCE`, or sink."""

    id: str
    kind: str
    parallelism: int
    inputs: tuple[Read, ...]

    @property
    def is_once(self) -> bool:
        """Whether it has gates in front."""
        return self.kind in ONCE or self.kind == "sink"


@dataclass(frozen=True)
class Fed:
    """A message: its number is its path. It is delivered ``times`` times; more than once only with a key."""

    spout: str
    word: str
    is_tracked: bool
    times: int
    batch: int


@dataclass(frozen=True)
class Gated:
    """A drawn topology. ``troubles`` is a percentage of tuples; ``by_chance``: attempts fail at random."""

    seed: int
    troubles: int
    by_chance: bool
    positions: frozenset[str]
    spouts: tuple[str, ...]
    specs: tuple[Spec, ...]
    messages: tuple[Fed, ...]

    def part(self, component: str) -> Script:
        """What a component must know."""
        return Script(self.seed, self.troubles, self.by_chance, component)


@dataclass(frozen=True)
class Script:
    """What a component does with a tuple."""

    seed: int
    troubles: int
    by_chance: bool
    component: str

    def number(self, below: int, *words: object) -> int:
        """A number that looks random and is the same whenever it is asked for again."""
        named = "|".join(map(str, (self.seed, self.component, *words))).encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest(), "little") % below

    def failures(self, path: str) -> int:
        """How many attempts fail at this tuple: the first ones."""
        if path.startswith("u") or self.number(100, "trouble", path) >= self.troubles:
            return 0
        return 0 if self.by_chance else (1, 1, 2, NEVER)[self.number(4, "failures", path)]

    def fails(self, path: str, attempt: int) -> bool:
        """Whether this attempt fails here."""
        if self.by_chance and not path.startswith("u"):
            return random.SystemRandom().random() < self.troubles / 200
        return attempt <= self.failures(path)

    def fails_for_good(self, path: str) -> bool:
        """For what knows no attempts: whether it fails each time."""
        return not self.by_chance and self.failures(path) == NEVER

    def emits(self, path: str, attempt: int) -> list[tuple[str, str, str]]:
        """(stream, path, word) of each tuple that is emitted."""
        tag = "" if self.by_chance or path.startswith("u") else f"@{attempt}"
        most = 3 if path.count(">") < 3 else 1
        count = self.number(most + 1, "fan", path, tag)
        return [
            (
                "side" if self.number(3, "stream", path, at, tag) == 0 else "default",
                f"{path}>{self.component}{at}{tag}",
                "abcdef"[self.number(6, "word", path, at, tag)],
            )
            for at in range(count)
        ]


class ScriptedError(Exception):
    """What a scripted bolt raises."""


class Basic(BasicBolt):
    """Acts by script; raises in the middle of what it emits."""

    outputs = OUTPUTS

    def __init__(self, script: Script) -> None:
        self.script = script

    def execute(self, tup: Any, collector: Any) -> None:
        path, emits = tup["path"], self.script.emits(tup["path"], tup.attempt)
        fails = self.script.fails(path, tup.attempt)
        for at, (stream, child, word) in enumerate(emits):
            if fails and at == 1:
                raise ScriptedError(path)
            collector.emit([child, word], stream=stream)
        if fails:
            raise ScriptedError(path)


class Hand(Bolt):
    """Holds tuples for a micro-batch or two, then acts by script."""

    outputs = OUTPUTS
    remembers = ["held"]
    tick_secs = 0.1

    def __init__(self, script: Script) -> None:
        self.script, self.held = script, []

    def prepare(self, config: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Any) -> None:
        # Nobody waits for an untracked tuple that is held.
        if not tup["path"].startswith("u") and self.script.number(3, "holds", tup["path"]) == 0:
            self.held = [*self.held, tup]
        else:
            self.act(tup)

    def tick(self, tup: Any) -> None:
        held, self.held = self.held, []
        for each in held:
            self.act(each)

    def act(self, tup: Any) -> None:
        """Emit, and ack or fail."""
        for stream, child, word in self.script.emits(tup["path"], tup.attempt):
            self.collector.emit([child, word], anchors=tup, stream=stream)
        if self.script.fails(tup["path"], tup.attempt):
            self.collector.fail(tup)
        else:
            self.collector.ack(tup)


class Arrow(ArrowBolt):
    """Acts by script on batches; fails rows for good."""

    outputs = OUTPUTS
    remembers: list[str] = []

    def __init__(self, script: Script) -> None:
        self.script = script

    def execute_batch(self, batch: Any, collector: Any) -> None:
        failed = []
        emitted: dict[str, list[tuple[int, str, str]]] = {}
        for row, (path, _) in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True)):
            if self.takes(row, path, collector):
                continue
            for stream, child, word in self.script.emits(path, 0):
                emitted.setdefault(stream, []).append((row, child, word))
            if self.script.fails_for_good(path):
                failed.append(row)
        for stream, rows in emitted.items():
            parents, *columns = zip(*rows, strict=True)
            out = pa.record_batch([pa.array(column) for column in columns], names=FIELDS)
            collector.emit_batch(out, parents=list(parents), stream=stream)
        collector.fail_rows(failed, "by script")

    def takes(self, row: int, path: str, collector: Any) -> bool:
        """Whether this is another's business."""
        return False


class _Remembers:
    """Counts paths in two kinds of memory."""

    remembers = ["seen", "by_word"]

    def prepare(self, config: Any, context: Any) -> None:
        self.task = context.task_id
        self.seen: dict[str, int] = {}
        self.by_word: KeyValueState[str, list[str]] = KeyValueState()

    def note(self, path: str) -> None:
        """Change both: one in place."""
        self.seen[path] = self.seen.get(path, 0) + 1
        self.by_word.setdefault(path[-1], []).append(path)

    def found(self) -> list[Any]:
        """The answer to the last question."""
        by_word = Counter(path for paths in self.by_word.values() for path in paths)
        assert by_word == Counter(self.seen), "two kinds of memory differ"
        return [str(self.task), json.dumps(self.seen)]


class BasicOnce(_Remembers, Basic):
    """An exactly-once bolt."""

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["path"] == DUMP:
            collector.emit(self.found(), stream="memory")
            return
        self.note(tup["path"])
        super().execute(tup, collector)


class AsyncOnce(BasicOnce):
    """The same, many at once."""

    async def execute(self, tup: Any, collector: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().execute(tup, collector)


class FlushOnce(BasicOnce):
    """Notes at the end of a micro-batch."""

    def prepare(self, config: Any, context: Any) -> None:
        super().prepare(config, context)
        self.paths: list[str] = []

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["path"] == DUMP:
            collector.emit(self.found(), stream="memory")
            return
        self.paths.append(tup["path"])
        Basic.execute(self, tup, collector)

    def flush(self, collector: Any) -> None:
        paths, self.paths = self.paths, []
        for path in paths:
            self.note(path)


class ArrowOnce(_Remembers, Arrow):
    """Batches, exactly once."""

    def takes(self, row: int, path: str, collector: Any) -> bool:
        if path != DUMP:
            self.note(path)
            return False
        task, found = self.found()
        out = pa.record_batch([pa.array([task]), pa.array([found])], names=OUTPUTS["memory"])
        collector.emit_batch(out, parents=[row], stream="memory")
        return True


class Dumped(BasicBolt):
    """Writes what a task remembers to a file."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def execute(self, tup: Any, collector: Any) -> None:
        file = Path(self.folder) / f"{tup.component}.{tup['task']}.json"
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(tup["found"])
        new.rename(file)


class Table(Sink):
    """Rows in SQLite with their mark. Refuses by script: some rows when they come first, some always."""

    def __init__(self, script: Script, file: str) -> None:
        self.script, self.file = script, file

    def open(self, config: Any, context: Any) -> None:
        self.writer = f"{context.checkpoint_id} {context.component_id} {context.task_id}"
        self.name = context.component_id
        self.database = sqlite3.connect(self.file, timeout=60)
        with self.database:
            self.database.execute("CREATE TABLE IF NOT EXISTS came (sink TEXT, path TEXT, refused INT)")
            self.database.execute("CREATE TABLE IF NOT EXISTS marks (writer TEXT, mark BLOB, refused TEXT)")

    def last_mark(self) -> bytes | None:
        row = self._last()
        return None if row is None else row[0]

    def _last(self) -> Any:
        query = "SELECT mark, refused FROM marks WHERE writer = ?"
        return self.database.execute(query, (self.writer,)).fetchone()

    def write(self, batch: Any, mark: bytes) -> Mapping[int, str]:
        if self.last_mark() != mark:
            with self.database:
                self.database.execute("BEGIN IMMEDIATE")
                refused = {
                    at: "by script" for at, path in enumerate(batch["path"].to_pylist()) if self.refuses(path)
                }
                self.database.execute("DELETE FROM marks WHERE writer = ?", (self.writer,))
                told = (self.writer, mark, json.dumps(refused))
                self.database.execute("INSERT INTO marks VALUES (?, ?, ?)", told)
        return {int(row): reason for row, reason in json.loads(self._last()[1]).items()}

    def refuses(self, path: str) -> bool:
        """Whether it refuses a row this time; the row is noted."""
        query = "SELECT count(*) FROM came WHERE sink = ? AND path = ?"
        [came] = self.database.execute(query, (self.name, path)).fetchone()
        is_refused = self.script.fails(path, came + 1)
        self.database.execute("INSERT INTO came VALUES (?, ?, ?)", (self.name, path, is_refused))
        return is_refused

    def close(self) -> None:
        self.database.close()


_KINDS = {
    "basic": Basic, "hand": Hand, "arrow": Arrow,
    "basic once": BasicOnce, "async once": AsyncOnce, "flush once": FlushOnce, "arrow once": ArrowOnce,
}  # fmt: skip


def build(drawn: Gated, folder: Path) -> tuple[Topology, dict[str, FeederSpout]]:
    """A topology and its spouts, that of the last question among them."""
    retry = Retry(100 if drawn.by_chance else ATTEMPTS, backoff_secs=(0.01, 0.01))
    builder = TopologyBuilder("gated")
    spouts = {name: FeederSpout(FIELDS, redelivers=name not in drawn.positions) for name in drawn.spouts}
    spouts[DUMP] = FeederSpout(FIELDS)
    for name, spout in spouts.items():
        builder.set_spout(name, spout, retry=None if name == LOOSE else retry)
    dumped = builder.set_bolt("dumped", Dumped(str(folder)))
    for spec in drawn.specs:
        script = drawn.part(spec.id)
        if spec.kind == "sink":
            declarer: Any = builder.set_sink(
                spec.id, Table(script, str(folder / "table.db")), spec.parallelism, retry=retry
            )
        elif spec.is_once:
            declarer = builder.set_bolt(
                spec.id, _KINDS[spec.kind](script), spec.parallelism, exactly_once=True, retry=retry
            )
            declarer.all_grouping(DUMP, gate=False)
            dumped.shuffle_grouping(spec.id, stream="memory")
        else:
            declarer = builder.set_bolt(spec.id, _KINDS[spec.kind](script), spec.parallelism)
        for read in spec.inputs:
            add = getattr(declarer, f"{read.grouping}_grouping")
            further = [["word"]] if read.grouping in {"fields", "partial_key"} else []
            gate = {} if read.gate else {"gate": False}
            add(read.source, *further, stream=read.stream, **gate)
    return builder.create_topology(), spouts


def feed(drawn: Gated, spouts: Mapping[str, FeederSpout], batch: int) -> None:
    """Feed the messages of one batch; one that is delivered again comes in later batches too."""
    for number, message in enumerate(drawn.messages):
        for time in range(message.times):
            if message.batch + time * (number % 2) != batch:
                continue
            path = f"{'m' if message.is_tracked else 'u'}{number}"
            keyed = {"key": path} if message.times > 1 else {}
            message_id = (number, time) if message.is_tracked else None
            spouts[message.spout].feed([path, message.word], message_id=message_id, **keyed)


BATCHES = 6
"""Messages are fed in three, and delivered up to three times."""


@dataclass
class Left:
    """What is left in the end.

    Attributes:
        memory: How often each exactly-once bolt remembers each path.
        rows: How often each sink has each path.
        acked: The numbers of the messages that were ACKED.
    """

    memory: Counter[tuple[str, str]]
    rows: Counter[tuple[str, str]]
    acked: set[int]

    def differences(self, seen: Left) -> list[str]:
        """What of this was not seen, in words."""
        found = (
            [f"ACKED is {sorted(seen.acked)}, not {sorted(self.acked)}"] if seen.acked != self.acked else []
        )
        for what, mine, other in (("memory", self.memory, seen.memory), ("rows", self.rows, seen.rows)):
            found += [f"{what}: {which} is missing {n} times" for which, n in (mine - other).items()]
            found += [f"{what}: {which} is there {n} times too often" for which, n in (other - mine).items()]
        return found


Staged = list[tuple[Spec, Read, str]]


class Model:
    """What must be left. Each message that is ACKED counts once, by the attempt that was ACKED."""

    def __init__(self, drawn: Gated) -> None:
        self._drawn = drawn
        self._specs = {spec.id: spec for spec in drawn.specs}
        self._most = 1 if drawn.by_chance else ATTEMPTS
        self.left = Left(Counter(), Counter(), set())
        self.size = 0
        for number, message in enumerate(drawn.messages):
            path = f"{'m' if message.is_tracked else 'u'}{number}"
            readers = [*self._readers(message.spout, "default")]
            if self._runs(message.spout, path, readers) and message.is_tracked:
                self.left.acked.add(number)

    def _readers(self, source: str, stream: str) -> Iterator[tuple[Spec, Read]]:
        for spec in self._drawn.specs:
            for read in spec.inputs:
                if (read.source, read.stream) == (source, stream):
                    yield spec, read

    def _is_once(self, component: str) -> bool:
        return component in self._specs and self._specs[component].is_once

    def _runs(self, source: str, path: str, readers: Sequence[tuple[Spec, Read]]) -> bool:
        """A message for some readers, of which some have gates: its attempts until one is ACKED."""
        for attempt in range(1, self._most + 1):
            staged: Staged = []
            reached = [self._reaches(source, *reader, path, attempt, staged) for reader in readers]
            if all(reached):  # each is walked, whatever failed before
                for passed in staged:
                    self._passes(*passed)
                return True
        return False

    def _reaches(
        self, source: str, spec: Spec, read: Read, path: str, attempt: int, staged: Staged,
        *, is_answer: bool = False,
    ) -> bool:  # fmt: skip
        """A copy of a tuple at a reader, in the tree of its message; whether nothing failed in it."""
        self.size += 1
        if (spec.is_once and read.gate) or (self._is_once(source) and not is_answer):
            staged.append((spec, read, path))
            return True
        copies = spec.parallelism if read.grouping == "all" else 1
        acted = [self._acts(spec, path, attempt, staged, is_question=spec.is_once) for _ in range(copies)]
        return all(acted)

    def _acts(self, spec: Spec, path: str, attempt: int, staged: Staged, *, is_question: bool) -> bool:
        script = self._drawn.part(spec.id)
        is_arrow = spec.kind.startswith("arrow")
        fails = (
            script.fails_for_good(path) if is_arrow else not script.by_chance and script.fails(path, attempt)
        )
        if fails and not (is_arrow or spec.kind == "hand"):
            return False
        results = [
            self._reaches(spec.id, reader, read, child, attempt, staged, is_answer=is_question)
            for stream, child, _ in script.emits(path, 0 if is_arrow else attempt)
            for reader, read in self._readers(spec.id, stream)
        ]
        return all(results) and not fails

    def _passes(self, spec: Spec, read: Read, path: str) -> None:
        """A message of a gate; its reader is the spec."""
        is_question = spec.is_once and not read.gate
        script = self._drawn.part(spec.id)
        if spec.kind == "sink":
            if self._drawn.by_chance or script.failures(path) < self._most:
                self.left.rows[spec.id, path] += 1
            return
        for attempt in range(1, self._most + 1):
            staged: Staged = []
            if self._acts(spec, path, attempt, staged, is_question=is_question):
                if spec.is_once and not is_question:
                    self.left.memory[spec.id, path] += 1
                for passed in staged:
                    self._passes(*passed)
                return


def found(drawn: Gated, folder: Path, spouts: Mapping[str, FeederSpout]) -> Left:
    """What was left by an engine."""
    memory = Counter[tuple[str, str]]()
    for file in folder.glob("*.json"):
        name = file.name.split(".")[0]
        for path, times in json.loads(file.read_text()).items():
            memory[name, path] += times
    rows = Counter[tuple[str, str]]()
    if (folder / "table.db").exists():
        database = sqlite3.connect(folder / "table.db")
        rows.update(database.execute("SELECT sink, path FROM came WHERE NOT refused").fetchall())
        database.close()
    acked = {number for name in drawn.spouts for number, _ in spouts[name].acked}
    return Left(memory, rows, acked)


def topology(seed: int, largest: int = 400) -> Gated:
    """A topology of 3 to 6 components and 12 messages, the same for the same seed."""
    chance = random.Random(seed)
    while True:
        drawn = _drawn(chance, seed)
        model = Model(drawn)
        if model.size <= largest and model.left.memory and model.left.acked:
            return drawn


_TO_ONE = ("shuffle", "local_or_shuffle", "none", "fields", "partial_key", "global")


def _drawn(chance: random.Random, seed: int) -> Gated:
    spouts = chance.choice((("spout0",), ("spout0", "spout1"), ("spout0", LOOSE)))
    specs: list[Spec] = []
    for name in chance.sample("pqrstu", chance.randint(3, 6)):
        readable = [*spouts, *(spec.id for spec in specs if spec.kind != "sink")]
        kind = chance.choice(["basic", "hand", "arrow", "sink", *ONCE, *ONCE])
        inputs: dict[tuple[str, str], Read] = {}
        for source in [readable[-1], *chance.choices(readable, k=chance.randint(0, 2))]:
            stream = "default" if source in spouts else chance.choice(["default", "default", "side"])
            gate = kind not in ONCE or chance.random() < 0.7
            source_is_once = any(spec.id == source and spec.kind in ONCE for spec in specs)
            is_gated = source_is_once or kind == "sink" or (kind in ONCE and gate)
            grouping = chance.choice(_TO_ONE if is_gated else (*_TO_ONE, "all"))
            inputs[source, stream] = Read(source, stream, grouping, gate)
        specs.append(Spec(name, kind, chance.randint(1, 3), tuple(inputs.values())))
    by_chance = chance.random() < 0.25
    positions = frozenset(name for name in spouts if chance.random() < 0.5)
    messages = tuple(
        Fed(
            spout := chance.choice(spouts),
            chance.choice("abc"),
            is_tracked := spout != LOOSE,
            chance.choice((1, 1, 2, 3)) if is_tracked else 1,
            chance.randrange(3),
        )
        for _ in range(12)
    )
    troubles = chance.choice((0, 10, 25, 40))
    return Gated(seed, troubles, by_chance, positions, spouts, tuple(specs), messages)
