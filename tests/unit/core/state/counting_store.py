"""A store that remembers what was asked of it, for tests of what a state reads and writes."""

from __future__ import annotations

import pickle

from acktree.core.state.key_value_state import KeyValueState
from acktree.core.state.store import MemoryStore


class CountingStore(MemoryStore):
    """Remembers what was asked of it."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get(self, name):
        self.asked.append(("get", name))
        return super().get(name)

    def put(self, name, blob):
        self.asked.append(("put", name))
        super().put(name, blob)

    def delete(self, name):
        self.asked.append(("delete", name))
        super().delete(name)

    def calls(self, *kinds):
        """What was asked of these kinds since last called."""
        asked, self.asked = self.asked, []
        return [name for kind, name in asked if kind in kinds]


def bound_to(store, initial=None):
    state = KeyValueState(initial)
    state.bind(store, pickle.dumps, pickle.loads)
    return state
