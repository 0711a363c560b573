"""Works on a checkpoint that no driver runs: moves the memory of bolts, or deletes it.

Both leave Spark's own checkpoint behind and let it begin a new one: see ``migrated_state.py``. What is ours
stays and is numbered on: the inbox, what is open, undelivered verdicts, positions, dead letters, reserved
sequences. The one step that counts is the renaming of ``acktree.json``; a tool that dies before it has done
nothing, one that dies after it has done all.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from acktree.checkpoint import disk_errors
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.location import folder_of
from acktree.checkpoint.logs.memory_log import stored_blobs
from acktree.checkpoint.migrated_state import TAKEN_IN, Memories, read_memory, tasks_in, write_memories
from acktree.config import MOST_PARTITIONS
from acktree.core.state.store import MemoryStore
from acktree.errors import CheckpointError, ConfigError, ending_at_caller, nearest
from acktree.tasks.bolts.moved_memory import GroupOf, moved
from acktree.topology.gates import GATE
from acktree.topology.shape import Part, Shape


@ending_at_caller
def rebalance(
    checkpoint: str | Path,
    *,
    component: str | None = None,
    parallelism: int | None = None,
    partitions: int | None = None,
    by_key: Collection[str] | Mapping[str, GroupOf | None] = (),
    forget: Collection[str] = (),
    spark: object = None,  # noqa: ARG001
) -> None:
    """Move bolts' memory to other tasks, partitions or levels. Open messages are unaffected.

    Without ``component`` every task keeps what it remembers, and the next run may place it on other levels.

    Args:
        checkpoint: The folder. Nobody may run on it.
        component: A remembering bolt whose parallelism changes.
        parallelism: Its number of tasks from now on.
        partitions: How many partitions every level has from now on. None: as many as before.
        by_key: Attributes that are mappings by what the component is grouped by: each key goes where the
            fields grouping sends its tuples. Or each with a function that is given a key and its value, and
            returns by what they are grouped: a value, or a tuple of those of several fields; None: by the
            key. ``{"seen": lambda event_id, customer: customer}``
        forget: Attributes that start as ``prepare`` leaves them.
        spark: Not used: what bolts remember is in files.

    Raises:
        ConfigError: An argument that is out of range, or names what the checkpoint does not have.
        CheckpointError: The checkpoint does not allow it, with the reason. It is as it was, also here.
    """
    if (component is None) != (parallelism is None):
        raise ConfigError("a component and its parallelism go together", "rebalance", "give both, or neither")
    if any(given is not None and given < 1 for given in (parallelism, partitions)):
        raise ConfigError("less than one", "rebalance", "give a parallelism and partitions of at least 1")
    if partitions is not None and partitions > MOST_PARTITIONS:
        raise ConfigError(
            f"{partitions:,} partitions", "rebalance", f"give {MOST_PARTITIONS:,} partitions at most"
        )
    with _held(checkpoint) as (stopped, shape):
        memories, now = _memories(stopped), shape
        if component is not None and parallelism is not None:
            part = _remembering(shape, component)
            fresh = range(shape.tasks_given + 1, shape.tasks_given + 1 + parallelism - len(part.tasks))
            tasks = part.tasks[:parallelism] + tuple(fresh)
            groups = by_key if isinstance(by_key, Mapping) else dict.fromkeys(by_key)
            memories = _moved(memories, component, part, tasks, by_key=groups, forget=forget)
            now = shape.with_part(component, replace(part, tasks=tasks))
        _begin(stopped, now, partitions or stopped.partitions, memories)


@ending_at_caller
def reset_state(
    checkpoint: str | Path,
    *,
    component: str | None = None,
    spark: object = None,  # noqa: ARG001
) -> None:
    """Forget what bolts remember, or what one of them does. Nothing that is open is lost.

    If all is forgotten, so are the tuples that bolts hold, and the acker starts anew: what was open is run
    again, from the inbox or by the spouts' queues. Of one bolt the messages that it holds time out.

    Args:
        checkpoint: The folder. Nobody may run on it.
        component: The bolt. None: all.
        spark: Not used: what bolts remember is in files.

    Raises:
        ConfigError: An argument that is out of range, or names what the checkpoint does not have.
        CheckpointError: The checkpoint does not allow it, with the reason. It is as it was, also here.
    """
    with _held(checkpoint) as (stopped, shape):
        if component is None:
            _begin(stopped, shape, stopped.partitions, None)
            return
        part = _remembering(shape, component)
        memories = _memories(stopped)
        kept = {task: blobs for task, blobs in memories.items() if task not in part.tasks}
        _begin(stopped, shape.with_part(component, None), stopped.partitions, kept)


@contextmanager
def _held(checkpoint: str | Path) -> Iterator[tuple[Checkpoint, Shape]]:
    """A checkpoint that has run, with the shape it ran with; released afterwards."""
    folder = folder_of(checkpoint)
    if not (folder / "acktree.json").exists():
        raise CheckpointError(
            "there is no checkpoint", str(folder), "name the folder that was given to submit()"
        )
    with disk_errors.explaining(folder), closing(Checkpoint(folder)) as stopped:
        shape = stopped.shape
        if shape is None:
            raise CheckpointError(
                "no topology has run on this checkpoint", str(folder), "name one that was given to submit()"
            )
        if stopped.has_ended:
            raise CheckpointError(
                "the topology has ended, and stays ended", str(folder), "give it a new checkpoint"
            )
        frames = [name for name, part in shape.parts.items() if part.is_frame]
        if frames:
            raise CheckpointError(
                f"spout {frames[0]!r} is a DataFrame, whose position lies in what Spark would begin anew",
                str(folder),
                "give the topology a new checkpoint, and the DataFrame's source the position to start from",
            )
        yield stopped, shape


def _remembering(shape: Shape, component: str) -> Part:
    part = shape.parts.get(component)
    if part is None:
        stateful = [name for name, part in shape.parts.items() if part.kind == "bolt" and part.remembers]
        raise ConfigError(
            f"the checkpoint has no memory of a component {component!r}",
            "--component",
            nearest(component, stateful),
        )
    if part.kind != "bolt" or not part.remembers:
        raise ConfigError(
            f"{part.kind} {component!r} is not a stateful bolt",
            "--component",
            "name a bolt that remembers; others keep nothing here, and change with the topology",
        )
    return part


def _moved(
    memories: Memories,
    component: str,
    part: Part,
    tasks: tuple[int, ...],
    by_key: Mapping[str, GroupOf | None],
    forget: Collection[str],
) -> Memories:
    widths = {len(read.fields) for read in part.inputs if read.grouping == "fields"}
    partial = [read for read in part.inputs if read.grouping == "partial_key"]
    if by_key and (len(widths) != 1 or partial):
        raise ConfigError(
            f"bolt {component!r} is not grouped by fields, or not by as many on all streams: a key has no "
            "task of its own",
            f"--by-key {' --by-key '.join(by_key)}",
            "what is not by key can only start afresh: --forget, or reset-state --component",
        )
    unknown = sorted({*by_key, *forget} - {*part.remembers})
    if unknown and part.is_hosted:
        raise ConfigError(
            f"bolt {component!r} is a component of streamparse, or a child process: no attribute of it can "
            "be moved alone, or by key",
            "--by-key, --forget",
            f"leave its parallelism; or give its memory up: acktree reset-state --component {component}",
        )
    if unknown:
        raise ConfigError(
            f"bolt {component!r} does not remember {unknown[0]!r}",
            "--by-key, --forget",
            nearest(unknown[0], part.remembers),
        )
    stores = {task: _store_of(memories.get(task, {})) for task in part.tasks}
    here = moved(
        stores, tasks, name=component, remembers=part.remembers, by_key=by_key, forget=forget,
        key_width=min(widths, default=1),
    )  # fmt: skip
    return {task: blobs for task, blobs in memories.items() if task not in part.tasks} | here


def _store_of(blobs: Mapping[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    store.blobs.update(blobs)
    return store


def _begin(stopped: Checkpoint, shape: Shape, partitions: int, memories: Memories | None) -> None:
    """Begin a generation of Spark's checkpoint with these memories; None: with none, and nothing open."""
    _refuse_in_doubt(stopped, shape)
    if memories is not None:
        folder = stopped.folder / f"memory-{stopped.next_generation}"
        shutil.rmtree(folder, ignore_errors=True)  # of a tool that died
        write_memories(folder, memories)
    stopped.begin_generation(shape, partitions, has_memory=memories is not None, is_lost=memories is None)


def _refuse_in_doubt(stopped: Checkpoint, shape: Shape) -> None:
    """Refuse where a sink may have rows of a micro-batch that would be cut otherwise from now on."""
    for name, part in shape.parts.items():
        is_gated = any(read.source.startswith(GATE) for read in part.inputs)
        if is_gated and not part.streams and not part.remembers and stopped.is_in_doubt:
            raise CheckpointError(
                f"a micro-batch was begun and is not committed, and {name!r} may have written its rows",
                str(stopped.place),
                "submit the topology as it was, and stop it when it has gone on",
            )


def _memories(stopped: Checkpoint) -> Memories:
    """What every task remembers, as of the last committed micro-batch."""
    memories: dict[int, dict[str, bytes]] = defaultdict(dict)
    for task, blob_name, blob in _stored(stopped):
        memories[task][blob_name] = blob
    if stopped.memory is not None:  # of an earlier time: tasks that had nothing to do since
        for absent in tasks_in(stopped.memory) - memories.keys():
            memories[absent] = read_memory(stopped.memory, absent)
    for blobs in memories.values():
        blobs.pop(TAKEN_IN, None)
    return dict(memories)


def _stored(stopped: Checkpoint) -> Iterator[tuple[int, str, bytes]]:
    """What each task remembers, as (task, name, blob), as of the last committed micro-batch."""
    committed, state, began = stopped.last_committed(), stopped.state, stopped.state_from
    if state is not None and began is not None and committed >= max(stopped.first_batch, began):
        yield from stored_blobs(state, committed, began)
