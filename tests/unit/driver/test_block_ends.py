"""What leaves the block of a topology that an error has stopped: that error, once."""

from __future__ import annotations

import pytest

from acktree.errors import SpoutError
from tests.unit.ui.driver_without_spark import Started

ERROR = SpoutError("the source is broken", "spout 'source'", "mend it")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started = Started(tmp_path / "cp")
    started.begin()
    return started


def breaks(run):
    (thread,) = run.run.threads.by_task.values()
    thread.broken = ERROR
    run.run.change.set()
    assert run.run.ended.wait(120)


def test_an_error_that_no_call_has_raised_is_raised_at_the_end_of_the_block(run) -> None:
    with pytest.raises(SpoutError, match="the source is broken"), run.handle:
        breaks(run)


def test_one_that_a_call_has_raised_is_not_raised_again(run) -> None:
    with run.handle as running:
        breaks(run)
        with pytest.raises(SpoutError, match="the source is broken"):
            running.await_termination(120)


def test_one_of_the_block_itself_goes_out_of_it(run) -> None:
    def ends() -> None:
        with run.handle:
            breaks(run)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ends()
