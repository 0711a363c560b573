"""Lineages of either form: read from the wire, and concatenated for ``frames.put_together``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acktree.core.ids import Int32s, Int64s
from acktree.core.packing import Buffer, int32s, int64s, unpack
from acktree.core.tracking.lineage import RUNS, SPARSE, Lineage, Sparse, UInts
from acktree.core.tracking.lineage_runs import Runs


def lineage_from_bytes(blob: Buffer) -> Lineage:
    """Read what :meth:`Lineage.to_bytes` wrote; the arrays are views of the blob."""
    return lineage_of_parts(unpack(blob))


def lineage_of_parts(parts: Sequence[Buffer]) -> Lineage:
    """Read :meth:`Lineage.parts`; the arrays are views of them."""
    form_part, first, second, third, attempts_part = parts
    attempts = int32s(attempts_part) if len(attempts_part) else None
    form, *counted = int64s(form_part).tolist()
    if form == SPARSE:
        return Sparse(int64s(first), int64s(second), int64s(third), attempts)
    roots, stored = int64s(first), int64s(third)
    lengths: UInts | None = None
    if len(second):
        lengths = np.frombuffer(second, dtype=f"u{len(second) // len(roots)}")
    rows = counted[0] if counted else len(roots) if lengths is None else int(lengths.sum())
    edges, sums = (stored, None) if form == RUNS else (None, stored)
    return Runs(roots, None, edges=edges, sums=sums, attempts=attempts, lengths=lengths, rows=rows)


def concat_lineages(parts: Sequence[Lineage]) -> Lineage:
    """Concatenate one or more lineages. Adjacent rows of one root may then be in two runs."""
    runs = [part for part in parts if isinstance(part, Runs)]
    if len(runs) < len(parts):
        return _concat_sparse([part.sparse() for part in parts])
    attempts = [part.run_attempts for part in runs]
    rows, roots = sum(map(len, runs)), np.concatenate([part.roots for part in runs])
    together = _concat_attempts(attempts, [len(part.roots) for part in runs])
    lengths = None if rows == len(roots) else np.concatenate([_lengths_of(part) for part in runs])
    edges = sums = None
    if any(part.has_edges for part in runs):
        edges = np.concatenate([part.edges for part in runs])
    else:
        sums = np.concatenate([part.sums for part in runs])
    return Runs(roots, None, edges=edges, sums=sums, attempts=together, lengths=lengths, rows=rows)


def _lengths_of(part: Runs) -> UInts:
    return np.ones(len(part.roots), dtype=np.uint8) if part.lengths is None else part.lengths


def _concat_sparse(parts: Sequence[Sparse]) -> Sparse:
    return Sparse(
        _one_after_the_other([part.offsets for part in parts]),
        np.concatenate([part.roots for part in parts]),
        np.concatenate([part.edges for part in parts]),
        _concat_attempts([part.pair_attempts for part in parts], [len(part.roots) for part in parts]),
    )


def _one_after_the_other(offsets: Sequence[Int64s]) -> Int64s:
    """Concatenate offsets: each part begins at 0, the result continues from part to part."""
    shifts = np.cumsum([0, *(part[-1] for part in offsets)])
    moved = [part[1:] + shift for part, shift in zip(offsets, shifts[:-1].tolist(), strict=True)]
    return np.concatenate([np.zeros(1, dtype=np.int64), *moved])


def _concat_attempts(attempts: Sequence[Int32s | None], lengths: Sequence[int]) -> Int32s | None:
    if all(numbers is None for numbers in attempts):
        return None
    return np.concatenate(
        [
            np.ones(length, dtype=np.int32) if numbers is None else numbers
            for numbers, length in zip(attempts, lengths, strict=True)
        ]
    )
