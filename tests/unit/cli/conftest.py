"""A command asks the topology that the tests of the door ask."""

from __future__ import annotations

from tests.unit.ui.conftest import running, runtime

__all__ = ["running", "runtime"]
