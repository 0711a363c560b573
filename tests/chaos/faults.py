"""Exceptions raised at any opcode of the engine, while user code calls it; and a naive model to compare with.

A run is one short program of a bolt (or a spout) that emits, acks, fails and uses its memory. It is run once
to count the opcodes of the engine's Python code, then again and again, each time with an exception at one of
them: as a timer's signal, MemoryError or KeyboardInterrupt may come. The program catches it and goes on, or
lets it through. What left the task is compared with what the program knows it did: a call that returned has
happened, one that was interrupted has happened whole or not at all.

``python -m benchmarks faults`` runs it; a short one is in ``tests/unit/tasks/bolts/test_interruptions.py``.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import xor
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, Final

import pyarrow as pa

import acktree
from acktree import ArrowBolt, BasicBolt, Bolt, Config, KeyValueState, TopologyBuilder
from acktree.core.data.frames import Frame
from acktree.core.data.values import decode_rows
from acktree.core.state.store import MemoryStore
from acktree.core.tracking.lineage import Sparse
from acktree.tasks.bolts.bolt_tasks import bolt_task
from acktree.tasks.bolts.outputs.level_outputs import Outputs
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.collector import SpoutCollector
from acktree.testing import FeederSpout
from tests.unit.tasks.bolts.bolt_harness import Calls

ENGINE: Final = str(Path(acktree.__file__).parent)
KEYS: Final = 300
STATE_CALLS: Final = ("get", "set", "del", "scan", "len", "get many", "set many")
_SCHEMA: Final = pa.schema([("tag", pa.string()), ("n", pa.int64())])
STREAMS: Final = {"default": _SCHEMA, "other": _SCHEMA, "direct": _SCHEMA}
Op = tuple[str, int, int]
"""What to do, to which tuple, and a number: of the emission, or a key."""


class LateError(Exception):
    """What the library of a user's timer raises."""


RAISED: Final = (LateError, MemoryError, KeyboardInterrupt)


class Interrupter:
    """Counts the engine's opcodes in this thread while it is on, and raises at one of them."""

    def __init__(self, at: int = -1, kind: type[BaseException] = LateError) -> None:
        self.at, self.kind, self.count, self.has_raised = at, kind, 0, False

    def __enter__(self) -> None:
        if not self.has_raised:
            self._off = _on_opcodes(self._step)

    def __exit__(self, *_: object) -> None:
        self._off()

    def _step(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.has_raised = True
            raise self.kind("from outside")

    @staticmethod
    def _off() -> None:
        """Stop counting; nothing was begun."""


def _trace_opcodes(step: Callable[[], None]) -> Callable[[], None]:
    """Call ``step`` before each opcode of the engine, in this thread. Gives what ends it."""

    def called(frame: FrameType, _event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return stepped

    def stepped(_frame: FrameType, event: str, _arg: object) -> Any:
        if event == "opcode":
            step()
        return stepped

    before = sys.gettrace()  # a tool that measures coverage has one
    sys.settrace(called)
    return partial(sys.settrace, before)


def _monitor_opcodes(step: Callable[[], None]) -> Callable[[], None]:
    """The same from Python 3.12 on, where tracing opcodes a second time misses most of them."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool, thread = monitoring.DEBUGGER_ID, threading.get_ident()

    def stepped(code: CodeType, _offset: int) -> object:
        if not code.co_filename.startswith(ENGINE):
            return monitoring.DISABLE
        if threading.get_ident() == thread:
            step()
        return None

    def off() -> None:
        if monitoring.get_tool(tool) is not None:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

    monitoring.use_tool_id(tool, "faults")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, stepped)
    monitoring.restart_events()
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    return off


_on_opcodes: Final = _monitor_opcodes if sys.version_info >= (3, 12) else _trace_opcodes


@dataclass
class Script:
    """What the bolt does in one micro-batch, and what it knows it did.

    Attributes:
        ops: For each row what to do.
        catches: Whether the bolt catches what comes from outside, and goes on.
        emitted: Number of an emission -> the rows (by tag) that it was anchored to, and its stream.
        sure: Numbers of the emissions that returned.
        said: (what, tag) of acks and fails that returned; ``tried`` of those that were interrupted.
        state: Key -> the values it may have.
    """

    interrupter: Interrupter
    ops: dict[str, list[Op]]
    catches: bool
    state: dict[int, set[Any]]
    emitted: dict[int, tuple[frozenset[str], str]] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)
    said: list[tuple[str, str]] = field(default_factory=list)
    tried: list[tuple[str, str]] = field(default_factory=list)
    raised: set[str] = field(default_factory=set)
    wrong_reads: int = 0


class _Now:
    """The script at hand: a bolt is pickled, so its script is set from outside."""

    script: Script
    keys = KEYS


def perform(bolt: Any, tup: Any, collector: Any, tag: str) -> None:
    """Do what the script says for one tuple."""
    script = _Now.script
    for op in script.ops.get(tag, ()):
        what = (op[0], tag if op[1] < 0 or not bolt.held else bolt.held[op[1] % len(bolt.held)][0])
        try:
            do(bolt, tup, collector, tag, op)
        except BaseException:
            script.tried.append(what)
            if not script.catches:
                script.raised.add(tag)
                raise


def do(bolt: Any, tup: Any, collector: Any, tag: str, op: Op) -> None:  # one branch for each call
    script, (name, which, number) = _Now.script, op
    held = bolt.held[which % len(bolt.held)] if which >= 0 and bolt.held else None
    target_tag, target = (tag, tup) if held is None else held
    interrupter, by_hand = script.interrupter, isinstance(bolt, Bolt)
    if name in {"emit", "other", "direct", "join"}:
        anchored = {target_tag} | ({tag, *(each for each, _ in bolt.held)} if name == "join" else set())
        if not by_hand:
            anchored = {tag}
        stream = {"other": "other", "direct": "direct"}.get(name, "default")
        script.emitted[number] = frozenset(anchored), stream
        anchors = [tup, *(each for _, each in bolt.held)] if name == "join" else target
        extra = {"anchors": anchors} if by_hand else {}
        values = [",".join(sorted(anchored)), number]
        with interrupter:
            if name == "direct":
                collector.emit_direct(bolt.reader, values, stream=stream, **extra)
            else:
                collector.emit(values, stream=stream, **extra)
        script.sure.add(number)
    elif name in {"ack", "fail"}:
        if by_hand:
            with interrupter:
                getattr(collector, name)(target)
            script.said.append((name, target_tag))
            if held is not None:
                bolt.held.remove(held)
    elif name == "reset":
        with interrupter:
            collector.reset_timeout(*([target] if by_hand else []))
    else:
        use_state(bolt.state, name, number, script)


def use_state(state: Any, name: str, key: int, script: Script) -> None:
    may = script.state.setdefault(key, {None})
    if name == "get":
        with script.interrupter:
            found = state.get(key)
        script.wrong_reads += found not in may
    elif name == "len":
        with script.interrupter:
            count = len(state)
        unsure = sum(len(each) > 1 and None in each for each in script.state.values())
        least = sum(None not in each for each in script.state.values())
        script.wrong_reads += not least <= count <= least + unsure
    elif name == "scan":
        with script.interrupter:
            keys = set(state)
        script.wrong_reads += any(
            (each in keys) not in {value is not None for value in values}
            for each, values in script.state.items()
        )
    elif name == "set":
        may |= {("new", key)}
        with script.interrupter:
            state[key] = ("new", key)
        script.state[key] = {("new", key)}
    elif name == "get many":
        both = [key, key + 1]
        with script.interrupter:
            values = state.get_many(both)
        script.wrong_reads += any(
            value not in script.state.get(each, {None}) for each, value in zip(both, values, strict=True)
        )
    elif name == "set many":
        both = [key, key + 1]
        for each in both:
            script.state.setdefault(each, {None})
            script.state[each] |= {("new", each)}
        with script.interrupter:
            state.update_many(both, [("new", each) for each in both])
        for each in both:
            script.state[each] = {("new", each)}
    elif name == "del" and key in state:
        may |= {None}
        with script.interrupter:
            del state[key]
        script.state[key] = {None}


class Hand(Bolt):
    outputs = STREAMS
    remembers = ["held", "state"]

    def prepare(self, config: Any, context: Any, collector: Any) -> None:
        self.collector, self.reader = collector, context.task_ids("reader")[0]
        self.held, self.state = [], KeyValueState({key: ("old", key) for key in range(_Now.keys)})

    def execute(self, tup: Any) -> None:
        tag = tup["tag"]
        if tag.startswith("hold"):
            self.held.append((tag, tup))
        elif tag == "finish":
            finish(self)
            self.collector.ack(tup)
        else:
            perform(self, tup, self.collector, tag)


def finish(bolt: Hand) -> None:
    """The last micro-batch: everything that is held is emitted from and acked."""
    script = _Now.script
    for number, (tag, tup) in enumerate(bolt.held):
        script.emitted[900 + number] = frozenset({tag}), "default"
        try:
            bolt.collector.emit([tag, 900 + number], anchors=tup)
            bolt.collector.ack(tup)
            script.said.append(("ack", tag))
        except acktree.MisuseError:  # an interrupted ack or fail had happened
            script.tried.append(("ack", tag))
    bolt.held = []


class Basic(BasicBolt):
    outputs = STREAMS
    remembers = ["state"]
    held = ()

    def prepare(self, config: Any, context: Any) -> None:
        self.reader = context.task_ids("reader")[0]
        self.state = KeyValueState({key: ("old", key) for key in range(_Now.keys)})

    def execute(self, tup: Any, collector: Any) -> None:
        perform(self, tup, collector, tup["tag"])


class Batches(ArrowBolt):
    outputs = STREAMS
    remembers = ["state"]

    def prepare(self, config: Any, context: Any) -> None:
        self.state = KeyValueState({key: ("old", key) for key in range(_Now.keys)})

    def execute_batch(self, batch: Any, collector: Any) -> None:
        script, tags = _Now.script, batch["tag"].to_pylist()
        if tags == ["finish"]:
            return
        for row, tag in enumerate(tags):
            for name, _, number in script.ops.get(tag, ()):
                try:
                    self.do(name, row, tag, number, collector, script)
                except BaseException:
                    script.tried.append((name, tag))
                    if not script.catches:
                        script.raised |= set(tags)
                        raise

    def do(self, name: str, row: int, tag: str, number: int, collector: Any, script: Script) -> None:
        if name in {"emit", "other", "direct", "join"}:
            script.emitted[number] = frozenset({tag}), "default"
            batch = pa.record_batch({"tag": [tag], "n": [number]})
            with script.interrupter:
                collector.emit_batch(batch, [row])
            script.sure.add(number)
        elif name == "fail":
            with script.interrupter:
                collector.fail_rows([row], "no")
            script.said.append(("fail", tag))
        elif name in STATE_CALLS:
            use_state(self.state, name, number, script)


KINDS: Final = {"hand": Hand, "basic": Basic, "arrow": Batches}


class Rig:
    """One task of one kind of bolt, run micro-batch by micro-batch.

    Attributes:
        traces_save: Whether the save at the end of a micro-batch is interrupted too.
    """

    traces_save = True

    def __init__(self, kind: str, keys: int = KEYS) -> None:
        builder = TopologyBuilder("faults")
        builder.set_spout("source", FeederSpout({"default": pa.schema([("tag", pa.string())])}))
        builder.set_bolt("it", KINDS[kind]()).global_grouping("source")
        reader = builder.set_bolt("reader", Calls(print)).global_grouping("it")
        reader.global_grouping("it", stream="other").direct_grouping("it", stream="direct")
        self.kind, self.keys = kind, keys
        self.plan = Plan.of(builder.create_topology(), Config(), 1, 5)
        self.component = self.plan.topology.components["it"]
        (self.task,) = self.component.task_ids
        self.roots: dict[str, int] = {}
        self.before: dict[str, bytes] = {}
        _Now.script = self.script(Interrupter(), {})
        self.before = self.run(["hold-0", "hold-1"], MemoryStore())[1].blobs

    def script(self, interrupter: Interrupter, ops: dict[str, list[Op]], *, catches: bool = True) -> Script:
        _Now.keys = self.keys
        return Script(interrupter, ops, catches, {key: {("old", key)} for key in range(self.keys)})

    def root(self, tag: str) -> int:
        return self.roots.setdefault(tag, 1000 + 7919 * len(self.roots))

    def run(self, tags: list[str], store: MemoryStore) -> tuple[Outputs, MemoryStore]:
        """One micro-batch. What it raises leaves the level: Spark would run it again."""
        lineage = Sparse.of_anchors([{self.root(tag): self.root(tag) * 31 + 7} for tag in tags], {})
        values = pa.record_batch({"tag": tags})
        frame = Frame("source", "default", "it", 1, 0, self.task, values, lineage)
        outputs = Outputs(self.plan, 0, self.plan.level_of["it"], 0)
        task = bolt_task(self.component, self.task, outputs, store)
        task.run(frame)
        if self.traces_save:
            with _Now.script.interrupter:
                task.finish()
        else:
            task.finish()
        return outputs, store

    def try_one(
        self, ops: dict[str, list[Op]], interrupter: Interrupter, found: Counter[str], *, catches: bool
    ) -> None:
        """One micro-batch with an exception from outside, and one that ends it; breaches are counted."""
        script = _Now.script = self.script(interrupter, ops, catches=catches)
        store = MemoryStore()
        store.blobs = dict(self.before)
        tags = [*ops]
        try:
            outputs, store = self.run(tags, store)
        except BaseException:
            if not interrupter.has_raised:
                raise
            found["micro-batches run again"] += 1
            script = _Now.script = self.script(Interrupter(), ops)
            store = MemoryStore()
            store.blobs = dict(self.before)
            outputs, store = self.run(tags, store)
        script.interrupter = Interrupter()
        kept = script.state
        last, store = self.run(["finish"], store)
        self.compare(script, tags, [outputs, last], found)
        self.compare_state(kept, script, outputs, tags, store, found)

    def compare(self, script: Script, tags: list[str], several: list[Outputs], found: Counter[str]) -> None:
        names = {root: tag for tag, root in self.roots.items()}
        sums: Counter[str] = Counter()
        seen: Counter[int] = Counter()
        failed, acked = set(), set()
        sent: dict[str, list[int]] = {}
        for outputs in several:
            for frame in (frame for frames in outputs._frames.values() for frame in frames):
                self.compare_frame(frame, script, seen, sent, found)
            for roots, deltas in outputs._acks:
                for root, delta in zip(roots.tolist(), deltas.tolist(), strict=True):
                    acked.add(names[root])
                    sums[names[root]] ^= delta
            for roots, reason in outputs._fails:
                failed |= {names[root] for root in roots.tolist()}
                found["reasons that are missing"] += reason >= len(outputs._reasons)
        found["emissions twice"] += sum(count > 1 for count in seen.values())
        found["emissions lost"] += len(script.sure - set(seen))
        for tag in [*tags, "hold-0", "hold-1"]:
            self.compare_verdict(tag, script, acked - failed, failed, found)
            if tag in acked - failed:
                owed = reduce(xor, sent.get(tag, []), self.root(tag) * 31 + 7)
                found["false ACKs"] += sums[tag] != owed

    def compare_frame(
        self,
        frame: Frame,
        script: Script,
        seen: Counter[int],
        sent: dict[str, list[int]],
        found: Counter[str],
    ) -> None:
        names = {root: tag for tag, root in self.roots.items()}
        for row, (tag, number) in enumerate(decode_rows(frame.values)):
            anchors = frame.lineage.anchors(row)
            mine = frozenset(names[root] for root in anchors)
            right, stream = script.emitted[number]
            seen[number] += 1
            is_right = mine == right and tag == ",".join(sorted(right))
            is_right &= stream == frame.stream or self.kind == "arrow"
            found["values under other anchors"] += not is_right
            for root, edge in anchors.items():
                sent.setdefault(names[root], []).append(edge)

    def compare_verdict(
        self, tag: str, script: Script, acked: set[str], failed: set[str], found: Counter[str]
    ) -> None:
        said = {what for what, whom in script.said if whom == tag}
        tried = {what for what, whom in script.tried if whom == tag}
        if self.kind == "hand" or tag.startswith("hold"):
            may_ack, must_ack = "ack" in said | tried, "ack" in said and "fail" not in said | tried
        else:
            may_ack = tag not in script.raised
            must_ack = may_ack and not {"fail"} & (said | tried)
        found["false ACKs"] += tag in acked and (not may_ack or tag in script.raised)
        found["ACKED and FAILED exchanged"] += tag in acked and self.kind != "basic" and "fail" in said
        is_lost = must_ack and tag not in script.raised and tag not in acked | failed
        found["verdicts lost"] += is_lost and self.kind != "arrow" and not tag.startswith("hold")
        found["failures lost"] += tag in script.raised and tag not in failed

    def compare_state(
        self,
        kept: dict[int, set[Any]],
        script: Script,
        outputs: Outputs,
        tags: list[str],
        store: MemoryStore,
        found: Counter[str],
    ) -> None:
        """What the next micro-batch is given; that before this one, if its save failed."""
        reader = self.script(Interrupter(), {})
        _Now.script = reader
        task = bolt_task(self.component, self.task, Outputs(self.plan, 0, outputs.level, 0), store)
        state = dict(task.bolt.state)
        old = {key: {("old", key)} for key in range(self.keys)}
        differs = [key for key, may in kept.items() if state.get(key) not in may]
        if differs and all(state.get(key) in old.get(key, {None}) for key in kept):
            # Nothing of it is there: right, if every tuple of the micro-batch failed with it.
            roots = {root for roots, _ in outputs._fails for root in roots.tolist()}
            differs = [] if {self.root(tag) for tag in tags} <= roots else differs
        found["states that differ"] += bool(differs) or len(state) != len(task.bolt.state)
        found["wrong reads"] += script.wrong_reads


def drawn(random: Random) -> dict[str, list[Op]]:
    """A program: three tuples, each with a few calls."""
    names = ["emit", "emit", "emit", "other", "direct", "join", "reset", *STATE_CALLS]
    numbers = iter(range(1, 100))
    ops: dict[str, list[Op]] = {}
    for tag in ("a", "b", "c"):
        mine: list[Op] = []
        for _ in range(random.randint(1, 4)):
            name = random.choice([*names, "ack", "fail"])
            is_state = name in STATE_CALLS
            which = random.choice([-1, -1, 0, 1])
            if name in {"ack", "fail"}:
                which = random.choice([0, 1])  # a held one; its own is acked in the end
            mine.append((name, which, random.randrange(KEYS + 50) if is_state else next(numbers)))
        mine.append((random.choice(["ack", "ack", "ack", "fail"]), -1, 0))
        ops[tag] = mine
    return ops


class SpoutRig:
    """A spout's collector."""

    def __init__(self, *, is_tracking: bool) -> None:
        builder = TopologyBuilder("faults")
        builder.set_spout("source", FeederSpout(STREAMS))
        reader = builder.set_bolt("reader", Calls(print)).global_grouping("source")
        reader.global_grouping("source", stream="other").direct_grouping("source", stream="direct")
        config = Config() if is_tracking else Config(acker_executors=0)
        self.plan = Plan.of(builder.create_topology(), config, 1, 5)
        self.component = self.plan.topology.components["source"]
        (self.reader,) = self.plan.topology.components["reader"].task_ids

    def try_one(self, ops: list[tuple[str, int]], interrupter: Interrupter, found: Counter[str]) -> None:
        collector = SpoutCollector(self.component, 1, self.plan, lambda: 0, print)
        sure: set[int] = set()
        emitted: dict[int, tuple[str, bool]] = {}
        for name, number in ops:
            stream = name.split("-")[0]
            has_id = not name.endswith("-plain")
            emitted[number] = stream, has_id
            values: list[object] = [f"{stream}", number]
            if name.endswith("-large"):
                values[0] = stream + "x" * 20_000
            try:
                with interrupter:
                    if name.endswith("-batch"):
                        batch = pa.record_batch({"tag": [stream], "n": [number]})
                        collector.emit_batch(batch, [number], stream=stream)
                    elif stream == "direct":
                        collector.emit_direct(self.reader, values, number if has_id else None, stream)
                    else:
                        collector.emit(values, number if has_id else None, stream)
                sure.add(number)
            except BaseException as error:
                is_refused = isinstance(error, acktree.MisuseError) and interrupter.has_raised
                if not isinstance(error, RAISED) and not is_refused:
                    raise
        waiting = collector.row_count
        runs = collector.take_runs()
        seen: Counter[int] = Counter()
        order: dict[str, list[int]] = {}
        for run in runs:
            for row, (tag, number) in enumerate(decode_rows(run.values)):
                stream, has_id = emitted[number]
                seen[number] += 1
                order.setdefault(stream, []).append(number)
                is_right = tag.rstrip("x") == stream == run.stream
                is_right &= run.is_tracked == (has_id and self.plan.is_tracking)
                is_right &= not run.is_tracked or run.message_ids[row] == number
                is_right &= (run.tasks is not None) == (stream == "direct")
                found["values under other anchors"] += not is_right
        found["emissions twice"] += sum(count > 1 for count in seen.values())
        found["emissions lost"] += len(sure - set(seen)) + (sum(seen.values()) > waiting)
        found["emissions out of order"] += any(numbers != sorted(numbers) for numbers in order.values())
        acked_ids = {number for ids in collector.take_unacked().values() for number in ids}
        found["false ACKs"] += bool(acked_ids - set(seen)) or (self.plan.is_tracking and bool(acked_ids))

    @staticmethod
    def drawn(random: Random) -> list[tuple[str, int]]:
        names = [
            f"{stream}{kind}" for stream in ("default", "other") for kind in ("", "", "-plain", "-batch")
        ]
        names += ["direct", "direct-plain", "default-large"]
        return [(random.choice(names), number) for number in range(random.randint(2, 6))]


def run_faults(
    wanted: int,
    seed: int,
    *,
    points: int = 60,
    kinds: tuple[str, ...] = ("hand", "basic", "arrow", "spout"),
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Counter[str], Counter[str]]:
    """Interrupt runs of drawn programs.

    Args:
        points: How many opcodes of each program are drawn; all of them if it has fewer.

    Returns:
        Runs by kind, and breaches by name.
    """
    random = Random(seed)
    runs: Counter[str] = Counter()
    found: Counter[str] = Counter()
    rigs = {kind: Rig(kind) for kind in kinds if kind != "spout"}
    spouts = [SpoutRig(is_tracking=is_tracking) for is_tracking in (True, False)]
    while runs.total() < wanted:
        kind = kinds[runs.total() // points % len(kinds)]
        attempt: Callable[[Interrupter], None]
        if kind == "spout":
            spout, messages = random.choice(spouts), SpoutRig.drawn(random)
            attempt = lambda it: spout.try_one(messages, it, found)  # noqa: B023, E731
        else:
            rig, ops, catches = rigs[kind], drawn(random), random.random() < 0.6
            attempt = lambda it: rig.try_one(ops, it, found, catches=catches)  # noqa: B023, E731
        counter = Interrupter()
        attempt(counter)
        last = counter.count
        for at in sorted(random.sample(range(1, last + 1), min(points, last, wanted - runs.total()))):
            interrupter = Interrupter(at, random.choice(RAISED))
            attempt(interrupter)
            runs[kind] += interrupter.has_raised
        say(f"{runs.total()} of {wanted}: {dict(found)}")
    return runs, found


def breaches(found: Counter[str]) -> dict[str, int]:
    """What must not be, of what was found; and how often a micro-batch was run again is no breach."""
    return {name: count for name, count in found.items() if count and name != "micro-batches run again"}
