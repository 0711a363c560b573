"""The guarantee, law by law: when a tree is done, failed or too old, and that it hears so once.

Messages to the ledger are written as Storm writes them: ("init", root, sum), ("ack", root, delta),
("fail", root, reason), ("reset", root). All roots are opened by spout task 7 unless said otherwise.

The acker of these tests is rebuilt for every micro-batch from what the ones before told of their changes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.deltas import Deltas
from acktree.core.ids import edge_ids, root_ids
from acktree.core.ledger import BUCKETS, Ledger
from acktree.core.packing import unpack
from acktree.errors import CheckpointError, ProtocolError

T = 30_000
OWNER = 7
ACKED, FAILED, TIMED_OUT = "ACKED", "FAILED", "TIMED_OUT"


def deltas_of(*messages):
    inits = [(*said, OWNER)[:3] for kind, *said in messages if kind == "init"]
    acks = [said for kind, *said in messages if kind == "ack"]
    fails = [said for kind, *said in messages if kind == "fail"]

    def column(rows, at, dtype=np.int64):
        return np.array([row[at] for row in rows], dtype=dtype)

    return Deltas(
        column(inits, 0), column(inits, 1), column(inits, 2, np.int32), column(acks, 0), column(acks, 1),
        column(fails, 0), np.arange(len(fails)), tuple(reason for _, reason in fails),
        column([said for kind, *said in messages if kind == "reset"], 0),
    )  # fmt: skip


class Acker:
    """A ledger that is rebuilt for every micro-batch, as if the driver had died after each."""

    def __init__(self, timeout_ms=T):
        self.timeout_ms = timeout_ms
        self.whole, self.changes = None, []
        self.said = None  # the last settlement

    def ledger(self):
        """From the last whole and the changes since."""
        rebuilt = Ledger(self.timeout_ms, self.whole)
        for change in self.changes:
            rebuilt.replay(change)
        return rebuilt

    def hears(self, *messages, now_ms=0, is_first=False):
        """Root -> verdict of one micro-batch."""
        ledger = self.ledger()
        self.said = said = ledger.settle(deltas_of(*messages), now_ms, is_first=is_first)
        if said.change:
            self.changes.append(said.change)
        judged = ((ACKED, said.acked), (FAILED, said.failed), (TIMED_OUT, said.timed_out))
        verdicts = [(root, verdict) for verdict, which in judged for root in which.roots.tolist()]
        assert len(dict(verdicts)) == len(verdicts)
        assert all((which.owners == OWNER).all() for _, which in judged)
        assert said.open_count == ledger.open_count == self.ledger().open_count
        return dict(verdicts)

    def becomes_whole(self):
        """Let a whole ledger take the place of all changes."""
        self.whole, self.changes = self.ledger().to_bytes(), []

    @property
    def open_count(self):
        return self.said.open_count


@pytest.fixture
def acker():
    return Acker()


# ---- Storm's cases, a to o --------------------------------------------------------------------------------


def test_case_a_init_and_all_acks_in_any_order_are_one_ack(acker):
    assert acker.hears(("ack", 1, 6), ("init", 1, 5), ("ack", 1, 3)) == {1: ACKED}
    assert acker.hears(now_ms=10 * T) == {}


def test_case_a_the_ack_comes_with_the_last_of_them(acker):
    assert acker.hears(("init", 1, 5)) == {}
    assert acker.hears(("ack", 1, 6)) == {}
    assert acker.hears(("ack", 1, 3)) == {1: ACKED}
    assert acker.open_count == 0


def test_case_b_acks_before_init_wait_for_it_and_may_pass_zero_unnoticed(acker):
    assert acker.hears(("ack", 1, 5), ("ack", 1, 5), ("ack", 1, 9), ("init", 1, 9)) == {1: ACKED}


def test_case_c_a_stream_without_subscribers_is_acked_at_once(acker):
    assert acker.hears(("init", 1, 0)) == {1: ACKED}
    assert acker.open_count == 0


def test_case_d_fail_after_init_fails_at_once(acker):
    acker.hears(("init", 1, 5))
    assert acker.hears(("fail", 1, b"why")) == {1: FAILED}
    assert acker.open_count == 0


def test_case_e_fail_before_init_fails_when_init_comes(acker):
    assert acker.hears(("fail", 1, b"why"), ("init", 1, 5)) == {1: FAILED}


def test_case_f_failed_wins_over_acked_where_storm_acks(acker):
    assert acker.hears(("fail", 1, b"why"), ("ack", 1, 5), ("init", 1, 5)) == {1: FAILED}


def test_case_f_the_same_when_the_tree_has_been_open(acker):
    acker.hears(("init", 1, 5))
    assert acker.hears(("ack", 1, 5), ("fail", 1, b"why")) == {1: FAILED}


def test_case_g_acks_after_a_fail_say_nothing_and_leave_nothing(acker):
    acker.hears(("init", 1, 5), ("ack", 1, 1))
    assert acker.hears(("fail", 1, b"why")) == {1: FAILED}
    assert acker.hears(("ack", 1, 4)) == {}
    assert acker.open_count == 0
    assert acker.hears(now_ms=10 * T) == {}


def test_case_h_a_reset_begins_the_age_anew(acker):
    acker.hears(("init", 1, 5), ("init", 2, 5))
    acker.hears(now_ms=0)
    acker.hears(("reset", 1), now_ms=T - 1)
    assert acker.hears(now_ms=T - 1) == {}
    assert acker.hears(now_ms=T) == {2: TIMED_OUT}
    assert acker.hears(now_ms=2 * T - 2) == {}
    assert acker.hears(now_ms=2 * T - 1 + T // 8) == {1: TIMED_OUT}


def test_case_i_a_reset_before_init_says_nothing_and_the_root_is_judged_normally(acker):
    assert acker.hears(("reset", 1), ("init", 1, 5)) == {}
    assert acker.open_count == 1
    assert acker.hears(("ack", 1, 5)) == {1: ACKED}


def test_case_i_a_reset_of_what_nobody_opened_leaves_nothing(acker):
    assert acker.hears(("reset", 1)) == {}
    assert acker.open_count == 0


def test_case_j_a_second_ack_of_one_tuple_cancels_the_first_and_is_never_an_ack(acker):
    acker.hears(("init", 1, 5))
    assert acker.hears(("ack", 1, 5), ("ack", 1, 5)) == {}
    assert acker.hears(now_ms=T + T // 8) == {1: TIMED_OUT}


def test_case_j_an_odd_number_of_acks_counts_as_one(acker):
    assert acker.hears(("init", 1, 5), *[("ack", 1, 5)] * 3) == {1: ACKED}


def test_case_k_a_child_created_after_its_parents_ack_is_an_early_ack_or_a_timeout(acker):
    # The collectors refuse it (MisuseError); this is what the sums would say if they did not.
    late_child = 9
    assert acker.hears(("init", 1, 5), ("ack", 1, 5), ("init", 2, 6)) == {1: ACKED}
    assert acker.hears(("ack", 2, 6 ^ 3), ("ack", 1, late_child), ("ack", 2, late_child), ("ack", 2, 3)) == {}
    assert acker.hears(now_ms=2 * T) == {2: TIMED_OUT}


@pytest.mark.parametrize(("first", "second"), [("fail", "ack"), ("ack", "fail")])
def test_case_l_of_a_fail_and_an_ack_in_different_micro_batches_the_first_decides(acker, first, second):
    said = {"fail": ("fail", 1, b"why"), "ack": ("ack", 1, 5)}
    verdict = {"fail": FAILED, "ack": ACKED}
    acker.hears(("init", 1, 5))
    assert acker.hears(said[first]) == {1: verdict[first]}
    assert acker.hears(said[second]) == {}


def test_case_m_an_ack_after_the_timeout_says_nothing(acker):
    acker.hears(("init", 1, 5))
    acker.hears(now_ms=0)
    assert acker.hears(now_ms=T) == {1: TIMED_OUT}
    assert acker.hears(("ack", 1, 5), ("fail", 1, b"why"), ("reset", 1), now_ms=T) == {}
    assert acker.open_count == 0


def test_case_n_an_init_that_never_comes_leaves_nothing_that_could_grow(acker):
    for batch in range(5):
        assert acker.hears(("ack", batch, 5), ("fail", batch + 100, b"why"), ("reset", batch + 200)) == {}
    assert acker.open_count == 0
    assert acker.changes == []


def test_case_o_two_open_roots_with_one_id_are_our_bug_and_stop_loudly(acker):
    # Twice the same init would sum to zero: in Storm an ACK of what nobody processed.
    with pytest.raises(ProtocolError, match=r"root 1 is open twice, from spout task \[7, 8\]"):
        acker.hears(("init", 1, 5), ("init", 2, 5), ("init", 1, 5, 8))


@pytest.mark.parametrize("said_of_it", [[], [("ack", 1, 5)], [("fail", 1, b"why")]])
@pytest.mark.parametrize("idle", [0, 1, 3])
def test_case_o_the_same_when_they_were_opened_by_different_micro_batches(acker, said_of_it, idle):
    others = [
        ("init", root, 5) for root in range(2, 20)
    ]  # so many that their run is not merged with a new one
    acker.hears(("init", 1, 5), *others, now_ms=0)
    for _ in range(idle):
        acker.hears(now_ms=T // 2)
    before = list(acker.changes)
    with pytest.raises(ProtocolError, match=r"root 1 is open twice, from spout task \[7, 7\]"):
        acker.hears(("init", 1, 5), *said_of_it, now_ms=T // 2)
    assert acker.changes == before


def test_a_ledger_that_refused_a_root_is_as_it_was(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    ledger = acker.ledger()
    before = ledger.to_bytes()
    with pytest.raises(ProtocolError, match="root 1 is open twice"):
        ledger.settle(deltas_of(("init", 1, 5)), T, is_first=True)
    assert ledger.to_bytes() == before


# ---- trees ------------------------------------------------------------------------------------------------


@st.composite
def trees(draw):
    """The messages of one tree, or DAG, whose tuples were all acked: the init, then an ack for each tuple."""
    (root,) = root_ids(1, 2, np.array([draw(st.integers(0, 1000))])).tolist()
    owed = {0: 0}  # tuple -> what its ack says; tuple 0 is the spout, whose ack is the init
    folds = {0: root}
    ordinals = {0: 0}
    for tuple_ in range(1, draw(st.integers(1, 12)) + 1):
        anchors = draw(st.sets(st.integers(0 if tuple_ < 3 else 1, tuple_ - 1), min_size=1, max_size=2))
        if 0 in anchors:
            anchors = {0}  # a spout's tuple has no other anchor
        carried = 0
        for anchor in sorted(anchors):
            fold = np.array([folds[anchor]], dtype=np.int64).view(np.uint64)
            (edge,) = edge_ids(fold, np.array([tuple_ % 3], np.uint64), np.array([ordinals[anchor]])).tolist()
            ordinals[anchor] += 1
            owed[anchor] ^= edge
            carried ^= edge
        owed[tuple_], folds[tuple_], ordinals[tuple_] = carried, carried, 0
    return [("init", root, owed.pop(0)), *(("ack", root, said) for said in owed.values())]


@pytest.mark.slow
@given(trees(), st.data())
def test_a_tree_is_done_after_its_last_delta_and_never_before(tree, data):
    acker = Acker()
    root = tree[0][1]
    arrival = [tree[0], *data.draw(st.permutations(tree[1:]))]
    verdicts = [acker.hears(message) for message in arrival]
    assert verdicts == [{}] * (len(tree) - 1) + [{root: ACKED}]


@given(trees(), st.data())
def test_how_a_tree_is_cut_into_micro_batches_cannot_matter(tree, data):
    acker = Acker()
    acks = data.draw(st.permutations(tree[1:]))
    cuts = sorted({0, len(acks), *data.draw(st.lists(st.integers(0, len(acks))))})
    batches = [acks[a:b] for a, b in pairwise(cuts)]
    batches[0] = data.draw(st.permutations([tree[0], *batches[0]]))
    verdicts = [acker.hears(*batch) for batch in batches]
    assert verdicts == [{}] * (len(batches) - 1) + [{tree[0][1]: ACKED}]


@given(trees(), st.data())
def test_a_lost_delta_is_never_an_ack(tree, data):
    acker = Acker()
    lost = data.draw(st.integers(1, len(tree) - 1))
    assert acker.hears(*tree[:lost], *tree[lost + 1 :]) == {}
    assert acker.hears(now_ms=T) == {}
    assert acker.hears(now_ms=2 * T + T // 8) == {tree[0][1]: TIMED_OUT}


@given(trees(), st.data())
def test_a_delta_applied_twice_is_never_an_ack(tree, data):
    acker = Acker()
    doubled = data.draw(st.sampled_from(tree[1:]))
    assert acker.hears(*data.draw(st.permutations([*tree, doubled]))) == {}


@given(trees(), st.data())
def test_one_failed_tuple_fails_the_tree(tree, data):
    acker = Acker()
    root = tree[0][1]
    failed = data.draw(st.integers(1, len(tree) - 1))
    messages = [*tree[:failed], ("fail", root, b"why"), *tree[failed + 1 :]]
    assert acker.hears(*data.draw(st.permutations(messages))) == {root: FAILED}


@pytest.mark.slow
@given(st.lists(trees(), min_size=2, max_size=4, unique_by=lambda tree: tree[0][1]), st.data())
def test_trees_that_travel_together_do_not_touch_each_other(forest, data):
    acker = Acker()
    kept = forest[0]
    late = kept.pop()
    messages = data.draw(st.permutations([message for tree in forest for message in tree]))
    assert acker.hears(*messages) == {tree[0][1]: ACKED for tree in forest[1:]}
    assert acker.hears(late) == {kept[0][1]: ACKED}


# ---- failures ---------------------------------------------------------------------------------------------


def test_the_first_reason_in_the_order_of_the_data_is_told_with_how_many_others_there_were(acker):
    acker.hears(
        ("fail", 9, b"of nobody"), ("fail", 2, b"first of 2"), ("fail", 1, b"first of 1"),
        ("fail", 2, b"second of 2"), ("init", 1, 5), ("init", 2, 5), ("fail", 2, b"third of 2"),
    )  # fmt: skip
    assert acker.said.failed.roots.tolist() == [1, 2]
    assert acker.said.failures.tolist() == [2, 1]
    assert acker.said.others.tolist() == [0, 2]


def test_each_verdict_names_the_spout_task_that_opened_the_root():
    ledger = Ledger(T)
    ledger.settle(deltas_of(*[("init", root, 5, root + 100) for root in range(6)]), 0)
    ledger.settle(Deltas(), 0)
    said = ledger.settle(deltas_of(("ack", 1, 5), ("fail", 4, b""), ("ack", 3, 5)), T)
    judged = (said.acked, said.failed, said.timed_out)
    assert [which.roots.tolist() for which in judged] == [[1, 3], [4], [0, 2, 5]]
    assert [which.owners.tolist() for which in judged] == [[101, 103], [104], [100, 102, 105]]


# ---- time -------------------------------------------------------------------------------------------------

timeouts = st.sampled_from([16, 100, 1000, 30_000, 3_600_000])


@given(timeouts, st.integers(0, 10**13), st.lists(st.floats(0, 1.3), min_size=1, max_size=30))
def test_a_root_is_never_timed_out_before_t_and_at_the_latest_an_eighth_later(timeout_ms, start_ms, steps):
    acker = Acker(timeout_ms)
    acker.hears(("init", 1, 5), now_ms=start_ms)
    now_ms = began_ms = start_ms + int(steps[0] * timeout_ms)  # an age begins when the next micro-batch does
    verdict = acker.hears(now_ms=now_ms)
    for step in [*steps[1:], 2]:
        assert verdict == {}
        assert now_ms - began_ms < timeout_ms + timeout_ms / 8
        now_ms += int(step * timeout_ms)
        verdict = acker.hears(now_ms=now_ms)
        if verdict:
            break
    assert verdict == {1: TIMED_OUT}
    assert now_ms - began_ms >= timeout_ms


@given(timeouts, st.integers(0, 10**13), st.integers(0, 10**6))
def test_where_nothing_else_happens_the_deadlines_keep_the_bound_from_the_end_of_the_admitting_micro_batch(
    timeout_ms, start_ms, lasted_ms
):
    acker = Acker(timeout_ms)
    acker.hears(("init", 1, 5), now_ms=start_ms)
    end_ms = start_ms + lasted_ms
    beats = 0
    verdict = {}
    while not verdict:
        now_ms = max(end_ms, acker.said.next_deadline_ms)
        verdict = acker.hears(now_ms=now_ms)
        beats += 1
    assert verdict == {1: TIMED_OUT}
    assert beats == 2  # one that begins the age, one that ends it
    assert timeout_ms <= now_ms - end_ms <= timeout_ms + timeout_ms / 8
    assert acker.said.next_deadline_ms is None


def test_slow_is_not_lost_however_long_the_admitting_micro_batch_took(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    assert acker.hears(("ack", 1, 1), now_ms=100 * T) == {}
    assert acker.hears(("ack", 1, 4), now_ms=101 * T - 1) == {1: ACKED}


def test_what_arrives_with_the_deadline_is_in_time(acker):
    acker.hears(*[("init", root, 5) for root in range(4)])
    acker.hears()
    said = (("ack", 0, 5), ("fail", 1, b"why"), ("reset", 2))
    assert acker.hears(*said, now_ms=T) == {0: ACKED, 1: FAILED, 3: TIMED_OUT}
    assert acker.open_count == 1


def test_an_ack_does_not_refresh_an_age_as_todays_storm(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    for now_ms in range(0, T, T // 10):
        assert acker.hears(("ack", 1, now_ms), now_ms=now_ms) == {}
    assert acker.hears(("ack", 1, 1), now_ms=T) == {1: TIMED_OUT}


def test_a_reset_again_and_again_keeps_a_root_open_for_ever(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    for now_ms in range(0, 10 * T, T - 1):
        assert acker.hears(("reset", 1), now_ms=now_ms) == {}
    assert acker.hears(("ack", 1, 5), now_ms=10 * T) == {1: ACKED}


def test_with_timeouts_off_nothing_ever_expires():
    acker = Acker(None)
    acker.hears(("init", 1, 5))
    for now_ms in (0, 1, 10**13):
        assert acker.hears(("reset", 1), now_ms=now_ms) == {}
        assert (acker.said.next_deadline_ms, acker.said.oldest_ms) == (None, None)
    assert acker.hears(("ack", 1, 5)) == {1: ACKED}


def test_timeouts_that_are_switched_on_begin_to_count_then():
    acker = Acker(None)
    acker.hears(("init", 1, 5), now_ms=10**12)
    acker.hears(now_ms=10**12)
    acker.timeout_ms = T
    assert acker.hears(now_ms=2 * 10**12) == {}
    assert acker.hears(now_ms=2 * 10**12 + T - 1) == {}
    assert acker.hears(now_ms=2 * 10**12 + T + T // 8) == {1: TIMED_OUT}


def test_the_oldest_age_is_that_of_the_oldest_open_root(acker):
    acker.hears(("init", 1, 5))
    assert acker.said.oldest_ms is None
    acker.hears(("init", 2, 5), now_ms=T // 2)
    oldest = acker.said.oldest_ms
    assert T // 2 <= oldest <= T // 2 + T // 16
    acker.hears(now_ms=T)
    assert acker.said.oldest_ms == oldest
    acker.hears(("ack", 1, 5), now_ms=T)
    assert T <= acker.said.oldest_ms <= T + T // 16


# ---- N-6: Storm's rotating map, which our buckets are ------------------------------------------------------


def test_an_entry_dies_at_the_nth_rotation_after_its_last_put_and_a_get_does_not_move_it(acker):
    width = T // BUCKETS
    acker.hears(("init", 1, 5), ("init", 2, 5), ("init", 3, 5), now_ms=0)
    for rotation in range(BUCKETS):
        now_ms = rotation * width
        said = [("ack", 2, rotation)]  # a get: looked up and changed where it is
        if rotation == 5:
            said.append(("reset", 3))  # a put: into the newest
        assert acker.hears(*said, now_ms=now_ms) == {}
    assert acker.hears(now_ms=BUCKETS * width) == {1: TIMED_OUT, 2: TIMED_OUT}
    # Put in the sixth micro-batch, so that its age began with the seventh, at 6 widths.
    assert acker.hears(now_ms=(BUCKETS + 6) * width - 1) == {}
    assert acker.hears(now_ms=(BUCKETS + 6) * width) == {3: TIMED_OUT}


def test_rotation_comes_from_the_clock_and_not_from_the_number_of_micro_batches(acker):
    acker.hears(("init", 1, 5), now_ms=1)
    for _ in range(100):
        assert acker.hears(now_ms=2) == {}
    assert acker.hears(now_ms=10 * T) == {1: TIMED_OUT}


def test_roots_of_one_width_share_an_age_and_those_of_others_do_not(acker):
    width = T // BUCKETS
    acker.hears(now_ms=0)
    for number in range(40):
        acker.hears(("init", number, 5), now_ms=1 + number * width // 10)
    _, _, *runs = unpack(acker.ledger().to_bytes())
    ages = {age for run in runs for age in bytes(unpack(run)[3])}
    assert len(ages) == 5  # four widths, and what is fresh


def test_a_clock_that_was_set_back_times_nothing_out_early(acker):
    acker.hears(("init", 1, 5), now_ms=5 * T)
    acker.hears(now_ms=5 * T)
    for now_ms in (5 * T + T // 2, 0, T // 2 - 1):
        assert acker.hears(now_ms=now_ms) == {}
    assert acker.hears(now_ms=T // 2) == {1: TIMED_OUT}


@pytest.mark.parametrize("is_first", [False, True])
def test_a_clock_that_was_set_back_keeps_nobody_waiting_until_it_has_caught_up(acker, is_first):
    acker.hears(("init", 1, 5), now_ms=500 * T)
    acker.hears(now_ms=500 * T)
    assert acker.hears(("init", 2, 5), now_ms=0, is_first=is_first) == {}
    assert acker.said.next_deadline_ms <= T
    assert acker.hears(now_ms=T - 1) == {}
    assert acker.hears(now_ms=T) == {1: TIMED_OUT}
    assert acker.hears(now_ms=2 * T) == {2: TIMED_OUT}


def test_time_for_which_nobody_ran_the_topology_makes_no_root_older(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(now_ms=0)
    assert acker.hears(now_ms=T // 2) == {}
    assert acker.hears(now_ms=100 * T, is_first=True) == {}
    assert acker.said.oldest_ms == 100 * T - T // 2
    assert acker.said.next_deadline_ms == 100 * T + T // 2
    assert acker.hears(now_ms=100 * T + T // 2 - 1) == {}
    assert acker.hears(now_ms=100 * T + T // 2) == {1: TIMED_OUT}


def test_time_in_which_it_ran_and_nothing_changed_does(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    for now_ms in range(0, T, T // 10):
        acker.hears(now_ms=now_ms)
    # Were it only told what changed, a driver that begins now would take all of that for time away.
    assert acker.hears(now_ms=T, is_first=True) == {}
    assert acker.hears(now_ms=T + T // 10 - 1) == {}
    assert acker.hears(now_ms=T + T // 10) == {1: TIMED_OUT}


def test_a_root_that_a_driver_left_behind_fresh_begins_its_age_with_the_next(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    assert acker.hears(now_ms=100 * T, is_first=True) == {}
    assert acker.hears(now_ms=101 * T - 1) == {}
    assert T <= acker.said.next_deadline_ms - 100 * T <= T + T // 16
    assert acker.hears(now_ms=101 * T + T // 16) == {1: TIMED_OUT}


def test_many_restarts_put_a_timeout_off_by_no_more_than_the_time_away(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(now_ms=0)
    now_ms = ran_ms = 0
    verdict = {}
    while not verdict:
        now_ms += 10 * T
        verdict = acker.hears(now_ms=now_ms, is_first=True)
        now_ms, ran_ms = now_ms + T // 100, ran_ms + T // 100
        verdict = verdict or acker.hears(now_ms=now_ms)
    assert verdict == {1: TIMED_OUT}
    assert T <= ran_ms <= T + T // 16


def test_while_timeouts_are_off_no_age_counts_and_switched_on_again_it_begins(acker):
    acker.hears(("init", 1, 5), now_ms=0)
    acker.hears(now_ms=0)
    acker.hears(now_ms=T - 1)
    acker.timeout_ms = None
    assert acker.hears(now_ms=T, is_first=True) == {}
    assert (acker.said.oldest_ms, acker.said.next_deadline_ms) == (None, None)
    acker.hears(now_ms=50 * T)
    acker.timeout_ms = T
    assert acker.hears(now_ms=50 * T, is_first=True) == {}
    assert acker.hears(now_ms=51 * T - 1) == {}
    assert acker.hears(now_ms=51 * T + T // 16) == {1: TIMED_OUT}


# ---- changes ----------------------------------------------------------------------------------------------


def test_what_opens_and_closes_in_one_micro_batch_never_enters_the_ledger(acker):
    for batch in range(5):
        acker.hears(("init", batch, 5), ("ack", batch, 5), now_ms=batch)
    assert acker.changes == []


def touched(acker, *messages, now_ms):
    """How many bytes a micro-batch told of its change."""
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


def test_an_ack_of_an_old_root_is_told_as_the_root_and_what_was_added(acker):
    acker.hears(*[("init", root, 5) for root in range(100)])
    acker.hears(now_ms=1)
    nothing = touched(acker, now_ms=2)
    assert touched(acker, *[("ack", root, 1) for root in range(100)], now_ms=3) == nothing + 16 * 100
    assert touched(acker, *[("ack", root, 4) for root in range(100)], now_ms=4) == nothing + 8 * 100
    assert acker.open_count == 0


def test_a_root_that_stays_open_is_told_in_20_bytes_and_kept_in_21(acker):
    nothing = touched(acker, ("init", -1, 5), now_ms=0) - 24  # the owners of one are padded to eight
    assert touched(acker, *[("init", root, 5) for root in range(1000)], now_ms=0) == nothing + 20 * 1000
    assert acker.ledger().nbytes == 21 * 1001
    assert len(acker.ledger().to_bytes()) < 21 * 1001 + 2_500  # 254 moments, and where each part begins


def test_of_what_is_open_an_idle_micro_batch_tells_the_clock_and_no_more(acker):
    acker.hears(*[("init", root, 5) for root in range(1000)])
    assert 0 < touched(acker, now_ms=T // 2) < 150
    assert 0 < touched(acker, now_ms=T // 2 + 1) < 150


def test_with_timeouts_off_an_idle_micro_batch_tells_nothing():
    acker = Acker(None)
    acker.hears(("init", 1, 5))
    for now_ms in range(3):
        assert touched(acker, now_ms=now_ms) == 0


def test_with_nothing_open_an_idle_micro_batch_tells_nothing(acker):
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
        ledger.settle(deltas_of(("init", batch, 5), ("ack", batch - 1, 5)), batch * T)
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
    told = []
    for acker in ackers:
        for now_ms, part in ((0, messages[:cut]), (T // 2, messages[cut:]), (3 * T, [])):
            verdicts = acker.hears(*data.draw(st.permutations(part)), now_ms=now_ms)
            told.append((verdicts, acker.said.change, acker.ledger().to_bytes()))
    assert told[:3] == told[3:]


# ---- a new run --------------------------------------------------------------------------------------------


def test_what_queues_bring_back_is_forgotten_without_a_verdict():
    ledger = Ledger(T)
    old = {task: root_ids(3, task, np.arange(4)).tolist() for task in (1, 2)}
    opened = [("init", root, 5, task) for task, roots in old.items() for root in roots]
    ledger.settle(deltas_of(*opened[::2]), 0)
    ledger.settle(deltas_of(*opened[1::2]), T // 2)
    ledger.forget_before(3, {1: 3})
    said = ledger.settle(deltas_of(*[("ack", root, 5) for root in old[1]]), T // 2)
    assert said.acked.roots.tolist() == [old[1][3]]  # of the new run already
    said = ledger.settle(Deltas(), 10 * T)
    assert said.timed_out.roots.tolist() == sorted(old[2])  # its spout is told: nobody else brings it back


def test_what_was_forgotten_is_told_with_the_next_change_and_forgetting_nothing_tells_nothing():
    acker = Acker(None)
    (root,) = root_ids(3, OWNER, np.array([0])).tolist()
    acker.hears(("init", root, 5))
    ledger = acker.ledger()
    ledger.forget_before(3, {OWNER: 0, 1: 100})
    assert ledger.settle(Deltas(), 0).change == b""
    ledger.forget_before(3, {OWNER: 1})
    assert ledger.open_count == 0
    acker.changes.append(ledger.settle(Deltas(), 0).change)
    assert acker.ledger().open_count == 0
    assert ledger.settle(Deltas(), 0).change == b""
    assert acker.hears(("ack", root, 5)) == {}


def test_a_row_of_a_dataframe_is_nobodys_to_forget():
    ledger = Ledger(T)
    (root,) = root_ids(3, OWNER, np.array([0])).tolist()  # read as a sequence it is before any
    ledger.settle(deltas_of(("init", root, 5, -OWNER)), 0)
    ledger.forget_before(3, {OWNER: 1 << 40})
    assert ledger.still_open(np.array([root, 4, root])).tolist() == [root]
