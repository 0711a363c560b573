"""The gate passes a tuple when all of its messages are ACKED, once and in order, beside a naive gate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.gate import Gate, Staged, among
from acktree.errors import CheckpointError

ROOTS = [0, 1, -1, 7, (1 << 63) - 1, -(1 << 63)]
ACKED, FAILED, OPEN = "ACKED", "FAILED", "open"

frames = st.lists(st.lists(st.sampled_from(ROOTS), max_size=3, unique=True), max_size=5)
micro_batches = st.lists(
    st.tuples(
        st.lists(frames, max_size=2),
        st.dictionaries(st.sampled_from(ROOTS), st.sampled_from([ACKED, FAILED, OPEN, OPEN])),
        st.sampled_from(["go on", "go on", "restore", "replay", "run again"]),
    ),
    max_size=6,
)


def int64s(values):
    return np.array(sorted(values), dtype=np.int64)


class NaiveGate:
    """The rules, tuple by tuple."""

    def __init__(self):
        self.waiting = {}
        self.passed = []

    def decide(self, staged, fates):
        passed, dropped = [], []
        for row, roots in [*self.waiting.items(), *staged.items()]:
            fates_of_row = {fates.get(root, FAILED) for root in roots}
            if FAILED in fates_of_row:
                dropped.append(row)
            elif OPEN in fates_of_row:
                self.waiting[row] = {root for root in roots if fates.get(root) == OPEN}
                continue
            else:
                passed.append(row)
            self.waiting.pop(row, None)
        self.passed.append(passed)
        return passed, dropped


def decided(gate, numbered, fates):
    """Let a gate decide: frames by number, and what became of the roots."""
    asked_for = int64s(root for root, fate in fates.items() if fate == OPEN)
    acked = np.array([root for root, fate in fates.items() if fate == ACKED], dtype=np.int64)
    staged = Staged.joined([Staged.frame(number, rows) for number, rows in numbered])
    return gate.decide(
        staged, lambda roots: np.isin(roots, acked), lambda roots: asked_for[np.isin(asked_for, roots)]
    )


@given(micro_batches)
def test_a_gate_decides_as_a_naive_one_through_restores_replays_and_second_runs(micro_batches):
    gate, naive, whole, changes, number = Gate(), NaiveGate(), Gate().to_bytes(), [], 0
    for frames_of_batch, fates, after in micro_batches:
        numbered = list(enumerate(frames_of_batch, number))
        number += len(numbered)
        if after == "run again":  # the first run ended otherwise; nothing of it is left
            before = gate.to_bytes()
            decided(gate, numbered, dict.fromkeys(ROOTS, ACKED))
            gate = Gate(before)
        staged = {(frame, row): roots for frame, rows in numbered for row, roots in enumerate(rows)}
        first = sum(map(len, naive.passed))
        passed, dropped = naive.decide(staged, fates)
        decision = decided(gate, numbered, fates)
        if decision.change:
            changes.append(decision.change)
        assert (decision.passage.first, decision.passage.rows()) == (first, passed)
        assert (decision.dropped, decision.waiting) == (len(dropped), len(naive.waiting))
        if after == "restore":
            gate, whole, changes = Gate(gate.to_bytes()), gate.to_bytes(), []
        elif after == "replay":
            state, gate = gate.to_bytes(), Gate(whole)
            for change in changes:
                gate.replay(change)
            assert gate.to_bytes() == state
        assert [each.rows() for each in gate.passages] == [rows for rows in naive.passed if rows]
        needed = {frame for frame, _ in naive.waiting} | {frame for rows in naive.passed for frame, _ in rows}
        assert gate.frames.tolist() == sorted(needed)


@given(st.lists(frames, max_size=3))
def test_groups_are_the_rows_that_they_were_made_of_after_a_way_over_bytes(rows_of_frames):
    staged = Staged.joined([Staged.frame(number, rows) for number, rows in enumerate(rows_of_frames)])
    again = Staged.from_bytes(staged.to_bytes())
    assert staged.rows == sum(map(len, rows_of_frames))
    ends = np.cumsum(again.degrees)
    columns = again.frames, again.firsts, again.counts, again.degrees, ends
    for frame, first, count, degree, end in zip(*columns, strict=True):
        for row in range(first, first + count):
            assert again.roots[end - degree : end].tolist() == rows_of_frames[frame][row]


some_values = st.integers(-5, 5) | st.sampled_from(ROOTS)


@given(st.lists(some_values), st.sets(some_values))
def test_values_are_found_among_ascending_ones(values, ascending):
    found = among(np.array(values, dtype=np.int64), int64s(ascending))
    assert found.tolist() == [value in ascending for value in values]


def test_a_row_of_two_messages_waits_for_both_and_goes_with_the_first_that_fails():
    for last, passed in ((ACKED, [(0, 0)]), (FAILED, [])):
        gate = Gate()
        assert decided(gate, [(0, [[1, 7]])], {1: ACKED, 7: OPEN}).waiting == 1
        assert decided(gate, [], {7: last}).passage.rows() == passed
        assert gate.waiting == 0


def test_a_message_that_is_acked_is_not_asked_for_again():
    gate = Gate()
    decided(gate, [(0, [[1, 7]])], {1: OPEN, 7: OPEN})
    assert decided(gate, [], {1: ACKED, 7: OPEN}).waiting == 1
    assert decided(gate, [], {7: ACKED}).passage.rows() == [(0, 0)]


def test_a_tuple_whose_message_is_neither_judged_nor_open_is_dropped():
    assert decided(Gate(), [(0, [[1], []])], {}).passage.rows() == [(0, 1)]


def test_an_idle_micro_batch_changes_nothing():
    gate = Gate()
    decided(gate, [(0, [[1], [7]])], {1: OPEN, 7: OPEN})
    before = gate.to_bytes()
    assert decided(gate, [], {1: OPEN, 7: OPEN}).change == b""
    assert gate.to_bytes() == before


def test_what_the_inbox_has_is_forgotten_and_numbers_go_on():
    gate = Gate()
    for number in range(3):
        decided(gate, [(number, [[], []])], {})
    gate.hand_over(4)
    assert [(each.first, each.end) for each in gate.passages] == [(4, 6)]
    gate.hand_over(6)
    assert not len(gate.frames)
    assert decided(Gate(gate.to_bytes()), [(3, [[]])], {}).passage.first == 6


def test_a_gap_in_the_changes_is_an_error():
    gate = Gate()
    decided(gate, [(0, [[]])], {})
    change = decided(gate, [(1, [[]])], {}).change
    with pytest.raises(CheckpointError, match="change number 2 follows number 0"):
        Gate().replay(change)


def test_a_frame_that_passes_whole_is_one_slice_and_waiting_takes_28_bytes_a_root():
    gate, rows = Gate(), [[root] for root in range(1000) for _ in range(6)]
    decision = decided(gate, [(0, rows)], dict.fromkeys(range(1000), OPEN))
    assert len(decision.change) < 28 * 1000 + 250
    passing = decided(gate, [], dict.fromkeys(range(1000), ACKED))
    assert (len(passing.passage.frames), passing.passage.end) == (1, 6000)


# The files of a checkpoint: they stay as they are.
GOLDEN_GATE = (
    "040000000000000010000000000000000200000000000000030000000000000068000000000000000500000000000000"
    "100000000000000004000000000000000400000000000000080000000000000000000000020000000800000000000000"
    "010000000100000008000000000000000100000001000000100000000000000001000000000000000100000000000000"
    "480000000000000004000000000000000800000000000000000000000000000008000000000000000300000000000000"
    "040000000000000001000000000000000400000000000000020000000000000048000000000000000400000000000000"
    "080000000000000002000000000000000800000000000000030000000000000004000000000000000000000000000000"
    "04000000000000000100000000000000"
)
GOLDEN_CHANGE = (
    "0500000000000000080000000000000002000000000000000800000000000000ffffffffffffffff0800000000000000"
    "000000000000000068000000000000000500000000000000100000000000000004000000000000000400000000000000"
    "080000000000000000000000020000000800000000000000010000000100000008000000000000000100000001000000"
    "100000000000000001000000000000000100000000000000480000000000000004000000000000000800000000000000"
    "020000000000000008000000000000000300000000000000040000000000000000000000000000000400000000000000"
    "0100000000000000"
)


def test_the_bytes_of_a_gate_are_those_of_the_first_release():
    gate = Gate()
    decided(gate, [(3, [[7, -1], [], []])], {7: ACKED, -1: OPEN})
    change = decided(gate, [(4, [[1], [7], [1]])], {-1: ACKED, 1: OPEN}).change
    assert gate.to_bytes().hex() == GOLDEN_GATE
    assert change.hex() == GOLDEN_CHANGE
    assert [each.rows() for each in Gate(bytes.fromhex(GOLDEN_GATE)).passages] == [[(3, 1), (3, 2)], [(3, 0)]]
