"""What the rows of a DataFrame held, kept beside the acker's buckets for as long as they are open.

A queue or the inbox can bring a message back; a DataFrame's source has moved on. So with a retry policy a row
rides along to the acker and is dropped with its verdict, or handed to the driver when it failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from acktree.core.ids import Int64s
from acktree.core.packing import Buffer, int64s, pack, unpack
from acktree.core.state import StateStore
from acktree.core.values import batch_from_bytes, batch_to_bytes

Payload = tuple[Int64s, pa.RecordBatch]
"""Roots, and the row of each."""


def payload_of_wire(head: Buffer, body: Buffer) -> Payload:
    """Read the head and body of a row of kind PAYLOADS."""
    (roots,) = unpack(head)
    return int64s(roots), batch_from_bytes(body)


class Payloads:
    """The payloads of one acker task; a blob of the state store for each run of rows that came together."""

    def __init__(self, store: StateStore) -> None:
        """Open what ``store`` holds."""
        self._store = store
        blob = store.get("directory")
        self._numbers: list[int] = [] if blob is None else json.loads(blob)

    def settle(
        self, arrived: Iterable[Payload], acked: Int64s, failed: Int64s
    ) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """Take in what came, let go of what was judged.

        Yields:
            The payloads of those that failed.
        """
        kept_numbers: list[int] = []
        for number in self._numbers:
            roots, values = self._load(number)
            yield from _those(roots, values, np.isin(roots, failed))
            is_open = ~np.isin(roots, np.concatenate((acked, failed)))
            if is_open.all():
                kept_numbers.append(number)
            elif is_open.any():
                self._save(number, *next(_those(roots, values, is_open)))
                kept_numbers.append(number)
            else:
                self._store.delete(f"rows/{number}")
        number = max(self._numbers, default=-1)
        for roots, values in arrived:
            yield from _those(roots, values, np.isin(roots, failed))
            for left in _those(roots, values, ~np.isin(roots, np.concatenate((acked, failed)))):
                number += 1
                self._save(number, *left)
                kept_numbers.append(number)
        if kept_numbers != self._numbers:
            self._store.put("directory", json.dumps(kept_numbers).encode())
            self._numbers = kept_numbers

    def _load(self, number: int) -> Payload:
        blob = self._store.get(f"rows/{number}")
        assert blob is not None, "the directory names what is there"
        head, body = unpack(blob)
        return int64s(head), batch_from_bytes(body)

    def _save(self, number: int, roots: Int64s, values: pa.RecordBatch) -> None:
        self._store.put(f"rows/{number}", pack(roots, batch_to_bytes(values)))


def _those(
    roots: Int64s, values: pa.RecordBatch, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Iterator[Payload]:
    which: Sequence[int] = np.flatnonzero(wanted)  # type: ignore[assignment]  # an array counts
    if len(which):
        yield roots[which], values.take(pa.array(which))
