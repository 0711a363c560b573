"""Values of equal keys are added up, in whatever order the keys come; a number's rows keep their order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core import runs
from acktree.core.runs import rows_by_number, xor_by_key

ids = st.integers(-(1 << 63), (1 << 63) - 1)
keys = {np.int64: st.sampled_from([-(1 << 63), -1, 0, 1, 7, (1 << 63) - 1]),
        np.uint64: st.sampled_from([0, 1, 7, 1 << 63, (1 << 64) - 1])}  # fmt: skip


@pytest.mark.parametrize("kind", keys)
@pytest.mark.parametrize("ascending_part", [1, 64])  # below and above the drawn numbers of keys
@given(data=st.data())
def test_each_key_has_the_xor_of_its_values(data, kind, ascending_part):
    drawn = data.draw(st.lists(st.tuples(keys[kind], ids)))
    if data.draw(st.booleans()):  # a few ascending parts, as frames of several tasks bring them
        drawn = sorted(drawn) * 3
    naive = {}
    for key, value in drawn:
        naive[key] = naive.get(key, 0) ^ value
    given_keys = np.array([key for key, _ in drawn], kind)
    values = np.array([value for _, value in drawn], np.int64)
    for each in (given_keys, values):
        each.setflags(write=False)  # as they come off the wire
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_PART", ascending_part)
        found, sums = xor_by_key(given_keys, values)
    assert found.dtype == kind
    assert found.tolist() == sorted(naive)
    assert sums.tolist() == [naive[key] for key in found.tolist()]


@given(st.data(), st.integers(1, 20))
def test_the_rows_of_each_number_are_all_of_them_in_their_order(data, count):
    numbers = data.draw(st.lists(st.integers(0, count - 1)))
    rows, counts = rows_by_number(np.array(numbers, dtype=np.min_scalar_type(count)), count)
    naive = [[row for row, each in enumerate(numbers) if each == number] for number in range(count)]
    assert counts.tolist() == [len(each) for each in naive]
    assert rows.tolist() == [row for each in naive for row in each]
