"""Memory that moves to other tasks: every key to where its tuples go, and nothing guessed."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ColumnState, KeyValueState
from acktree.core.data.choosers import make_chooser
from acktree.core.data.context import TaskContext
from acktree.core.data.groupings import Fields
from acktree.core.data.values import encode_rows
from acktree.core.state.store import MemoryStore
from acktree.errors import CheckpointError, ConfigError
from acktree.tasks.bolts.memory import TaskMemory
from acktree.tasks.bolts.moved_memory import moved
from tests.unit.tasks.bolts.bolt_harness import CallsByHand, bench

OLD, NEW = (3, 4), (3, 4, 9)
words = st.one_of(st.text(max_size=3), st.integers(-5, 5), st.none(), st.floats(allow_nan=False))


def sent_to(keys, tasks):
    """The task that a fields grouping chooses for each key; of a tuple, by all its values."""
    width = len(keys[0]) if keys and isinstance(keys[0], tuple) else 1
    fields = [f"f{at}" for at in range(width)]
    rows = [list(key) if width > 1 else [key] for key in keys]
    context = TaskContext("t", "source", 1, 0, {"source": (1,)})
    chooser = make_chooser(
        Fields(tuple(fields)), fields=fields, targets=tasks, source_task=1, context=context, stream="default"
    )
    if not keys:
        return []
    return chooser.choose(encode_rows(fields, rows), np.zeros(len(rows), dtype=np.uint64)).tasks.tolist()


def sorted_out(counts, tasks):
    """What each task counted."""
    lies = {task: {} for task in tasks}
    for key, task in zip(counts, sent_to([*counts], tasks), strict=True):
        lies[task][key] = counts[key]
    return lies


def store_of(**attributes):
    """The memory of a task that remembers these."""
    store, held = MemoryStore(), SimpleNamespace(**attributes)
    memory = TaskMemory([*attributes], store, held)
    memory.restore(held)
    memory.save(held)
    return store


def remembered(blobs, *names):
    """What a task finds when it is given these blobs."""
    store, held = MemoryStore(), SimpleNamespace()
    store.blobs.update(blobs)
    TaskMemory(names, store, held).restore(held)
    return vars(held)


def move(stores, *, by_key=("counts",), forget=(), key_width=1, tasks=NEW, remembers=("counts", "seen")):
    return moved(
        stores, tasks, name="count", remembers=remembers, key_width=key_width, forget=forget,
        by_key=by_key if isinstance(by_key, dict) else dict.fromkeys(by_key),
    )  # fmt: skip


@given(
    counts=st.dictionaries(words, st.integers(0, 99), max_size=30),
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    make=st.sampled_from([KeyValueState, dict, Counter]),
)
def test_every_key_moves_with_its_value_to_the_task_that_its_tuples_go_to(counts, before, after, make):
    old, new = tuple(range(10, 10 + before)), tuple(range(10, 10 + after))
    stores = {task: store_of(counts=make(mine)) for task, mine in sorted_out(counts, old).items()}
    there = {task: remembered(blobs, "counts")["counts"] for task, blobs in move(stores, tasks=new).items()}
    assert {key: kept for mine in there.values() for key, kept in mine.items()} == counts
    assert sum(map(len, there.values())) == len(counts)
    for task, mine in there.items():
        assert type(mine) is make
        assert sent_to([*mine], new) == [task] * len(mine)


@given(
    counts=st.dictionaries(st.text(max_size=3), st.integers(0, 99), max_size=30)
    | st.dictionaries(st.integers(-9, 9), st.integers(0, 99), max_size=30),
    before=st.integers(1, 4),
    after=st.integers(1, 5),
)
def test_columns_move_as_every_mapping_does(counts, before, after):
    old, new = tuple(range(10, 10 + before)), tuple(range(10, 10 + after))
    kind = type(next(iter(counts), ""))
    stores = {}
    for task, mine in sorted_out(counts, old).items():
        state = ColumnState(kind, int)
        state.update(mine)
        stores[task] = store_of(counts=state)
    there = {task: remembered(blobs, "counts")["counts"] for task, blobs in move(stores, tasks=new).items()}
    assert {key: kept for mine in there.values() for key, kept in mine.items()} == counts
    for task, mine in there.items():
        assert type(mine) is ColumnState
        assert sent_to([*mine], new) == [task] * len(mine)


def test_a_key_that_moves_is_as_old_as_it_was():
    keys = [f"key {n}" for n in range(20)]
    stores = {task: MemoryStore() for task in OLD}
    for now_ms, chosen in ((0, keys[:10]), (6_000, keys[10:])):
        for task, mine in sorted_out(dict.fromkeys(chosen, 1), OLD).items():
            held = SimpleNamespace(counts=KeyValueState(ttl_secs=10))
            memory = TaskMemory(["counts"], stores[task], held, now_ms=now_ms)
            memory.restore(held)
            held.counts.update(mine)
            memory.save(held)
    there = move(stores)
    for now_ms, expected in ((9_999, keys), (10_000, keys[10:]), (16_000, [])):
        found = []
        for blobs in there.values():
            store, held = MemoryStore(), SimpleNamespace()
            store.blobs.update(blobs)
            TaskMemory(["counts"], store, held, now_ms=now_ms).restore(held)
            found += held.counts
        assert sorted(found) == sorted(expected)


def test_columns_of_keys_that_lie_at_another_task_are_not_moved():
    state = ColumnState(str, int)
    state.add_many([f"word {number}" for number in range(20)])
    with pytest.raises(ConfigError, match=r"key 'word .*' of 'counts' lies at task 3"):
        move({3: store_of(counts=state), 4: store_of(counts=ColumnState(str, int))})


def test_of_several_fields_a_key_is_the_tuple():
    counts = {(f"word {n}", n % 3): n for n in range(20)}
    stores = {task: store_of(counts=KeyValueState(mine)) for task, mine in sorted_out(counts, OLD).items()}
    there = move(stores, key_width=2)
    for task in NEW:
        mine = remembered(there[task], "counts")["counts"]
        assert sent_to([*mine], NEW) == [task] * len(mine)
    with pytest.raises(ConfigError, match="is no tuple of 3 values"):
        move(stores, key_width=3)


def test_a_default_dict_keeps_its_default():
    (task,) = sent_to(["a"], OLD)
    there = move({task: store_of(counts=defaultdict(list, a=[1]))} | {
        other: store_of(counts=defaultdict(list)) for other in OLD if other != task
    })  # fmt: skip
    kept = [remembered(blobs, "counts")["counts"] for blobs in there.values()]
    assert sorted(map(len, kept)) == [0, 0, 1]
    assert [mine["new"] for mine in kept] == [[], [], []]


def test_keys_that_are_not_what_the_bolt_is_grouped_by_are_noticed():
    keys = [f"key {n}" for n in range(20)]
    with pytest.raises(ConfigError, match=r"'key \d+' of 'counts' lies at task 3 .* is not what it is"):
        move({3: store_of(counts=KeyValueState(dict.fromkeys(keys, 1))), 4: store_of(counts=KeyValueState())})


def columns_of(mine):
    state = ColumnState(str, int)
    state.update(mine)
    return state


@pytest.mark.parametrize("make", [KeyValueState, dict, columns_of])
@given(
    seen=st.dictionaries(st.text(max_size=3), st.integers(0, 99), max_size=30),
    before=st.integers(1, 4),
    after=st.integers(1, 5),
)
def test_keys_move_to_where_a_function_says_that_they_are_grouped(make, seen, before, after):
    old, new = tuple(range(10, 10 + before)), tuple(range(10, 10 + after))

    def customer_of(event, total):
        return total % 7

    lies = {task: {} for task in old}
    for event, task in zip(seen, sent_to([total % 7 for total in seen.values()], old), strict=True):
        lies[task][event] = seen[event]
    stores = {task: store_of(seen=make(mine)) for task, mine in lies.items()}
    there = {
        task: remembered(blobs, "seen")["seen"]
        for task, blobs in move(stores, by_key={"seen": customer_of}, tasks=new).items()
    }
    assert {key: kept for mine in there.values() for key, kept in mine.items()} == seen
    for task, mine in there.items():
        assert sent_to([total % 7 for total in mine.values()], new) == [task] * len(mine)


@pytest.mark.parametrize(
    ("group_of", "said"),
    [
        (lambda key, value: key["x"], r"cannot say by what key 'key \d+' is grouped: TypeError"),
        (lambda key: key, r"cannot say by what key 'key \d+' is grouped: TypeError"),
        (lambda key, value: {}, r"cannot say by what key|is no|would have sent"),
        (
            lambda key, value: key,
            r"key 'key \d+' of 'seen' lies at task 3 .* would have sent 'key \d+', which",
        ),
    ],
)
def test_a_function_that_does_not_say_where_a_key_is_is_refused_with_the_first_key(group_of, said):
    keys = [f"key {n}" for n in range(20)]
    stores = {3: store_of(seen=KeyValueState(dict.fromkeys(keys, 1))), 4: store_of(seen=KeyValueState())}
    with pytest.raises(ConfigError, match=said):
        move(stores, by_key={"seen": group_of})


def test_a_function_for_several_fields_returns_a_tuple_of_them():
    seen = {f"event {n}": (f"word {n}", n % 3) for n in range(20)}
    lies = {task: {} for task in OLD}
    for event, task in zip(seen, sent_to([*seen.values()], OLD), strict=True):
        lies[task][event] = seen[event]
    stores = {task: store_of(seen=KeyValueState(mine)) for task, mine in lies.items()}
    there = move(stores, key_width=2, by_key={"seen": lambda event, group: group})
    for task in NEW:
        mine = remembered(there[task], "seen")["seen"]
        assert sent_to([*mine.values()], NEW) == [task] * len(mine)
    with pytest.raises(ConfigError, match=r"returns 'word .*', which is no tuple of 2 values"):
        move(stores, key_width=2, by_key={"seen": lambda event, group: group[0]})


def test_what_nobody_says_anything_about_is_refused_by_name():
    stores = {task: store_of(counts=KeyValueState(), seen=7) for task in OLD}
    with pytest.raises(ConfigError, match="remembers 'seen', and nothing says which task"):
        move(stores)
    with pytest.raises(ConfigError, match="'seen' of bolt 'count' is a int, which has no keys"):
        move(stores, by_key=("counts", "seen"))


def test_what_is_forgotten_is_as_prepared_in_every_task():
    stores = {task: store_of(counts=KeyValueState(), seen=7) for task in OLD}
    for blobs in move(stores, forget=("seen",)).values():
        assert [*remembered(blobs, "counts", "seen")] == ["counts"]


def test_a_task_that_never_ran_brings_nothing():
    (task,) = sent_to(["a"], OLD)
    there = move({3: MemoryStore(), 4: MemoryStore()} | {task: store_of(counts=KeyValueState({"a": 1}))})
    assert sum(len(remembered(blobs, "counts")["counts"]) for blobs in there.values()) == 1


def test_what_cannot_be_read_here_says_where_it_can():
    store = store_of(counts=KeyValueState({"a": 1}))
    name = next(name for name in store.blobs if "bucket" in name)
    store.blobs[name] = store.blobs[name].replace(b"a", b"\x00", 1)[:-9] + b"nonsense."
    with pytest.raises(CheckpointError, match=r"cannot be read: .*\n.*\n.*where the modules"):
        move({3: store, 4: MemoryStore()})


def test_a_task_that_holds_tuples_keeps_its_memory_where_it_is():
    def hold(bolt, tup):
        bolt.counts[tup["value"]] = tup

    with bench(CallsByHand(hold, remembers=("counts",), counts=KeyValueState)) as running:
        running.feed((["a"], 1), (["b"], 2))
        (blobs,) = (store.blobs for store in running.running._levels._stores.values() if store.blobs)
    mine = MemoryStore()
    mine.blobs = {name.split("/", 2)[2]: blob for name, blob in blobs.items()}
    with pytest.raises(CheckpointError, match="task 3 of bolt 'count' holds 2 tuples"):
        move({3: mine}, tasks=(3, 4))
