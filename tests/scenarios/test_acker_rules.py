"""Storm's edge rules, N-1 to N-20, and the acker's cases a to o, each as our rulings have them.

The numbers are those of our list of Storm's semantics; Storm itself leaves most of these rules unwritten.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from acktree import Config, Retry
from acktree.core.ids import root_ids
from acktree.core.tracking.verdicts import FailureCause, FailureKind, Judged, Verdicts
from acktree.errors import ProtocolError
from acktree.tasks.spouts.verdict_batch import timed_out, verdict_batches_of
from acktree.testing import FeederSpout
from tests.scenarios.bolts import ERRORS, Forgets, chain, holding, joining, ticking, trying_again
from tests.scenarios.runner import (
    SOURCE,
    TIMEOUT_SECS,
    Activate,
    Deactivate,
    Message,
    Pause,
    Wait,
)


def message(message_id, *program, stream="default"):
    return Message([list(program)], message_id, stream)


def only(outcome, message_id=1):
    """The one failure of a message."""
    (failure,) = outcome.failures[message_id]
    return failure


PATIENT = Config(enable_message_timeouts=False)
"""For messages that wait for a later micro-batch: a slow machine takes longer than the timeout for one."""

# ---- acks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        ["ack"],
        [("emit", ["ack"]), "ack"],
        [("emit", [("emit", ["ack"]), "ack"]), "ack"],
        [("emit", ["ack"]), ("emit", ["ack"]), ("emit", ["ack"]), "ack"],
        [
            ("emit", [("emit", ["ack"]), ("emit", ["ack"]), "ack"]),
            ("emit", [("emit", ["ack"]), "ack"]),
            "ack",
        ],
    ],
    ids=["one tuple", "two in a row", "three in a row", "three children", "a tree"],
)
def test_n1_a_b_acks_and_init_in_any_order_make_one_ack(run, program):
    outcome = run(chain, [message(1, *program)])
    assert outcome.verdicts == {1: ["ACKED"]}
    assert outcome.stats[SOURCE].total.acked == 1


def test_n1_a_tree_that_is_acked_over_several_micro_batches_makes_one_ack(run):
    steps = [message(1, "hold"), Pause(), message(2, "hold"), Pause(), message(3, "ack held", "ack")]
    assert run(holding, steps, config=PATIENT).verdicts == {1: ["ACKED"], 2: ["ACKED"], 3: ["ACKED"]}


def test_one_tuple_that_is_not_acked_keeps_its_message_from_being_acked(run):
    outcome = run(chain, [message(1, ("emit", ["ack"]), ("emit", []), "ack"), message(2, "ack")])
    assert outcome.verdicts == {1: ["TIMED_OUT"], 2: ["ACKED"]}
    assert (only(outcome).cause, only(outcome).component) == (FailureCause.TIMEOUT, "b")


# ---- fails -----------------------------------------------------------------------------------------------


def test_d_a_tuple_that_fails_after_its_message_was_admitted_fails_it_at_once(run):
    steps = [message(1, "hold"), Pause(), message(2, "fail held", "ack"), Pause(), Wait(0)]
    outcome = run(holding, steps, config=PATIENT)
    assert outcome.verdicts == {1: ["FAILED"], 2: ["ACKED"]}
    assert (only(outcome).reason, only(outcome).component) == ("held and failed", "hold")


def test_n2_e_a_fail_that_travels_with_the_init_is_kept_and_its_first_reason_reported(run):
    program = [("emit", [("fail", "this")]), ("emit", [("fail", "that")]), ("fail", "mine")]
    outcome = run(chain, [message(1, *program)])
    assert outcome.verdicts == {1: ["FAILED"]}
    assert only(outcome).reason in {"this", "that", "mine"}
    assert only(outcome).others == 2
    assert only(run(chain, [message(1, *program)])) == only(outcome)  # the same one again


def test_n3_f_a_tuple_that_raises_after_its_ack_is_failed_although_every_edge_was_acked(run):
    outcome = run(chain, [message(1, "ack", "raise"), message(2, ("emit", ["ack", "raise"]), "ack")])
    assert outcome.verdicts == {1: ["FAILED"], 2: ["FAILED"]}
    assert only(outcome).reason == "BoomError: as scripted"
    assert "execute" in only(outcome).traceback


def test_n7_g_what_is_acked_after_the_fail_is_delivered_to_nobody(run):
    steps = [message(1, ("emit", ["fail"]), "hold"), Pause(), message(2, "ack held", "ack")]
    outcome = run(holding, steps)
    assert outcome.verdicts == {1: ["FAILED"], 2: ["ACKED"]}
    assert outcome.stats[SOURCE].open == 0


def test_l_a_bolt_that_fails_and_acks_a_tuple_has_failed_it_and_the_misuse_is_reported(run):
    outcome = run(chain, [message(1, "fail", "ack"), message(2, "ack", "fail")])
    assert outcome.verdicts == {1: ["FAILED"], 2: ["FAILED"]}
    assert [only(outcome, n).cause for n in (1, 2)] == [FailureCause.FAILED_BY_BOLT, FailureCause.MISUSE]
    assert "that was acked before" in only(outcome, 2).reason


# ---- messages that nobody reads ----------------------------------------------------------------------------


class WatchesItsEmits(FeederSpout):
    """Notes every verdict that comes while it emits."""

    def __init__(self, outputs):
        super().__init__(outputs)
        self.is_emitting = [False]
        self.told_inside = []

    def next_tuple(self):
        self.is_emitting[0] = True
        try:
            super().next_tuple()
        finally:
            self.is_emitting[0] = False

    def ack(self, message_id):
        self.told_inside += [message_id] * self.is_emitting[0]
        super().ack(message_id)


def test_n4_c_a_message_that_nobody_reads_is_acked_but_not_inside_emit(run):
    feeder = WatchesItsEmits({"default": ["program"], "unread": ["program"]})
    outcome = run(chain, [message(1, "ack", stream="unread"), message(2, "ack")], spout=feeder)
    assert outcome.verdicts == {1: ["ACKED"], 2: ["ACKED"]}
    assert feeder.told_inside == []


# ---- time ------------------------------------------------------------------------------------------------


def test_h_a_reset_begins_the_age_of_an_open_message_anew(run):
    build = ticking("reset", "reset", "reset", "reset", "reset", "reset", "reset", "reset", "ack")
    outcome = run(build, [message(1, "hold")])
    assert outcome.verdicts == {1: ["ACKED"]}


def test_n5_i_a_reset_that_comes_with_the_init_changes_nothing(run):
    outcome = run(chain, [message(1, "reset", "ack"), message(2, "reset"), message(3, "reset", "fail")])
    assert outcome.verdicts == {1: ["ACKED"], 2: ["TIMED_OUT"], 3: ["FAILED"]}
    [error] = outcome.errors_of("a")
    assert "neither acked, failed nor kept" in error  # message 2; of the resets none is an error


@pytest.mark.parametrize(("word", "order"), [("ack", [1, 2]), ("reset", [2, 1])])
def test_n6_t6_an_ack_does_not_refresh_an_age_and_a_reset_does(run, word, order):
    """Of message 1 a copy is forgotten, the other acked or reset when message 2 is a good deal younger."""

    def build(builder):
        ticking("", "", word)(builder)
        builder.set_bolt("forgets", Forgets()).shuffle_grouping(SOURCE)

    steps = [message(1, "hold"), Wait(TIMEOUT_SECS * 0.4), message(2)]
    outcome = run(build, steps)
    assert outcome.verdicts == {1: ["TIMED_OUT"], 2: ["TIMED_OUT"]}
    assert outcome.order == order


def test_m_n8_t8_an_ack_that_comes_after_the_timeout_is_delivered_to_nobody(run):
    steps = [message(1, "hold"), Wait(TIMEOUT_SECS * 1.5), message(2, "ack held", "ack")]
    outcome = run(holding, steps)
    assert outcome.verdicts == {1: ["TIMED_OUT"], 2: ["ACKED"]}
    assert outcome.order == [1, 2]


def test_n8_a_late_ack_of_the_first_attempt_does_not_touch_the_second(run):
    """The first attempt is held and acked while the second is open, which fails."""
    steps = [message(1), Wait(TIMEOUT_SECS * 1.5), message(2)]
    outcome = run(trying_again, steps, retry=Retry(max_attempts=2, backoff_secs=(0, 0)))
    assert outcome.verdicts == {1: ["TIMED_OUT"], 2: ["ACKED"]}
    assert (only(outcome).attempt, only(outcome).final) == (2, True)


def test_n_t5_what_is_left_of_a_judged_message_is_dropped_without_a_verdict(run):
    """A late ack, and a late child of a late tuple: there is no root for them any more."""
    steps = [
        message(1, "hold"),
        Wait(TIMEOUT_SECS * 1.5),
        message(2, ("emit held", ["ack"]), "ack held", "ack"),
        Pause(),
        message(3, "ack"),
    ]
    outcome = run(holding, steps)
    assert outcome.verdicts == {1: ["TIMED_OUT"], 2: ["ACKED"], 3: ["ACKED"]}
    assert outcome.stats[SOURCE].open == 0
    assert outcome.has_ended


def test_t10_with_timeouts_off_a_forgotten_message_stays_open_and_is_counted(run):
    config = Config(enable_message_timeouts=False)
    outcome = run(chain, [message(1), message(2, "ack")], config=config, for_secs=2 * TIMEOUT_SECS)
    assert outcome.verdicts == {2: ["ACKED"]}
    assert outcome.stats[SOURCE].open == 1
    assert outcome.stats[SOURCE].oldest_open_secs >= TIMEOUT_SECS
    assert not outcome.has_ended


# ---- misuse ----------------------------------------------------------------------------------------------


def test_j_n12_t1_a_second_ack_is_an_error_that_names_component_stream_and_tuple(run):
    outcome = run(chain, [message(1, "ack", "ack"), message(2, "ack")])
    assert outcome.verdicts == {1: ["FAILED"], 2: ["ACKED"]}
    failure = only(outcome)
    assert failure.cause is FailureCause.MISUSE
    for words in ("acked before", "component 'a'", f"{SOURCE}:default", "program=['ack', 'ack']"):
        assert words in failure.reason


def test_j_a_bolt_that_catches_the_error_of_its_second_ack_has_acked_once(run):
    assert run(chain, [message(1, "ack", "try ack", "try ack")]).verdicts == {1: ["ACKED"]}


def test_k_n11_t2_an_anchored_emit_after_the_ack_is_an_error_and_never_an_early_ack(run):
    outcome = run(chain, [message(1, "ack", ("emit", [])), message(2, ("emit", []), "ack")], watch=["a"])
    assert outcome.verdicts == {1: ["FAILED"], 2: ["TIMED_OUT"]}
    assert only(outcome).cause is FailureCause.MISUSE
    assert sum(outcome.tuples["a"].values()) == 1  # the refused one was not emitted


def test_k_an_emit_that_is_not_anchored_is_free_to_come_after_the_ack(run):
    assert run(chain, [message(1, "ack", ("emit loose", []))]).verdicts == {1: ["ACKED"]}


# ---- several messages, several anchors ---------------------------------------------------------------------


@pytest.mark.parametrize(("end", "verdict"), [("ack", "ACKED"), ("fail", "FAILED"), (None, "TIMED_OUT")])
def test_n9_a_child_of_two_messages_decides_on_both(run, end, verdict):
    steps = [
        message(1, "hold"),
        Pause(),
        message(2, ("emit joined", [end] if end else []), "ack held", "ack"),
        message(3, "ack"),
    ]
    outcome = run(holding, steps, config=PATIENT if end else None)
    assert outcome.verdicts == {1: [verdict], 2: [verdict], 3: ["ACKED"]}


@pytest.mark.parametrize(("end", "verdict"), [("ack", "ACKED"), ("fail", "FAILED"), (None, "TIMED_OUT")])
def test_n10_anchors_that_share_a_message_are_two_edges_of_it(run, end, verdict):
    """A message goes two ways and is joined again: both tuples are anchors of one child."""
    outcome = run(joining, [message(1, *([end] if end else [])), message(2, "ack")])
    assert outcome.verdicts == {1: [verdict], 2: ["ACKED"]}


def test_the_same_tuple_named_twice_as_an_anchor_counts_once(run):
    steps = [
        message(1, ("emit twice anchored", ["ack"]), "ack"),
        message(2, ("emit twice anchored", []), "ack"),
    ]
    assert run(chain, steps).verdicts == {1: ["ACKED"], 2: ["TIMED_OUT"]}


def test_a_tuple_without_an_anchor_decides_on_no_message(run):
    steps = [message(n, ("emit loose", [end]), "ack") for n, end in enumerate(["ack", "fail", "raise"])]
    steps.append(message(3, ("emit loose", []), "ack"))
    outcome = run(chain, steps)
    assert outcome.verdicts == {number: ["ACKED"] for number in range(4)}


# ---- spouts ----------------------------------------------------------------------------------------------


def test_n13_t7_without_ackers_everything_is_acked_after_next_tuple_and_nothing_is_tracked(run):
    feeder = WatchesItsEmits(["program"])
    steps = [message(1, "ack"), message(2, "fail"), message(3), message(4, "raise")]
    outcome = run(chain, steps, config=Config(acker_executors=0), spout=feeder)
    assert outcome.verdicts == {number: ["ACKED"] for number in range(1, 5)}
    assert feeder.told_inside == []
    assert outcome.stats["a"].total.failed == 2


class NotesWhatIsOpen(FeederSpout):
    """Emits five at a time, and notes how many it has open."""

    def __init__(self, outputs):
        super().__init__(outputs)
        self.open_counts = []

    def next_tuple(self):
        for _ in range(5):
            super().next_tuple()
        self.open_counts.append(self._collector.pending_count)


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_n17_t9_what_is_open_passes_the_limit_by_at_most_what_one_next_tuple_emits(run, limit):
    feeder = NotesWhatIsOpen(["program"])
    steps = [message(n, ("emit", ["ack"]), "ack") for n in range(40)]
    config = Config(max_spout_pending=limit, message_timeout_secs=TIMEOUT_SECS)
    outcome = run(chain, steps, config=config, spout=feeder)
    assert outcome.verdicts == {number: ["ACKED"] for number in range(40)}
    assert limit <= max(feeder.open_counts) < limit + 5


def test_n14_without_a_message_id_no_verdict_is_delivered_and_nothing_is_open(run):
    feeder = NotesWhatIsOpen(["program"])
    steps = [message(None, end) for end in ("ack", "fail", "raise")] + [message(None), message("last", "ack")]
    config = Config(max_spout_pending=1, message_timeout_secs=TIMEOUT_SECS)  # the untracked are free
    outcome = run(chain, steps, config=config, spout=feeder, watch=["a"])
    assert outcome.verdicts == {"last": ["ACKED"]}
    assert set(feeder.open_counts) <= {0, 1}
    assert outcome.stats["a"].total.executed == 5


@pytest.mark.parametrize("nothing", [0, "", False, (), 0.0])
def test_n14_an_id_that_is_not_none_is_an_id(run, nothing):
    assert run(chain, [message(nothing, "ack")]).verdicts == {nothing: ["ACKED"]}


def test_n15_o_one_message_id_emitted_twice_is_two_messages_with_two_verdicts(run):
    outcome = run(chain, [message("same", "ack"), message("same", "fail"), message("same")])
    assert sorted(outcome.verdicts["same"]) == ["ACKED", "FAILED", "TIMED_OUT"]


@pytest.mark.parametrize("fate", ["acked", "failed", "timed_out"])
def test_n16_a_verdict_for_another_task_than_the_one_that_opened_the_root_stops_loudly(fate):
    none = np.zeros(0, dtype=np.int64)
    nobody = Judged(none, none.astype(np.int32))

    def verdicts(owner):
        judged = {"acked": nobody, "failed": nobody, "timed_out": nobody}
        judged[fate] = Judged(root_ids(7, 3, np.array([41])), np.array([owner], dtype=np.int32))
        zero = np.zeros(len(judged["failed"].roots), dtype=np.int64)
        reasons = (timed_out(1000).to_bytes(),)
        return Verdicts(failures=zero, others=zero, reasons=reasons, done=(), open_count=0,
                        next_deadline_ms=None, **judged)  # fmt: skip

    verdict_batch = verdict_batches_of(verdicts(3), 7, timed_out(1000))[3]
    assert [41] in [
        verdict_batch.acked.tolist(),
        *(sequences.tolist() for sequences, _ in verdict_batch.failed),
    ]
    with pytest.raises(ProtocolError, match=r"root .* of spout task 3 has a verdict for task 4"):
        verdict_batches_of(verdicts(4), 7, timed_out(1000))


def test_n18_a_deactivated_spout_gets_verdicts_and_emits_nothing(run):
    steps = [
        message(1, "hold"),
        message(2, "hold"),
        Pause(),
        Deactivate(),
        message(3, "ack"),
        Wait(2.5),
        Activate(),
        Wait(1),
        message(4, "ack"),
    ]
    outcome = run(ticking("", "ack"), steps, config=PATIENT)
    assert outcome.verdicts == {number: ["ACKED"] for number in range(1, 5)}
    assert sorted(outcome.order[:2]) == [1, 2]  # delivered while it was inactive, so before 3 was emitted


def test_n18_a_deactivated_spout_gets_timeouts(run):
    steps = [
        message(1, "hold"),
        Pause(),
        Deactivate(),
        message(2, "ack"),
        Wait(TIMEOUT_SECS * 1.5),
        Activate(),
    ]
    outcome = run(holding, steps)
    assert outcome.verdicts == {1: ["TIMED_OUT"], 2: ["ACKED"]}
    assert outcome.order == [1, 2]


@pytest.mark.parametrize("error", ERRORS)
def test_n19_t11_any_exception_fails_the_message_and_not_its_neighbours(run, error):
    steps = [message(1, "ack"), message(2, ("raise", error)), message(3, ("emit", [("raise", error)]), "ack")]
    outcome = run(chain, [*steps, message(4, "ack")])
    assert outcome.verdicts == {1: ["ACKED"], 2: ["FAILED"], 3: ["FAILED"], 4: ["ACKED"]}
    for message_id, component in ((2, "a"), (3, "b")):
        failure = only(outcome, message_id)
        assert (failure.kind, failure.cause) == (FailureKind.FAILED, FailureCause.EXCEPTION)
        assert failure.component == component
        assert type(failure.exception) is type(ERRORS[error])
        assert failure.reason == f"{error}: {ERRORS[error]}"


def test_n19_report_error_reports_and_fails_nothing(run):
    outcome = run(chain, [message(1, "report", "ack")])
    assert outcome.verdicts == {1: ["ACKED"]}
    assert outcome.errors_of("a") == ["BoomError: only reported"]


def test_n20_t13_every_message_gets_exactly_one_verdict_however_things_interleave(run):
    random = Random(20)
    steps = []
    for number in range(120):
        steps.append(message(number, *random.choice(INTERLEAVED)))
        if random.random() < 0.2:
            steps.append(Pause())
    outcome = run(holding, [*steps, message("last", "ack held", "ack")])
    assert set(outcome.verdicts) == {*range(120), "last"}
    assert all(len(each) == 1 for each in outcome.verdicts.values())
    kinds = [verdict for (verdict,) in outcome.verdicts.values()]
    source = outcome.stats[SOURCE].total
    assert [source.acked, source.failed, source.timed_out] == [
        kinds.count(verdict) for verdict in ("ACKED", "FAILED", "TIMED_OUT")
    ]
    assert {"ACKED", "FAILED", "TIMED_OUT"} == set(kinds)


INTERLEAVED = [
    ["ack"],
    ["hold"],
    ["hold", ("emit", ["ack"])],
    [("emit", ["ack"]), ("emit", ["fail"]), "hold"],
    [("emit joined", ["ack"]), "ack"],
    [("emit joined", []), "ack held", "ack"],
    ["ack held", "ack"],
    ["fail held", "ack"],
    ["raise"],
    [],
]
