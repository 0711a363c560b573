"""The origins of the rows of a staged frame, by the roots that they hang on."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.tracking.origins import FrameOrigins, NumberedOrigins, Origin

groups = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.integers(0, 9), max_size=3, unique=True)), max_size=8
)


def origins_of(groups, look_up):
    counts = np.array([count for count, _ in groups], dtype=np.int64)
    degrees = np.array([len(roots) for _, roots in groups], dtype=np.int64)
    names = np.array([root for _, roots in groups for root in roots], dtype=np.uint64)
    return FrameOrigins(FrameOrigins.of(counts, degrees, names, look_up).blob)


def named(names):
    assert (names[1:] > names[:-1]).all(), "they ascend"
    return [(Origin("rows", f"'m{name}'", f"label {name}"),) for name in names.tolist()]


def numbered(names):
    assert (names[1:] > names[:-1]).all(), "they ascend"
    return NumberedOrigins("rows", names.astype(np.int64) * 100)


@given(groups)
def test_a_row_has_the_origins_of_its_roots_in_the_order_of_their_emits(groups):
    for look_up, text in ((named, "'m{}'"), (numbered, "{}00")):
        found = origins_of(groups, look_up)
        row = 0
        for count, roots in groups:
            for _ in range(count):
                expected = [text.format(root) if root or look_up is named else "0" for root in sorted(roots)]
                assert [origin.message_id_repr for origin in found.of_row(row)] == expected
                assert all(isinstance(origin, Origin) for origin in found.of_row(row))
                row += 1


def test_a_message_whose_id_is_a_number_takes_12_bytes():
    plain = [(6, [root]) for root in range(1000)]
    assert len(origins_of(plain, numbered).blob) < 12 * 1000 + 100


# The files of a checkpoint: they stay as they are.
GOLDEN_NUMBERED = (
    "03000000000000000c000000000000000200000003000000060000000000000018000000000000000000000000000000"
    "64000000000000000000000000000000060000000000000022726f7773220000"
)
GOLDEN_NAMED = (
    "03000000000000000c000000000000000200000003000000060000000000000018000000000000000000000000000000"
    "010000000000000000000000000000003e000000000000005b5b5b22726f7773222c2022276d3027222c20226c616265"
    "6c2030225d5d2c205b5b22726f7773222c2022276d3127222c20226c6162656c2031225d5d5d0000"
)


def test_the_bytes_are_those_of_the_first_release():
    plain = [(2, [0]), (1, [1]), (3, [0])]
    assert origins_of(plain, numbered).blob.hex() == GOLDEN_NUMBERED
    assert origins_of(plain, named).blob.hex() == GOLDEN_NAMED
