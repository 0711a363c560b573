from __future__ import annotations

import pytest

from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.runtime_folders import used


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory, monkeypatch):
    """A runtime folder of the test's own."""
    return used(tmp_path_factory.mktemp("r"), monkeypatch)


@pytest.fixture
def running(tmp_path):
    with started(tmp_path / "cp") as topology:
        yield topology
