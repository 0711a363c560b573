"""The acker of these tests: a ledger that is rebuilt from its changes for every micro-batch.

Messages to the ledger are written as Storm writes them: ("init", root, sum), ("ack", root, delta),
("fail", root, reason), ("reset", root). All roots are opened by spout task 7 unless said otherwise.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from acktree.core.ids import edge_ids, root_ids
from acktree.core.tracking.deltas import Deltas
from acktree.core.tracking.ledger import Ledger

T = 30_000
OWNER = 7
ACKED, FAILED, TIMED_OUT = "ACKED", "FAILED", "TIMED_OUT"


def deltas_of(*messages):
    inits = [(*said, OWNER)[:3] for kind, *said in messages if kind == "init"]
    acks = [said for kind, *said in messages if kind == "ack"]
    fails = [said for kind, *said in messages if kind == "fail"]

    def column(rows, at, dtype=np.int64):
        return np.array([row[at] for row in rows], dtype=dtype)

    return Deltas(
        column(inits, 0), column(inits, 1), column(inits, 2, np.int32), column(acks, 0), column(acks, 1),
        column(fails, 0), np.arange(len(fails)), tuple(reason for _, reason in fails),
        column([said for kind, *said in messages if kind == "reset"], 0),
    )  # fmt: skip


class Acker:
    """A ledger that is rebuilt for every micro-batch, as if the driver had died after each."""

    def __init__(self, timeout_ms=T, timeout_of=None):
        self.timeout_ms = timeout_ms
        self.timeout_of = timeout_of or {}
        self.whole, self.changes = None, []
        self.said = None  # the last settlement

    def ledger(self):
        """From the last whole and the changes since."""
        rebuilt = Ledger(self.timeout_ms, self.whole, timeout_of=self.timeout_of)
        for change in self.changes:
            rebuilt.replay(change)
        return rebuilt

    def hears(self, *messages, now_ms=0, is_first=False):
        """Root -> verdict of one micro-batch."""
        ledger = self.ledger()
        self.said = said = ledger.judge(deltas_of(*messages), now_ms, is_first=is_first)
        if said.change:
            self.changes.append(said.change)
        judged = ((ACKED, said.acked), (FAILED, said.failed), (TIMED_OUT, said.timed_out))
        verdicts = [(root, verdict) for verdict, which in judged for root in which.roots.tolist()]
        assert len(dict(verdicts)) == len(verdicts)
        owners = [OWNER, *self.timeout_of]
        assert all(np.isin(which.owners, owners).all() for _, which in judged)
        assert said.open_count == ledger.open_count == self.ledger().open_count
        return dict(verdicts)

    def becomes_whole(self):
        """Let a whole ledger take the place of all changes."""
        self.whole, self.changes = self.ledger().to_bytes(), []

    @property
    def open_count(self):
        return self.said.open_count


@st.composite
def trees(draw):
    """The messages of one tree, or DAG, whose tuples were all acked: the init, then an ack for each tuple."""
    (root,) = root_ids(1, 2, np.array([draw(st.integers(0, 1000))])).tolist()
    owed = {0: 0}  # tuple -> what its ack says; tuple 0 is the spout, whose ack is the init
    folds = {0: root}
    ordinals = {0: 0}
    for tuple_ in range(1, draw(st.integers(1, 12)) + 1):
        anchors = draw(st.sets(st.integers(0 if tuple_ < 3 else 1, tuple_ - 1), min_size=1, max_size=2))
        if 0 in anchors:
            anchors = {0}  # a spout's tuple has no other anchor
        carried = 0
        for anchor in sorted(anchors):
            fold = np.array([folds[anchor]], dtype=np.int64).view(np.uint64)
            (edge,) = edge_ids(fold, np.array([tuple_ % 3], np.uint64), np.array([ordinals[anchor]])).tolist()
            ordinals[anchor] += 1
            owed[anchor] ^= edge
            carried ^= edge
        owed[tuple_], folds[tuple_], ordinals[tuple_] = carried, carried, 0
    return [("init", root, owed.pop(0)), *(("ack", root, said) for said in owed.values())]
