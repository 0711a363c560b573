"""Of two drivers at one URL one may write; who was followed writes nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint import lease as module
from acktree.checkpoint.lease import SILENT_SECS, Holder, Lease
from acktree.errors import CheckpointError
from tests.unit.checkpoint.remote_folder import RemoteFolder


@pytest.fixture
def remote(tmp_path: Path) -> RemoteFolder:
    return RemoteFolder(tmp_path / "there")


def copy_of(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / f"acktree-{name}"
    folder.mkdir()
    return folder


def test_a_second_driver_is_refused_with_the_holder_and_the_age_of_its_lease(remote, tmp_path):
    Lease.take(remote, copy_of(tmp_path, "1"))
    remote.age(7)
    with pytest.raises(CheckpointError, match="another driver runs on this checkpoint") as raised:
        Lease.take(remote, copy_of(tmp_path, "2"))
    assert f"process {os.getpid()} renewed its lease 7 s ago" in raised.value.where
    assert "silent for 30 s" in raised.value.fix
    assert len(remote.names("lease")) == 1, "the question for the time is taken away"


def test_a_file_that_is_no_lease_counts_as_none(remote, tmp_path):
    remote.make("lease")
    for name in ("9", "\u00b2", "000000000009~"):
        (remote.folder / "lease" / name).touch()
    Lease.take(remote, copy_of(tmp_path, "1")).check()
    assert {"9", "\u00b2", "000000000009~"} < remote.names("lease").keys()


def test_a_lease_that_was_renewed_keeps_others_out_as_a_new_one(remote, tmp_path):
    mine = Lease.take(remote, copy_of(tmp_path, "1"))
    remote.age(SILENT_SECS + 1)
    mine.renew()
    with pytest.raises(CheckpointError, match="another driver runs"):
        Lease.take(remote, copy_of(tmp_path, "2"))


def test_a_silent_driver_may_be_replaced_and_gets_an_error_when_it_wakes_up(remote, tmp_path):
    first = Lease.take(remote, copy_of(tmp_path, "1"))
    remote.age(SILENT_SECS + 1)
    first.check()  # silence alone costs nothing
    second = Lease.take(remote, copy_of(tmp_path, "2"))
    for deed in (first.check, first.renew, first.release):
        with pytest.raises(CheckpointError, match="another driver has taken over this checkpoint"):
            deed()
    second.check()


def test_a_replaced_driver_that_writes_its_lease_again_does_not_regain_it(remote, tmp_path):
    first = Lease.take(remote, copy_of(tmp_path, "1"))
    note = (remote.folder / "lease" / "000000000001").read_bytes()
    remote.age(SILENT_SECS + 1)
    second = Lease.take(remote, copy_of(tmp_path, "2"))
    (remote.folder / "lease" / "000000000001").write_bytes(note)  # it was stopped between look and write
    with pytest.raises(CheckpointError, match="taken over"):
        first.check()
    second.check()
    second.release()
    third = Lease.take(remote, copy_of(tmp_path, "3"))
    assert list(remote.names("lease")) == ["000000000003"]
    with pytest.raises(CheckpointError, match="taken over"):
        first.check()
    third.check()


def test_what_was_let_go_of_is_free_at_once(remote, tmp_path):
    Lease.take(remote, copy_of(tmp_path, "1")).release()
    Lease.take(remote, copy_of(tmp_path, "2")).check()


def test_of_two_that_find_a_free_lease_at_once_one_gets_it(remote, tmp_path, monkeypatch):
    folders = copy_of(tmp_path, "1"), copy_of(tmp_path, "2")
    put_new = remote.put_new

    def other_was_faster(file: Path, name: str) -> bool:
        monkeypatch.undo()
        Lease.take(remote, folders[1])
        return put_new(file, name)

    monkeypatch.setattr(remote, "put_new", other_was_faster)
    with pytest.raises(CheckpointError, match="another driver runs"):
        Lease.take(remote, folders[0])


@pytest.mark.parametrize("torn", [b"", b'{"host": "h"', b'{"host": "h"}'])
def test_a_lease_that_cannot_be_read_keeps_others_out_for_its_time(remote, tmp_path, torn):
    Lease.take(remote, copy_of(tmp_path, "1"))
    (remote.folder / "lease" / "000000000001").write_bytes(torn)
    with pytest.raises(CheckpointError, match="another driver runs"):
        Lease.take(remote, copy_of(tmp_path, "2"))
    remote.age(SILENT_SECS + 1)
    Lease.take(remote, copy_of(tmp_path, "3")).check()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_process_that_nobody_waited_for_is_dead(tmp_path):
    child = subprocess.Popen(["true"])
    holder = Holder("here", child.pid, module._machine(), str(tmp_path))
    until = time.monotonic() + 120
    while not holder.is_dead:
        assert time.monotonic() < until
    child.wait()


def dead(folder: Path, machine: str) -> Holder:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return Holder("here", child, machine, str(folder))


def test_a_process_known_to_be_dead_is_replaced_at_once_and_its_working_copy_deleted(remote, tmp_path):
    folder = copy_of(tmp_path, "1")
    Lease.take(remote, folder)
    note = remote.folder / "lease" / "000000000001"
    note.write_text(json.dumps(asdict(dead(folder, module._machine()))))
    Lease.take(remote, copy_of(tmp_path, "2")).check()
    assert not folder.exists()


@pytest.mark.parametrize("machine", ["", "another boot pid:[1]"])
def test_a_process_of_another_machine_is_never_known_to_be_dead(remote, tmp_path, machine):
    folder = copy_of(tmp_path, "1")
    Lease.take(remote, folder)
    note = remote.folder / "lease" / "000000000001"
    note.write_text(json.dumps(asdict(dead(folder, machine))))
    with pytest.raises(CheckpointError, match="another driver runs"):
        Lease.take(remote, copy_of(tmp_path, "2"))
    assert folder.exists()
