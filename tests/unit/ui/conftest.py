from __future__ import annotations

import pytest

from tests.unit.ui.driver_without_spark import started


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory, monkeypatch):
    """A runtime folder of the test's own."""
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    return folder / "acktree"


@pytest.fixture
def running(tmp_path):
    with started(tmp_path / "cp") as topology:
        yield topology
