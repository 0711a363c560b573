"""Concatenates the lineages of several frames: see ``frames.put_together``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acktree.core.ids import Int32s, Int64s
from acktree.core.tracking.lineage import Lineage, Runs, Sparse


def concat_lineages(parts: Sequence[Lineage]) -> Lineage:
    """Concatenate one or more lineages. Adjacent rows of one root may then be in two runs."""
    runs = [part for part in parts if isinstance(part, Runs)]
    if len(runs) < len(parts):
        return _concat_sparse([part.sparse() for part in parts])
    attempts = [part.run_attempts for part in runs]
    starts = _one_after_the_other([part.starts for part in runs])
    roots = np.concatenate([part.roots for part in runs])
    together = _concat_attempts(attempts, [len(part.roots) for part in runs])
    if any(part.has_edges for part in runs):
        return Runs(roots, starts, edges=np.concatenate([part.edges for part in runs]), attempts=together)
    return Runs(roots, starts, sums=np.concatenate([part.sums for part in runs]), attempts=together)


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
    if all(each is None for each in attempts):
        return None
    return np.concatenate(
        [
            np.ones(length, dtype=np.int32) if each is None else each
            for each, length in zip(attempts, lengths, strict=True)
        ]
    )
