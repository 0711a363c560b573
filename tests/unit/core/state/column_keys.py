"""Keys of a ColumnState, also such as have one hash, and a state that is bound."""

from __future__ import annotations

import pickle

from acktree import ColumnState
from acktree.core.ids import mix64_one

MASK = (1 << 64) - 1


def with_one_hash(count: int) -> list[bytes]:
    """Different keys of 16 bytes with one hash, made by undoing the last steps of the hash of a text."""

    def after_first_word(word: int) -> int:
        number = 0xBB67AE8584CAA73B ^ 16 * 0xA0761D6478BD642F & MASK
        return mix64_one((number + 0x9E3779B97F4A7C15 & MASK) ^ word) + 0x9E3779B97F4A7C15 & MASK

    wanted = after_first_word(0)
    words = [(first, after_first_word(first) ^ wanted) for first in range(count)]
    return [first.to_bytes(8, "little") + second.to_bytes(8, "little") for first, second in words]


ALIKE = with_one_hash(12)


KEYS = {
    str: ["", "a", "b", "ä", "a\0", "x" * 70, *(f"key {number}" for number in range(40))],
    bytes: [b"", b"a", b"a\0", b"\xff" * 65, *ALIKE],
    int: [0, 1, -1, (1 << 63) - 1, -(1 << 63), *range(2, 40)],
}


def bound_to(store, key=str, values=int):
    state = ColumnState(key, values)
    state.bind(store, pickle.dumps, pickle.loads)
    return state
