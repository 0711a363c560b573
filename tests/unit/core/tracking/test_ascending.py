"""Ascending numbers come back, in no more room than the structure promises."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.tracking.ascending import from_ascending, to_ascending

LEAST = -(1 << 63)
INT64 = st.integers(LEAST, -1 - LEAST)


@given(st.sets(INT64 | st.integers(-5, 5)))
def test_any_ascending_numbers_come_back(numbers):
    given = np.array(sorted(numbers), dtype=np.int64)
    assert from_ascending(to_ascending(given), len(given)).tolist() == given.tolist()


@pytest.mark.parametrize("count", [1, 2, 255, 256, 1_000, 30_000, 300_000])
def test_numbers_that_are_spread_evenly_take_few_bits(count):
    # The low bits are stored in whole bytes: that costs up to 8 more bits than the theoretical 2 and a half.
    numbers = np.unique(np.random.default_rng(7).integers(LEAST, -LEAST, count, dtype=np.int64))
    written = to_ascending(numbers)
    assert from_ascending(written, len(numbers)).tolist() == numbers.tolist()
    assert 8 * len(written) / len(numbers) <= 64 - log2(len(numbers)) + 9


def test_the_numbers_of_a_usual_combining_task_take_less_than_seven_bytes_each():
    numbers = np.sort(np.random.default_rng(7).integers(LEAST, -LEAST, 30_000, dtype=np.int64))
    assert len(to_ascending(numbers)) / len(numbers) < 6.45
    assert to_ascending(numbers[:0]) == b""


@pytest.mark.parametrize(
    "numbers", [[-(1 << 63)], [(1 << 63) - 1], [-(1 << 63), (1 << 63) - 1], range(5_000)]
)
def test_numbers_that_are_not_spread_come_back_and_take_bounded_room(numbers):
    given = np.array(numbers, dtype=np.int64)
    written = to_ascending(given)
    assert from_ascending(written, len(given)).tolist() == given.tolist()
    assert len(written) <= 9 * len(given)
