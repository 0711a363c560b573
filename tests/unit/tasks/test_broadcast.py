"""A broadcast is read as it was sent, part by part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.frames import Kind, WireRow
from acktree.tasks.broadcast import Broadcast, OperatorOrder

shares = st.dictionaries(st.text(max_size=5), st.floats(0, 1), max_size=3)
orders = st.none() | st.builds(OperatorOrder, st.floats(0, 1), shares)
ticks = st.dictionaries(st.text(max_size=5), st.floats(0.001, 1e6), max_size=3)


@given(ticks, orders, st.none() | st.integers(0, 1 << 60), st.booleans())
def test_each_part_arrives_as_it_was_sent_whatever_is_beside_it(due, order, end, is_first):
    sent = Broadcast(due, order, end, is_first and end is not None)
    other = WireRow(1, 2, int(Kind.CHUNK), 0, 0, 0, b"[]", b"")
    empty = Broadcast().row(1, 2)
    assert Broadcast.of([other, sent.row(1, 2, 9), empty, other]) == sent
    assert sent.row(1, 2, 9).clock_ms == 9
