"""Compares the topologies of two runs on one checkpoint, and decides whether the second run is allowed.

Rules of this file
------------------
1. A micro-batch is committed whole, so no tuple is in transit between two runs. Four things are kept: what
   bolts remember (held tuples included), messages in the inbox, open roots, positions of spouts. A change
   that affects none of these is allowed.
2. A change is refused if something would be lost, mixed up or dropped silently. The refusal says how to
   proceed.
3. The inputs are the two shapes and the spouts with messages in the inbox: no file, no Spark.

Each row of the table in ``docs/running.md`` is one of these rules; each has its test.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from acktree.topology.gates import GATE
from acktree.topology.shape import Input, Part, Shape

CHECKPOINT: Final = "CHECKPOINT"
"""The placeholder for the checkpoint's folder in ``ShapeChange.way``."""
_NEW: Final = "give the changed topology a new checkpoint"
_DRAIN: Final = "submit it as it was and kill() it, which waits until nothing is open; then change it"
_NOT_THERE: Final = "what its tasks remember would not be where their tuples go"
_AGAIN: Final = f"stop, and `python -m acktree rebalance {CHECKPOINT}`"


@dataclass(frozen=True)
class ShapeChange:
    """One difference between two shapes.

    Attributes:
        what: The difference and the component.
        refused: Why the change is refused; None when it is allowed.
        way: What the user can do if it is refused.
    """

    what: str
    refused: str | None = None
    way: str = ""


def changes(before: Shape, now: Shape, waiting: Collection[str]) -> list[ShapeChange]:
    """The differences between two shapes, refused and allowed ones.

    Args:
        before: The shape of the last run.
        now: The shape of this run; components that were there before keep their task ids.
        waiting: Spouts that still have messages in the inbox; gates also with tuples that wait for it.
    """
    if other := _another(before, now):
        return [other]
    differences: list[ShapeChange] = []
    for name in sorted(before.parts.keys() | now.parts.keys()):
        old, new = before.parts.get(name), now.parts.get(name)
        if old is None and new is not None:
            differences.append(_added(name, new))
        elif new is None and old is not None:
            differences.append(_removed(name, old, is_waiting=name in waiting))
        elif old is not None and new is not None and old != new:
            differences += _changed(name, old, new, is_waiting=name in waiting)
            differences += _behind_gates(name, old, new, waiting)
    if before.is_tracked != now.is_tracked:
        differences.append(_tracked(before, now))
    # Another refused change may be the reason why memory moved; its fix then also fixes that.
    if not any(change.refused for change in differences):
        differences += _moved(before, now)
    return differences


def _another(before: Shape, now: Shape) -> ShapeChange | None:
    """A refusal if this is another topology than the one that ran on the checkpoint."""
    own = "give this topology a checkpoint of its own"
    if before.name is not None and before.name != now.name:
        return ShapeChange(
            f"topology {now.name!r} has another name than {before.name!r}, which ran on this checkpoint",
            "its messages, memory and dead letters are kept under that name",
            f"{own}; or if it is the same topology, name it {before.name!r} as before",
        )
    same = {name for name, part in now.parts.items() if name in before.parts}
    if same or not before.parts:
        return None
    return ShapeChange(
        f"none of {_list(tuple(sorted(now.parts)))} was in the topology that ran on this checkpoint, which "
        f"had {_list(tuple(sorted(before.parts)))}",
        "it is another topology, and the state of the earlier one would never be used",
        f"{own}; or give its components the ids that they had",
    )


def _added(name: str, new: Part) -> ShapeChange:
    what = f"{new.kind} {name!r} is new"
    if new.is_frame:
        return ShapeChange(what, "Spark keeps the positions of DataFrames by their order in the query", _NEW)
    return ShapeChange(what)


def _removed(name: str, old: Part, *, is_waiting: bool) -> ShapeChange:
    is_gate = name.startswith(GATE)
    what = f"{'gate' if is_gate else old.kind} {name!r} is gone"
    if old.is_frame:
        return ShapeChange(what, "Spark keeps the positions of DataFrames by their order in the query", _NEW)
    if old.kind == "spout" and is_waiting:
        where = "wait there or are in the inbox" if is_gate else "are in the inbox"
        return ShapeChange(what, f"messages of it {where}, and would never have a verdict", _DRAIN)
    if old.kind == "bolt" and old.remembers:
        return _forgotten(name, what)
    return ShapeChange(what)


def _forgotten(name: str, what: str) -> ShapeChange:
    return ShapeChange(
        what,
        "what it remembers would be forgotten",
        "restore it; or to delete its memory: "
        f"`python -m acktree reset-state {CHECKPOINT} --component {name}`",
    )


def _changed(name: str, old: Part, new: Part, *, is_waiting: bool) -> Iterator[ShapeChange]:
    if old.kind != new.kind:
        what = f"{name!r} is a {new.kind} and was a {old.kind}"
        yield ShapeChange(
            what, "the state kept under this id is that of the other kind", "give it another id"
        )
    elif new.kind == "spout":
        yield from _changed_spout(name, old, new, is_waiting=is_waiting)
    else:
        yield from _changed_bolt(name, old, new)


def _changed_spout(name: str, old: Part, new: Part, *, is_waiting: bool) -> Iterator[ShapeChange]:
    if old.is_frame or new.is_frame:
        if (old.is_frame, old.streams) != (new.is_frame, new.streams):
            what = f"spout {name!r} has another DataFrame, or is no longer a DataFrameSpout"
            yield ShapeChange(what, "its position is Spark's, and rows of it may wait for their retry", _NEW)
        return
    if old.retries != new.retries and not new.redelivers:
        has, had = ("a", "none") if new.retries else ("no", "one")
        what = f"spout {name!r} has {has} Retry now, and had {had}"
        yield _unless_waiting(what, "may have failed already: lost, or tried twice", is_waiting=is_waiting)
    if old.redelivers != new.redelivers:
        what = f"spout {name!r} redelivers={new.redelivers} now, and had {old.redelivers}"
        yield _unless_waiting(what, "would be delivered twice, or never again", is_waiting=is_waiting)
    yield from _streams_of_spout(name, old, new, is_waiting=is_waiting)
    if len(old.tasks) != len(new.tasks):
        yield _parallelism_of_spout(name, old, new, is_waiting=is_waiting)
    if old.remembers != new.remembers:
        yield _remembers("spout", name, old, new)


def _streams_of_spout(name: str, old: Part, new: Part, *, is_waiting: bool) -> Iterator[ShapeChange]:
    for stream in sorted(old.streams.keys() | new.streams.keys()):
        had, has = old.streams.get(stream), new.streams.get(stream)
        what = f"stream {stream!r} of spout {name!r} has the fields {_list(has)} and had {_list(had)}"
        if had is None:
            yield ShapeChange(f"stream {stream!r} of spout {name!r} is new")
        elif had != has:
            yield _unless_waiting(what, "have the earlier fields", is_waiting=is_waiting)


def _parallelism_of_spout(name: str, old: Part, new: Part, *, is_waiting: bool) -> ShapeChange:
    what = _parallelism("spout", name, old, new)
    if not old.redelivers and old.remembers:
        return ShapeChange(what, "each task has a position of its own, which cannot be divided", _NEW)
    if len(new.tasks) < len(old.tasks):
        return _unless_waiting(what, "belong to tasks that no longer exist", is_waiting=is_waiting)
    return ShapeChange(what)


def _unless_waiting(what: str, why: str, *, is_waiting: bool) -> ShapeChange:
    return (
        ShapeChange(what, f"messages of it that are in the inbox {why}", _DRAIN)
        if is_waiting
        else ShapeChange(what)
    )


def _changed_bolt(name: str, old: Part, new: Part) -> Iterator[ShapeChange]:
    if old.remembers != new.remembers:
        is_forgotten = bool(old.remembers) and not new.remembers
        change = _remembers("bolt", name, old, new)
        yield _forgotten(name, change.what) if is_forgotten else change
    has_memory = bool(old.remembers and new.remembers)
    if len(old.tasks) != len(new.tasks):
        yield _parallelism_of_bolt(name, old, new, has_memory=has_memory)
    if old.inputs != new.inputs:
        yield from _inputs(name, old, new, is_bound=has_memory and len(new.tasks) > 1)
    if old.streams != new.streams:
        yield ShapeChange(f"bolt {name!r} has other streams or fields")


def _behind_gates(name: str, old: Part, new: Part, waiting: Collection[str]) -> Iterator[ShapeChange]:
    """A refusal if tuples of a gate could go to other tasks when a micro-batch runs again."""
    choices = ([read.choice for read in part.inputs] for part in (old, new))
    is_other = len(old.tasks) != len(new.tasks) or next(choices) != next(choices)
    if is_other and any(read.source.startswith(GATE) and read.source in waiting for read in old.inputs):
        what = f"bolt {name!r} has another parallelism or grouping"
        yield ShapeChange(
            what, "a micro-batch with tuples of its gates may run again, for other tasks", _DRAIN
        )


def _parallelism_of_bolt(name: str, old: Part, new: Part, *, has_memory: bool) -> ShapeChange:
    what = _parallelism("bolt", name, old, new)
    if not has_memory:
        return ShapeChange(what)
    if old.is_hosted:
        move = f"give its memory up: `python -m acktree reset-state {CHECKPOINT} --component {name}`"
        return ShapeChange(what, _NOT_THERE, f"set parallelism={len(old.tasks)}; or stop, and {move}")
    command = (
        f"python -m acktree rebalance {CHECKPOINT} --component {name} --parallelism {len(new.tasks)} "
        "--by-key ATTRIBUTE[=MODULE:NAME]"
    )
    return ShapeChange(
        what,
        _NOT_THERE,
        f"set parallelism={len(old.tasks)}; or stop, and move its memory: `{command}`",
    )


def _inputs(name: str, old: Part, new: Part, *, is_bound: bool) -> Iterator[ShapeChange]:
    gone = [was for was in old.inputs if was not in [read.as_known_in(was) for read in new.inputs]]
    fresh = [read for read in new.inputs if not any(read.as_known_in(was) == was for was in old.inputs)]
    strange = [
        read for read in fresh if not any(read.as_known_in(was).choice == was.choice for was in old.inputs)
    ]
    if not (is_bound and gone and strange):
        if gone or fresh:
            yield ShapeChange(f"bolt {name!r} reads other streams, or by other groupings")
        return
    (read, *_) = strange
    was = next((was for was in gone if (was.source, was.stream) == (read.source, read.stream)), gone[0])
    how, before = _grouping(read), _grouping(was)
    yield ShapeChange(
        f"bolt {name!r} reads {read.source!r} by {how}, and read {was.source!r} by "
        f"{f'one with other {_differing(was, read)}' if how == before else before}",
        _NOT_THERE,
        "group as before; or to delete its memory: "
        f"`python -m acktree reset-state {CHECKPOINT} --component {name}`",
    )


def _differing(was: Input, read: Input) -> str:
    """The names of the parameters of a custom grouping that are not as they were."""
    differ = {one.partition("=")[0] for one in {*was.parameters} ^ {*read.parameters}}
    return f"values of {_list(tuple(sorted(differ)))}"


def _tracked(before: Shape, now: Shape) -> ShapeChange:
    what = "messages are tracked now" if now.is_tracked else "messages are not tracked any more"
    keeping = [name for name, part in before.parts.items() if part.kind == "spout" and not part.redelivers]
    if now.is_tracked or not keeping:
        return ShapeChange(what)
    return ShapeChange(
        what,
        f"open messages of spout {keeping[0]!r} would never have a verdict",
        f"leave acker_executors unchanged; or {_NEW}",
    )


def _moved(before: Shape, now: Shape) -> Iterator[ShapeChange]:
    """A refusal if Spark would not find the memory of each bolt on the same level as before."""
    if before.state is None or now.state is None:
        return
    for bolt in sorted({bolt for level in before.state for bolt in level}):
        (was,) = (at for at, level in enumerate(before.state) if bolt in level)
        at = next((at for at, level in enumerate(now.state) if bolt in level), None)
        if at != was:
            yield ShapeChange(
                f"bolt {bolt!r} is on stateful level {at} now, and was on {was}",
                "Spark keeps memory by the position of the stateful level",
                f"{_AGAIN}, which can move memory to any level",
            )
            return
    if len(before.state) != len(now.state):
        yield ShapeChange(
            f"{len(now.state)} levels have memory now, and {len(before.state)} had",
            "Spark keeps memory by the position of the stateful level, and cannot add one",
            f"{_AGAIN}, which can move memory to any level",
        )


def _parallelism(kind: str, name: str, old: Part, new: Part) -> str:
    return f"{kind} {name!r} has parallelism {len(new.tasks)} now, and had {len(old.tasks)}"


def _remembers(kind: str, name: str, old: Part, new: Part) -> ShapeChange:
    return ShapeChange(
        f"{kind} {name!r} remembers {_list(new.remembers)} now, and remembered {_list(old.remembers)}"
    )


def _grouping(read: Input) -> str:
    if read.custom:
        return f"custom grouping {read.custom}"
    return f"{read.grouping} grouping on {list(read.fields)}" if read.fields else f"{read.grouping} grouping"


def _list(names: tuple[str, ...] | None) -> str:
    return "nothing" if not names else str(list(names))
