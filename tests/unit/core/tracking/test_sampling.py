"""Which messages are traced is known from their roots and the marks of their attempts alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.ids import root_ids, sequences_of
from acktree.core.tracking.attempts import CHOSEN, NAMED
from acktree.core.tracking.sampling import TRACE_BLOCK, TraceRule, is_sampled

TASKS = 3, 4
salts = st.integers(-(1 << 63), (1 << 64) - 1)
marks = st.sampled_from([0, NAMED, CHOSEN, NAMED | CHOSEN])
rates = st.sampled_from([0.0, 1e-9, 0.0001, 0.02, 0.3, 0.999, 1.0])
sequences = st.one_of(
    st.integers(0, 8 * TRACE_BLOCK),
    st.builds(lambda block, by: max(0, block * TRACE_BLOCK + by), st.integers(0, 9), st.integers(-2, 2)),
)


def naive(rule: TraceRule, root: int, rate: float, attempt: int) -> bool:
    """The rule, one root at a time."""
    if attempt & CHOSEN:
        return True
    if rate in (0.0, 1.0):
        return bool(rate)
    if attempt & NAMED:
        return True
    one = np.array([root])
    task, sequence = (int(each[0]) for each in sequences_of(rule.run_salt, one))
    is_numbered = not rule.has_rows or task in rule.numbered
    return bool(is_sampled(one, rate)[0]) and not (is_numbered and sequence // TRACE_BLOCK % 2)


@given(
    salts,
    rates,
    st.booleans(),
    st.lists(st.tuples(st.sampled_from([3, 4, 5]), sequences, st.integers(1, 3), marks), max_size=30),
    st.booleans(),
)
def test_a_message_is_traced_if_the_naive_rule_says_so_whatever_is_beside_it(
    salt, rate, has_rows, drawn, all_first
):
    rule = TraceRule(salt, TASKS, has_rows)
    roots = np.array([root_ids(salt, task, np.array([at]))[0] for task, at, _, _ in drawn], np.int64)
    numbers = [1 if all_first else number | mark for _, _, number, mark in drawn]
    attempts = None if all_first else np.array(numbers, np.int32)
    expected = [naive(rule, root, rate, number) for root, number in zip(roots.tolist(), numbers, strict=True)]
    assert rule.is_traced(roots, rate, attempts).tolist() == expected


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize("salt", [0, 7, -1, 12345678901234567890])
def test_of_an_even_block_the_share_is_traced_and_of_an_odd_one_nothing(salt, has_rows):
    rule = TraceRule(salt, TASKS, has_rows)
    counts = [
        int(rule.is_traced(root_ids(salt, 3, np.arange(TRACE_BLOCK) + block * TRACE_BLOCK), 0.01).sum())
        for block in range(4)
    ]
    assert counts[1::2] == [0, 0]
    assert counts[::2] == pytest.approx([0.01 * TRACE_BLOCK] * 2, rel=0.1)


def test_no_row_of_a_dataframe_is_passed_over():
    roots = np.random.default_rng(5).integers(-(1 << 63), 1 << 63, 200_000)
    rule = TraceRule(7, TASKS, has_rows=True)
    assert rule.is_traced(roots, 0.01).sum() == pytest.approx(2_000, rel=0.1)
    assert rule.is_traced(roots, 0.01).sum() >= 0.999 * is_sampled(roots, 0.01).sum()
