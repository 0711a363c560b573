"""What a bolt remembers, moved from its tasks to others.

Only what lies by key can be moved: each key goes to the task to which the bolt's fields grouping sends the
tuples of that key. That an attribute's keys are what the bolt is grouped by, its author says, or gives a
function that says by what; where there was more than one task it is checked, key by key.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from acktree.core.data.hashing import hash_columns, hash_row
from acktree.core.ids import Int64s
from acktree.core.state.column_state import ColumnState
from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import MemoryStore, StateStore
from acktree.core.state.stored_state import StoredState
from acktree.errors import CheckpointError, ConfigError
from acktree.tasks.bolts.memory import TaskMemory

GroupOf: TypeAlias = Callable[[Any, Any], object]
"""Returns by what a key and its value are grouped: a value, or a tuple of those of several fields."""


_ELSE = "to start afresh with it:"


def moved(
    stores: Mapping[int, StateStore],
    tasks: Sequence[int],
    *,
    name: str,
    remembers: Sequence[str],
    by_key: Mapping[str, GroupOf | None],
    forget: Collection[str],
    key_width: int,
) -> dict[int, dict[str, bytes]]:
    """Share out what a bolt's tasks remember among its tasks from now on.

    Args:
        stores: The memory of each task until now.
        tasks: The tasks from now on, ascending.
        name: The bolt's id.
        remembers: Its remembered attributes.
        by_key: Those that are mappings by what the bolt is grouped by; with a function those of which it says
            by what their keys are grouped.
        forget: Those that start as ``prepare`` leaves them.
        key_width: How many fields the bolt is grouped by; of several a key is the tuple.

    Returns:
        The memory of each new task.

    Raises:
        ConfigError: Something remembered cannot be moved in the way asked for, with the key or attribute.
        CheckpointError: What is remembered cannot be read, or holds tuples.
    """
    here = {task: _opened(name, task, remembers, stores[task]) for task in sorted(stores)}
    moved = _Bolt(name, tuple(here), tuple(tasks), key_width)
    there = {task: SimpleNamespace() for task in tasks}
    for attribute in sorted({known for held in here.values() for known in vars(held)} - set(forget)):
        if attribute not in by_key:
            raise ConfigError(
                f"bolt {name!r} remembers {attribute!r}, and nothing says which task is to have it",
                f"rebalance of bolt {name!r}",
                f"add --by-key {attribute} if its keys are what the bolt is grouped by, --by-key "
                f"{attribute}=MODULE:NAME for a function that says by what a key and its value are; "
                f"to start afresh with it, --forget {attribute}",
            )
        for task, held in here.items():
            if hasattr(held, attribute):
                moved.share_out(attribute, task, getattr(held, attribute), there, by_key[attribute])
    return {task: _saved(held) for task, held in there.items()}


class _Bolt:
    """A bolt and its grouping, before and after."""

    def __init__(self, name: str, before: tuple[int, ...], after: tuple[int, ...], key_width: int) -> None:
        self._name, self._before, self._after, self._key_width = name, before, after, key_width

    def share_out(
        self,
        attribute: str,
        task: int,
        value: object,
        there: Mapping[int, SimpleNamespace],
        group_of: GroupOf | None,
    ) -> None:
        """Give each key of one task's mapping to the task that it goes to."""
        if not isinstance(value, MutableMapping):
            raise ConfigError(
                f"{attribute!r} of bolt {self._name!r} is a {type(value).__name__}, which has no keys",
                f"task {task}",
                f"only mappings are moved by key; to start afresh with it: --forget {attribute}",
            )
        for target in there.values():
            if not hasattr(target, attribute):
                setattr(target, attribute, _emptied(value))
        if isinstance(value, ColumnState) and self._key_width == 1 and group_of is None:
            self._share_out_columns(attribute, task, value, there)
            return
        for key, kept in value.items():
            group = key if group_of is None else _group(group_of, attribute, task, key, kept)
            key_hash = self._hash(attribute, task, key, group)
            if self._before[key_hash % len(self._before)] != task:
                raise self._misplaced(attribute, task, key, "" if group_of is None else f"{group!r:.80}")
            getattr(there[self._after[key_hash % len(self._after)]], attribute)[key] = kept
        if isinstance(value, KeyValueState):
            for target in there.values():
                getattr(target, attribute).take_times(value)

    def _share_out_columns(
        self, attribute: str, task: int, value: ColumnState[Any], there: Mapping[int, SimpleNamespace]
    ) -> None:
        """The same for keys in columns, without a Python object for a key."""
        for batch in value.batches():
            hashes = hash_columns([batch["key"]], batch.num_rows)
            before: Int64s = np.array(self._before)[hashes % np.uint64(len(self._before))]
            if (before != task).any():
                raise self._misplaced(attribute, task, batch["key"][int(np.argmax(before != task))].as_py())
            after: Int64s = np.array(self._after)[hashes % np.uint64(len(self._after))]
            for target in np.unique(after).tolist():
                getattr(there[target], attribute).put_batch(batch.filter(pa.array(after == target)))

    def _misplaced(self, attribute: str, task: int, key: object, group: str = "") -> ConfigError:
        what = f"key {key!r:.80} of {attribute!r} lies at task {task} of bolt {self._name!r}, and the bolt's "
        if group:
            what += f"fields grouping would have sent {group}, which the function returns, to another"
            fix = (
                f"correct the function: what it returns is of another type, or no value of the field; {_ELSE}"
            )
        else:
            what += "fields grouping would have sent it to another: it is not what it is grouped by"
            fix = f"say by what it is: --by-key {attribute}=MODULE:NAME, a function of key and value; {_ELSE}"
        return ConfigError(what, f"rebalance of bolt {self._name!r}", f"{fix} --forget {attribute}")

    def _hash(self, attribute: str, task: int, key: object, group: object) -> int:
        if self._key_width == 1:
            return hash_row((group,))
        if isinstance(group, tuple) and len(group) == self._key_width:
            return hash_row(group)
        returned = "" if group is key else f", of which the function returns {group!r:.80}, which"
        raise ConfigError(
            f"key {key!r:.80} of {attribute!r}{returned} is no tuple of {self._key_width} values, and bolt "
            f"{self._name!r} is grouped by {self._key_width} fields",
            f"task {task}",
            f"this cannot be moved by key; to start afresh with it: --forget {attribute}",
        )


def _group(group_of: GroupOf, attribute: str, task: int, key: object, value: object) -> object:
    """By what a key is grouped, as its function says."""
    try:
        group = group_of(key, value)
        hash_row(group if isinstance(group, tuple) else (group,))
    except Exception as error:
        raise ConfigError(
            f"the function for the keys of {attribute!r} cannot say by what key {key!r:.80} is grouped: "
            f"{type(error).__name__}: {error}",
            f"task {task}",
            "correct it: it is given a key and its value, and returns the value of the field, or a "
            "tuple if there are several",
        ) from error
    return group


def _opened(name: str, task: int, remembers: Sequence[str], store: StateStore) -> SimpleNamespace:
    held = SimpleNamespace()
    memory = TaskMemory(remembers, store, held)
    try:
        memory.restore(held)
        for value in vars(held).values():
            if isinstance(value, StoredState):
                list(value)  # read all of it here, where an error can be reported
    except Exception as error:
        raise CheckpointError(
            f"what task {task} of bolt {name!r} remembers cannot be read: {type(error).__name__}: {error}",
            f"rebalance of bolt {name!r}",
            "run this where the modules of the topology can be imported: in its folder, with its packages",
        ) from error
    if memory.held_count:
        raise CheckpointError(
            f"task {task} of bolt {name!r} holds {memory.held_count} tuples, which no other can ack",
            f"rebalance of bolt {name!r}",
            "submit the topology as it was, and kill() it, which waits until nothing is open",
        )
    return held


def _emptied(value: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
    """An empty one of the same kind: a ``defaultdict`` keeps its default."""
    if isinstance(value, StoredState):
        return value.emptied()
    empty = copy.copy(value)
    empty.clear()
    return empty


def _saved(held: SimpleNamespace) -> dict[str, bytes]:
    store = MemoryStore()
    memory = TaskMemory([*vars(held)], store, held)
    memory.restore(held)
    memory.save(held)
    return store.blobs
