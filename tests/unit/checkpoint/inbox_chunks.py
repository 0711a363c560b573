"""Chunks for tests of the inbox."""

from __future__ import annotations

import pickle

from acktree.core.data.values import encode_rows
from acktree.tasks.chunk import Chunk


def chunk_of(
    *numbers: int, task: int = 1, first_sequence: int = 0, position: object = None, is_tracked: bool = True
) -> Chunk:
    """Messages of one field, with their own numbers as ids."""
    return Chunk(
        "numbers",
        task,
        "default",
        is_tracked,
        first_sequence,
        1_000,
        encode_rows(["n"], [[number] for number in numbers]),
        message_ids=pickle.dumps(list(numbers)) if is_tracked else b"",
        position=b"" if position is None else pickle.dumps({"position": position}),
    )
