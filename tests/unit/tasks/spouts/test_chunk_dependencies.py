"""Which chunks must outlive which, beside the rule said plainly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acktree.tasks.spouts.chunks.open_chunks import ChunkDependencies


@given(st.integers(1, 12), st.data())
def test_no_chunk_goes_before_those_whose_retries_it_holds_and_in_the_end_all_are_gone(
    count: int, data: st.DataObject
) -> None:
    dependencies = ChunkDependencies()
    earlier: dict[int, set[int]] = {}
    for chunk in range(count):
        earlier[chunk] = data.draw(st.sets(st.integers(0, chunk - 1))) if chunk else set()
        dependencies.add(chunk, earlier[chunk])
    gone: list[int] = []
    through: set[int] = set()
    for chunk in data.draw(st.permutations(range(count))):
        gone += dependencies.let_go(chunk)
        through.add(chunk)
        assert set(gone) <= through
        assert all(earlier[each] <= set(gone[: gone.index(each)]) for each in gone)
        stuck = through - set(gone)
        assert all(earlier[each] - set(gone) for each in stuck)
    assert sorted(gone) == list(range(count))
