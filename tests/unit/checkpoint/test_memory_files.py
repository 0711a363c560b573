"""What bolts remember in files: a part reads what was committed, whatever attempts and drivers died."""

from __future__ import annotations

import errno
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from acktree.checkpoint import memory_files
from acktree.checkpoint.logs import memory_log
from acktree.checkpoint.logs.memory_log import MemoryLog, MemoryOfBatch, stored_blobs
from acktree.checkpoint.memory_files import ChainStore, blobs_of, chain_from, file_name
from acktree.core.data.frames import Kind
from acktree.core.state.store import MemoryStore
from acktree.errors import CheckpointError
from acktree.system.private_files import DISK, Disk
from tests.drawn import drawn
from tests.unit.checkpoint.commits import Commits, committed_numbers

NAMES = st.sampled_from(["task/1/a", "task/1/state/counts/bucket/7", "task/2/ä\0", "task/2/"])
BLOBS = st.binary(max_size=40) | st.integers(0, 3000).map(bytes)
CHANGES = st.lists(st.tuples(NAMES, BLOBS | st.none()), max_size=5)


def fresh_process():
    """What a process knows of the files that another one wrote."""
    memory_files._known.clear()


def change(store, changes):
    """Carry changes out, as a level does: a blob that is not there is not deleted."""
    for name, blob in changes:
        if blob is not None:
            store.put(name, blob)
        elif store.get(name) is not None:
            store.delete(name)


def names_of(chain):
    return [file.name for file in chain]


@given(st.lists(CHANGES, max_size=12), st.booleans())
@settings(max_examples=drawn(150))
def test_a_chain_holds_what_a_dict_holds(tmp_path_factory, batches, is_fresh):
    folder, model, newest = tmp_path_factory.mktemp("part") / "1", MemoryStore(), None
    for changes in batches:
        if is_fresh:
            fresh_process()
        store = ChainStore(folder, newest)
        change(store, changes)
        change(model, changes)
        assert {name: store.get(name) for name in model.blobs} == model.blobs
        chain = store.commit(file_name(0))
        if chain is not None:
            newest = chain[-1].name if chain else None
        again = ChainStore(folder, newest)
        assert all(again.get(name) == model.get(name) for name, _ in changes)
        assert ({} if newest is None else dict(blobs_of(folder, newest))) == model.blobs
        assert again.commit(file_name(0)) is None


@given(st.lists(CHANGES, max_size=12), st.sampled_from([0, 50, 1 << 20]))
@settings(max_examples=drawn(100))
def test_a_store_that_is_kept_reads_and_writes_as_one_that_is_opened_anew(tmp_path_factory, batches, most):
    folder, model = tmp_path_factory.mktemp("part") / "1", MemoryStore()
    kept, newest = ChainStore(folder, None), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_files, "_MOST_WRITTEN", most)
        for changes in batches:
            change(kept, changes)
            change(model, changes)
            assert {name: kept.get(name) for name in model.blobs} == model.blobs
            chain = kept.commit(file_name(0))
            assert kept.commit(file_name(0)) is None  # it has nothing new
            if chain is not None:
                newest = chain[-1].name if chain else None
                assert chain == (() if newest is None else chain_from(folder, newest))
            fresh_process()
            assert ({} if newest is None else dict(blobs_of(folder, newest))) == model.blobs
            assert all(kept.get(name) == model.get(name) for name, _ in changes)


def test_a_chain_is_short_and_little_is_written_twice(tmp_path):
    newest, written = None, 0
    for batch_id in range(1000):
        store = ChainStore(tmp_path, newest)
        store.put(f"blob {batch_id}", bytes(1000))
        chain = store.commit(file_name(0))
        newest = chain[-1].name
        written += chain[-1].size
        assert len(chain) <= 10
    assert written <= 10 * 1000 * 1000
    assert len(chain_from(tmp_path, newest)) == len(chain)


def test_one_blob_that_changes_again_and_again_leaves_the_large_file_as_it_is(tmp_path):
    store = ChainStore(tmp_path, None)
    store.put("large", bytes(1_000_000))
    first = chain = store.commit(file_name(0))
    for batch_id in range(1, 100):
        store = ChainStore(tmp_path, chain[-1].name)
        store.put("small", b"%d" % batch_id * 100)
        chain = store.commit(file_name(0))
        assert chain[0] == first[0]
        assert len(chain) == 2


@pytest.mark.parametrize("damage", ["end", "index", "blob", "begin", "empty", "gone"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, damage):
    store = ChainStore(tmp_path, None)
    store.put("name", b"x" * 100)
    (only,) = store.commit(file_name(0))
    file = tmp_path / only.name
    content = bytearray(file.read_bytes())
    at = {"end": len(content) - 12, "index": len(content) - 60, "blob": 30, "begin": 2}
    if damage in at:
        content[at[damage]] ^= 0xFF
    file.write_bytes(b"" if damage == "empty" else content)
    if damage == "gone":
        file.unlink()
    fresh_process()
    with pytest.raises(CheckpointError, match=only.name):
        ChainStore(tmp_path, only.name).get("name")


def test_a_file_with_the_content_of_its_neighbour_is_refused_with_its_name(tmp_path):
    """A task may have written two in one micro-batch, and both would be whole."""
    names = []
    for blob in (b"old", b"new"):
        store = ChainStore(tmp_path, None)
        store.put("name", blob)
        names += [each.name for each in store.commit(file_name(0))]
    (tmp_path / names[1]).write_bytes((tmp_path / names[0]).read_bytes())
    fresh_process()
    with pytest.raises(CheckpointError, match=rf"content of {names[0]}\n.*{names[1]}"):
        ChainStore(tmp_path, names[1])


@given(st.data())
@settings(max_examples=drawn(60), deadline=None)
def test_no_byte_of_a_file_can_be_changed_unseen(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("part")
    store = ChainStore(folder, None)
    blobs = {"a": b"x" * 24, "b": b"y" * 8}
    for name, blob in blobs.items():
        store.put(name, blob)
    (only,) = store.commit(file_name(0))
    content = bytearray((folder / only.name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / only.name).write_bytes(content)
    fresh_process()
    with pytest.raises(CheckpointError):
        dict(blobs_of(folder, only.name))


def memory_of(checkpoint, committed=-1, began=0):
    """The commit log of a checkpoint whose bolts remember, as of a commit."""
    return Commits(checkpoint, [MemoryLog(checkpoint / "state", began)], committed)


def keep(log, batch_id, rows):
    log.write(batch_id, rows={Kind.MEMORY: [*rows]})


class Drivers(RuleBasedStateMachine):
    """Micro-batches of drivers that die before and after the commit, of attempts that fail or run twice."""

    folder = None

    def __init__(self):
        super().__init__()
        self.checkpoint = Drivers.folder / str(id(self))
        self.state, self.first = self.checkpoint / "state", 7
        self.committed = self.first - 1
        self.model = MemoryStore()
        Commits(self.checkpoint, []).write(self.committed)  # of a run in which no bolt remembered
        self.log = memory_of(self.checkpoint, self.committed, self.first)

    def attempt(self, changes):
        memory = MemoryOfBatch(self.state, self.committed + 1, self.first)
        assert {name: memory.get(name) for name in self.model.blobs} == self.model.blobs
        change(memory, changes)
        return [*memory.commit(0)]

    def run(self, changes, tries):
        """Run a micro-batch to the sink's end; returns what its memory is then."""
        after = MemoryStore()
        after.blobs = dict(self.model.blobs)
        change(after, changes)
        for _ in range(tries):
            rows = self.attempt(changes)
        keep(self.log, self.committed + 1, rows)
        return after

    @rule(changes=CHANGES, tries=st.integers(1, 2))
    def commit(self, changes, tries):
        self.model = self.run(changes, tries)
        self.committed += 1

    @rule(changes=CHANGES, is_sunk=st.booleans())
    def die_before_the_commit(self, changes, is_sunk):
        if is_sunk:
            self.run(changes, 1)
        else:
            self.attempt(changes)
        self.restart()

    @rule()
    def restart(self):
        fresh_process()
        self.log = memory_of(self.checkpoint, self.committed, self.first)
        head = memory_log._head_of(self.state, self.committed, self.first, DISK)
        for task in ("1", "2"):
            chain = names_of(chain_from(self.state / task, head[task])) if task in head else []
            there = [file.name for file in (self.state / task).glob("*")]
            assert sorted(there) == sorted(chain)

    @invariant()
    def what_is_stored_is_what_was_committed(self):
        stored = stored_blobs(self.state, self.committed, self.first)
        assert {f"task/{task}/{name}": blob for task, name, blob in stored} == self.model.blobs

    @invariant()
    def few_files_are_kept(self):
        assert len(committed_numbers(self.checkpoint)) <= 3


def test_whatever_dies_the_memory_is_what_was_committed(tmp_path):
    Drivers.folder = tmp_path

    run_state_machine_as_test(Drivers, settings=settings(max_examples=drawn(60), deadline=None))


def test_files_of_others_are_left_where_they_are(tmp_path):
    (tmp_path / "state" / "1").mkdir(parents=True)
    mine = tmp_path / "state" / "1" / "notes.txt"
    mine.write_text("mine")
    memory_of(tmp_path)
    assert mine.read_text() == "mine"


def test_attempts_that_failed_are_deleted_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("acktree.checkpoint.logs.memory_log._SWEEP", 4)
    log, state = memory_of(tmp_path), tmp_path / "state"
    for batch_id in range(10):
        for _ in range(3):
            memory = MemoryOfBatch(state, batch_id, 0)
            memory.put("task/1/a", b"%d" % batch_id)
            told = [*memory.commit(0)]
        keep(log, batch_id, told)
    assert list(stored_blobs(state, 9, 0)) == [(1, "a", b"9")]
    assert len(list((state / "1").glob("*"))) <= 2 + 3 * 2


def test_an_older_file_of_a_chain_that_is_gone_is_said_at_the_start(tmp_path):
    log = memory_of(tmp_path)
    for batch_id, size in enumerate((10_000, 10)):
        memory = MemoryOfBatch(tmp_path / "state", batch_id, 0)
        memory.put(f"task/1/{batch_id}", bytes(size))
        keep(log, batch_id, memory.commit(0))
    first = min((tmp_path / "state" / "1").glob("*"))
    first.unlink()
    fresh_process()
    with pytest.raises(CheckpointError, match=first.name):
        memory_of(tmp_path, 1)


def test_a_write_that_fails_leaves_no_file(tmp_path):
    class Full(Disk):
        def write_pieces(self, file, pieces, *, sync=False):
            super().write_pieces(file, itertools.islice(pieces, 2))
            raise OSError(errno.ENOSPC, "No space left on device")

    store = ChainStore(tmp_path / "1", None, Full())
    store.put("a", bytes(1000))
    with pytest.raises(OSError, match="No space left"):
        store.commit(file_name(0))
    assert list((tmp_path / "1").glob("*")) == []


def test_what_is_deleted_leaves_the_disk_soon(tmp_path):
    newest = None

    def batch(changes):
        nonlocal newest
        store = ChainStore(tmp_path, newest)
        for name, blob in changes.items():
            store.put(name, blob) if blob is not None else store.delete(name)
        chain = store.commit(file_name(0))
        newest = chain[-1].name
        return chain

    batch({f"bucket/{n}": bytes(1000) for n in range(1000)})
    batch({"meta": b"1"})
    chain = batch({f"bucket/{n}": None for n in range(1000)})
    assert sum(file.size for file in chain) < 1000
    assert dict(blobs_of(tmp_path, newest)) == {"meta": b"1"}


def test_names_of_many_deleted_blobs_are_not_written_again_and_again(tmp_path):
    store = ChainStore(tmp_path, None)
    for n in range(20_000):
        store.put(f"bucket/{n}", bytes(50))
    chain, written = store.commit(file_name(0)), 0
    for batch_id in range(100):
        store = ChainStore(tmp_path, chain[-1].name)
        for n in range(50) if batch_id else range(9_000):
            store.delete(f"bucket/{n + 100 * batch_id}")
        chain = store.commit(file_name(batch_id + 1))
        written += (tmp_path / chain[-1].name).stat().st_size if batch_id else 0
    assert written < 3_000_000


def test_a_worker_that_finds_no_head_says_so(tmp_path):
    log = memory_of(tmp_path)
    keep(log, 0, [])
    Commits(tmp_path, [], 0).write(1)  # a commit of another program
    assert MemoryOfBatch(tmp_path / "state", 1, 0).get("task/1/a") is None
    with pytest.raises(CheckpointError, match="commit 1 does not say what bolts remember"):
        MemoryOfBatch(tmp_path / "state", 2, 0)
