"""The process that forks workers starts whatever can be imported beforehand."""

from __future__ import annotations

import gc
import sys

import pytest

from acktree.spark.worker import daemon


@pytest.mark.parametrize("raised", ["ImportError", "ValueError"])
def test_a_module_that_cannot_be_imported_is_left_to_the_worker(raised, tmp_path, monkeypatch):
    (tmp_path / f"unfit_{raised}.py").write_text(f"raise {raised}('numpy.dtype size changed')")
    (tmp_path / f"fit_{raised}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(daemon, "PRELOADED", (f"unfit_{raised}", f"fit_{raised}"))
    try:
        daemon.preload()
    finally:
        gc.unfreeze()
    assert f"fit_{raised}" in sys.modules


def test_a_worker_whose_connection_is_closed_ends_without_a_traceback():
    def closed(connection, authenticated):
        raise BrokenPipeError

    def broken(connection, authenticated):
        raise OSError("no such device")

    assert daemon.without_trace(closed)(None, authenticated=True) == 1
    with pytest.raises(OSError, match="no such device"):
        daemon.without_trace(broken)(None, authenticated=True)
    assert daemon.without_trace(lambda connection, authenticated: 0)(None, authenticated=True) == 0
