"""What tests of a state share: a store, and buckets that are soon full."""

from __future__ import annotations

import pytest

from acktree.core.state import key_value_state as module
from tests.unit.core.state.counting_store import CountingStore


@pytest.fixture
def store():
    return CountingStore()


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(module, "KEYS_PER_BUCKET", 2)
