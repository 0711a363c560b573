"""Checkpoints of older releases.

Version 1 (before 0.1.0) knew a topology by a flat list of facts, from which no change can be judged. So its
first run with this release must be of the topology as it was; that one writes down all that version 2 knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from acktree.errors import CheckpointError
from acktree.topology.model import Topology

VERSION: Final = 2
"""The version of the layout; a checkpoint of a later one is refused."""
FRESH: Final[Mapping[str, Any]] = {
    "version": VERSION,
    "generation": 1,
    "first_batch": 0,
    "begins_after": -1,
    "acker_from": 0,
    "lost_through": -1,
    "memory": False,
}
"""What begins a checkpoint, beside salt, partitions, run, reserved sequences and shape."""


def upgraded(facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The facts as this release writes them.

    Raises:
        CheckpointError: They are of a version that this release does not know.
    """
    version = facts.get("version")
    if version == VERSION:
        return dict(facts)
    if version == 1:
        rest = {name: fact for name, fact in facts.items() if name not in ("version", "shape")}
        return {**FRESH, **rest, "shape_1": facts["shape"]}
    raise CheckpointError(
        f"this checkpoint has version {version}, and this acktree reads 1 to {VERSION}",
        str(folder),
        "run it with the acktree that wrote it, or a newer one; or give the topology a new checkpoint",
    )


def check_shape_1(
    before: Mapping[str, Any], topology: Topology, partitions: int, *, is_tracked: bool
) -> None:
    """See that a topology is what version 1 wrote down of it.

    Raises:
        CheckpointError: It is not.
    """
    now = _shape_1(topology, partitions, is_tracked=is_tracked)
    changed = [name for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)]
    if changed:
        name = changed[0]
        raise CheckpointError(
            f"{name} is {now.get(name)} now and was {before.get(name)}, and this checkpoint is of version 1, "
            "which tells no more",
            f"topology {topology.name!r}",
            "submit it once as it was, with this release, and change it then; or give it a new checkpoint",
        )


def _shape_1(topology: Topology, partitions: int, *, is_tracked: bool) -> dict[str, Any]:
    levels = topology.levels(partitions)
    shape: dict[str, Any] = {
        f"the level of {bolt!r}": level.index for level in levels for bolt in level.bolts
    }
    for component in topology.components.values():
        shape[f"the kind of {component.id!r}"] = component.kind
        shape[f"the task ids of {component.id!r}"] = list(component.task_ids)
        shape[f"what {component.id!r} remembers"] = sorted(component.remembers)
    shape["whether messages are tracked"] = is_tracked
    shape["the stateful levels"] = [level.index for level in levels if level.stateful]
    return shape
