"""A command asks the topology that the tests of the door ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.conftest import running, runtime

__all__ = ["running", "runtime", "with_letters"]


@pytest.fixture
def with_letters(running):
    """The topology with four dead letters."""
    mine = replace(LETTER, topology="numbers", spout="source", reason="\x1b[31m<script>")
    running.letters.put([replace(mine, root=root) for root in range(1, 5)])
    return running
