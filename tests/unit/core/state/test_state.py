"""Named blobs in memory, and corners of a store that do not see each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.state.store import Below, MemoryStore

names = st.sampled_from(["a", "b", "bucket/1", ""])


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "delete"]), st.integers(0, 2), names, st.binary())))
def test_corners_are_dicts_that_do_not_see_each_other(actions):
    whole = MemoryStore()
    corners = [Below(whole, "one/"), Below(Below(whole, "two/"), "inner/"), Below(whole, "two/")]
    naive = [{}, {}, {}]
    for action, number, name, blob in actions:
        corner, model = corners[number], naive[number]
        if action == "put":
            corner.put(name, blob)
            model[name] = blob
        elif action == "delete" and name in model:
            corner.delete(name)
            del model[name]
        assert corner.get(name) == model.get(name)
    prefixes = ("one/", "two/inner/", "two/")
    assert whole.blobs == {
        prefix + name: blob
        for prefix, model in zip(prefixes, naive, strict=True)
        for name, blob in model.items()
    }


def test_forgetting_what_is_not_there_is_a_mistake():
    with pytest.raises(KeyError):
        MemoryStore().delete("a")
