"""A level that remembers in files: an error of a file ends it, whatever user code does."""

from __future__ import annotations

from contextlib import suppress

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.logs.memory_log import MemoryLog, MemoryOfBatch
from acktree.checkpoint.memory_files import ChainStore
from acktree.core.data.frames import Kind
from acktree.spark.query import operators
from acktree.spark.query.operators import Places, _remembered
from acktree.spark.worker.state_channel import StateChannelLostError
from tests.unit.checkpoint.commits import Commits


class Alone:
    """Runs a level without isolation."""

    def run(self, level, store):
        return level(None, store)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_a_read_that_fails_and_is_caught_changes_nothing(tmp_path, monkeypatch, caught):
    state = tmp_path / "state"
    log = Commits(tmp_path, [MemoryLog(state, 0)])
    first = MemoryOfBatch(state, 0, 0)
    first.put("task/1/k", b"41")
    log.write(0, rows={Kind.MEMORY: [*first.commit(0)]})
    monkeypatch.setattr(operators, "_micro_batch", lambda places: 1)
    read = ChainStore.get

    def fails(store, name):
        raise OSError("the disk cannot read")

    def counts(monitor, store):
        count = b"0"
        monkeypatch.setattr(ChainStore, "get", fails)
        with suppress(caught):
            count = store.get("task/1/k")
        monkeypatch.setattr(ChainStore, "get", read)
        with suppress(caught):
            store.put("task/1/k", b"%d" % (int(count) + 1))
        return []

    before = sorted(state.rglob("*"))
    with pytest.raises(StateChannelLostError):
        _remembered(Alone(), counts, Places("", "", None, state=str(state)), 0)
    assert sorted(state.rglob("*")) == before
