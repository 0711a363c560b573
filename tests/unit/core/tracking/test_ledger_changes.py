"""The changes that the ledger returns for a micro-batch: what was touched alone, and enough to rebuild it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.ids import root_ids
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.ledger import Ledger
from acktree.errors import CheckpointError
from tests.unit.core.tracking.ledgers import OWNER, Acker, T, deltas_of, trees


def test_what_opens_and_closes_in_one_micro_batch_never_enters_the_ledger(acker):
    for batch in range(5):
        acker.hears(("init", batch, 5), ("ack", batch, 5), now_ms=batch)
    assert acker.changes == []


def touched(acker, *messages, now_ms):
    """The size of the change of a micro-batch, in bytes."""
    acker.hears(*messages, now_ms=now_ms)
    return len(acker.said.change)


def test_a_change_is_as_large_as_what_was_touched_and_not_as_what_is_open():
    sizes = []
    for count in (10, 3_000):
        acker = Acker()
        acker.hears(*[("init", root, 5) for root in range(count)])
        acker.hears(now_ms=1)
        acker.becomes_whole()
        said = (("ack", 1, 5), ("ack", 2, 1), ("fail", 3, b"why"), ("reset", 4), ("init", -1, 5))
        sizes.append(touched(acker, *said, now_ms=T // 2))
        assert acker.open_count == count - 1
    assert sizes[0] == sizes[1] < 250


def test_the_change_for_an_ack_of_an_old_root_is_the_root_and_its_delta(acker):
    acker.hears(*[("init", root, 5) for root in range(100)])
    acker.hears(now_ms=1)
    nothing = touched(acker, now_ms=2)
    assert touched(acker, *[("ack", root, 1) for root in range(100)], now_ms=3) == nothing + 16 * 100
    assert touched(acker, *[("ack", root, 4) for root in range(100)], now_ms=4) == nothing + 8 * 100
    assert acker.open_count == 0


def test_a_root_that_stays_open_takes_20_bytes_in_a_change_and_21_in_the_ledger(acker):
    nothing = touched(acker, ("init", -1, 5), now_ms=0) - 24  # the owners of one are padded to eight
    assert touched(acker, *[("init", root, 5) for root in range(1000)], now_ms=0) == nothing + 20 * 1000
    assert acker.ledger().nbytes == 21 * 1001
    assert len(acker.ledger().to_bytes()) < 21 * 1001 + 2_500  # 254 moments, and where each part begins


def test_of_what_is_open_an_idle_micro_batch_changes_the_clock_and_no_more(acker):
    acker.hears(*[("init", root, 5) for root in range(1000)])
    assert 0 < touched(acker, now_ms=T // 2) < 150
    assert 0 < touched(acker, now_ms=T // 2 + 1) < 150


def test_with_timeouts_off_an_idle_micro_batch_changes_nothing():
    acker = Acker(None)
    acker.hears(("init", 1, 5))
    for now_ms in range(3):
        assert touched(acker, now_ms=now_ms) == 0


def test_with_nothing_open_an_idle_micro_batch_changes_nothing(acker):
    acker.hears(("init", 1, 5))
    acker.hears(("ack", 1, 5))
    for now_ms in range(3):
        assert touched(acker, now_ms=now_ms) == 0


def test_an_emptied_ledger_keeps_no_root(acker):
    for batch in range(20):
        acker.hears(("init", batch, 5), now_ms=batch * T // 10)
    acker.hears(now_ms=10 * T)
    acker.hears(now_ms=20 * T)
    assert acker.open_count == acker.ledger().nbytes == 0
    assert len(acker.ledger().to_bytes()) == len(Ledger(T).to_bytes())


def test_a_ledger_that_lives_long_keeps_nothing_in_memory_of_what_was_judged():
    ledger = Ledger(T)
    for batch in range(100):
        ledger.judge(deltas_of(("init", batch, 5), ("ack", batch - 1, 5)), batch * T)
        assert ledger.nbytes <= 2 * 21


def test_a_change_that_is_gone_is_not_passed_over(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(("init", 2, 5), now_ms=1)
    acker.hears(("init", 3, 5), now_ms=2)
    del acker.changes[1]
    with pytest.raises(CheckpointError, match="number 3 follows number 1"):
        acker.ledger()


def test_nor_are_those_from_before_the_whole_ledger_that_is_gone(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.becomes_whole()
    acker.hears(("init", 2, 5), now_ms=1)
    acker.whole = None
    with pytest.raises(CheckpointError, match="number 2 follows number 0"):
        acker.ledger()


def test_a_change_that_is_replayed_twice_is_refused(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.changes *= 2
    with pytest.raises(CheckpointError, match="number 1 follows number 1"):
        acker.ledger()


@pytest.mark.slow
@given(st.lists(trees(), min_size=1, max_size=3, unique_by=lambda tree: tree[0][1]), st.data())
def test_the_second_run_of_a_micro_batch_says_what_the_first_said(forest, data):
    messages = [message for tree in forest for message in tree]
    cut = data.draw(st.integers(len(forest), len(messages)))
    messages.sort(
        key=lambda message: message[0], reverse=True
    )  # inits first: they open before what is acked later
    ackers = [Acker(), Acker()]
    reported = []
    for acker in ackers:
        for now_ms, part in ((0, messages[:cut]), (T // 2, messages[cut:]), (3 * T, [])):
            verdicts = acker.hears(*data.draw(st.permutations(part)), now_ms=now_ms)
            reported.append((verdicts, acker.said.change, acker.ledger().to_bytes()))
    assert reported[:3] == reported[3:]


# ---- a new run ------------------------------------------------------------------------------------------


def test_what_queues_bring_back_is_forgotten_without_a_verdict():
    ledger = Ledger(T)
    old = {task: root_ids(3, task, np.arange(4)).tolist() for task in (1, 2)}
    opened = [("init", root, 5, task) for task, roots in old.items() for root in roots]
    ledger.judge(deltas_of(*opened[::2]), 0)
    ledger.judge(deltas_of(*opened[1::2]), T // 2)
    ledger.forget_before(3, {1: 3})
    said = ledger.judge(deltas_of(*[("ack", root, 5) for root in old[1]]), T // 2)
    assert said.acked.roots.tolist() == [old[1][3]]  # of the new run already
    said = ledger.judge(Deltas(), 10 * T)
    assert said.timed_out.roots.tolist() == sorted(
        old[2]
    )  # its spout gets the verdict: no queue delivers it again


def test_dropped_roots_are_in_the_next_change_and_dropping_none_makes_no_change():
    acker = Acker(None)
    (root,) = root_ids(3, OWNER, np.array([0])).tolist()
    acker.hears(("init", root, 5))
    ledger = acker.ledger()
    ledger.forget_before(3, {OWNER: 0, 1: 100})
    assert ledger.judge(Deltas(), 0).change == b""
    ledger.forget_before(3, {OWNER: 1})
    assert ledger.open_count == 0
    acker.changes.append(ledger.judge(Deltas(), 0).change)
    assert acker.ledger().open_count == 0
    assert ledger.judge(Deltas(), 0).change == b""
    assert acker.hears(("ack", root, 5)) == {}


def test_a_row_of_a_dataframe_is_never_dropped_by_forget_before():
    ledger = Ledger(T)
    (root,) = root_ids(3, OWNER, np.array([0])).tolist()  # read as a sequence it is before any
    ledger.judge(deltas_of(("init", root, 5, -OWNER)), 0)
    ledger.forget_before(3, {OWNER: 1 << 40})
    assert ledger.still_open(np.array([root, 4, root])).tolist() == [root]
