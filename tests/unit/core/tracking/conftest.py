"""What the tests of the core share."""

from __future__ import annotations

import pytest

from tests.unit.core.tracking.ledgers import Acker


@pytest.fixture
def acker() -> Acker:
    """A ledger in which nothing is open."""
    return Acker()
