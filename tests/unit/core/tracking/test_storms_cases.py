"""The guarantee, case by case as Storm has them: what init, ack, fail and reset come to in any order."""

from __future__ import annotations

import pytest

from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.ledger import Ledger
from acktree.errors import ProtocolError
from tests.unit.core.tracking.ledgers import ACKED, FAILED, TIMED_OUT, T, deltas_of


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


def test_case_i_a_reset_of_an_unknown_root_leaves_nothing(acker):
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
    # Twice the same init would sum to zero: in Storm an ACK of an unprocessed message.
    with pytest.raises(ProtocolError, match=r"root 1 is open twice, from spout task \[7, 8\]"):
        acker.hears(("init", 1, 5), ("init", 2, 5), ("init", 1, 5, 8))


@pytest.mark.parametrize("said_of_it", [[], [("ack", 1, 5)], [("fail", 1, b"why")]])
@pytest.mark.parametrize("idle", [0, 1, 3])
def test_case_o_the_same_when_they_were_opened_by_different_micro_batches(acker, said_of_it, idle):
    others = [
        ("init", root, 5) for root in range(2, 20)
    ]  # enough that their run is not merged with a new one
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
        ledger.judge(deltas_of(("init", 1, 5)), T, is_first=True)
    assert ledger.to_bytes() == before


# ---- failures -------------------------------------------------------------------------------------------


def test_a_failed_root_has_the_first_reason_in_the_order_of_the_data_and_the_number_of_others(acker):
    acker.hears(
        ("fail", 9, b"of nobody"), ("fail", 2, b"first of 2"), ("fail", 1, b"first of 1"),
        ("fail", 2, b"second of 2"), ("init", 1, 5), ("init", 2, 5), ("fail", 2, b"third of 2"),
    )  # fmt: skip
    assert acker.said.failed.roots.tolist() == [1, 2]
    assert acker.said.failures.tolist() == [2, 1]
    assert acker.said.others.tolist() == [0, 2]


def test_each_verdict_names_the_spout_task_that_opened_the_root():
    ledger = Ledger(T)
    ledger.judge(deltas_of(*[("init", root, 5, root + 100) for root in range(6)]), 0)
    ledger.judge(Deltas(), 0)
    said = ledger.judge(deltas_of(("ack", 1, 5), ("fail", 4, b""), ("ack", 3, 5)), T)
    judged = (said.acked, said.failed, said.timed_out)
    assert [which.roots.tolist() for which in judged] == [[1, 3], [4], [0, 2, 5]]
    assert [which.owners.tolist() for which in judged] == [[101, 103], [104], [100, 102, 105]]
