"""What a child process that a user's code forks must not keep."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from acktree.system import forks
from acktree.system.forks import close_file_in_children, close_in_children, lose_in_children, note_closed
from acktree.system.private_files import Disk
from tests.unit.forked import child, descriptors_of


def test_a_lock_ends_with_the_process_that_took_it_though_a_child_lives(tmp_path):
    file = tmp_path / "lock"
    file.touch()
    held = Disk().lock(file)
    with child() as pid:
        with pytest.raises(BlockingIOError):
            Disk().lock(file)
        while str(file) in descriptors_of(pid):
            pass  # until the child has begun
        os.close(held)  # as a SIGKILL does
        note_closed(held)
        Disk().unlock(Disk().lock(file))


def test_a_number_that_another_file_has_now_is_not_closed(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    held = os.open(first, os.O_CREAT)
    close_in_children(held)
    note_closed(held)
    os.close(held)
    again = os.open(second, os.O_CREAT)
    assert again == held
    with child() as pid:
        assert str(second) in descriptors_of(pid)
    os.close(again)


def test_a_process_that_ends_with_its_stdin_ends_though_a_child_lives():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, text=True) as reads:
        close_file_in_children(reads.stdin)
        with child():
            reads.stdin.close()  # as a SIGKILL does
            assert reads.wait(120) == 0


def test_a_file_that_was_closed_before_takes_no_other_with_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with first.open("w") as file:
        close_file_in_children(file)
        held = file.fileno()
    again = os.open(second, os.O_CREAT)
    assert again == held
    with child() as pid:
        assert str(second) in descriptors_of(pid)
    os.close(again)


@pytest.fixture
def nothing_lost(monkeypatch):
    """What the test's process lets its children lose is forgotten with the test."""
    monkeypatch.setattr(forks, "_lost_by_children", {})


@pytest.mark.usefixtures("nothing_lost")
def test_who_is_at_the_other_end_of_a_lost_socket_sees_its_end_though_a_child_lives():
    ours, theirs = socket.socketpair()
    file = ours.makefile("rwb")
    again = socket.socket(fileno=os.dup(ours.fileno()))
    lose_in_children(ours.fileno())
    name = str(Path(f"/proc/self/fd/{ours.fileno()}").readlink())
    with child() as pid, theirs:
        while name in descriptors_of(pid):
            pass  # until the child has begun
        assert os.devnull in descriptors_of(pid)
        for end in (file, ours, again):
            end.close()
        theirs.settimeout(60)
        assert theirs.recv(1) == b""


@pytest.mark.usefixtures("nothing_lost")
def test_a_number_is_given_for_one_socket_at_a_time():
    first, first_end = socket.socketpair()
    lose_in_children(first.fileno())
    second, second_end = socket.socketpair()
    with first, first_end, second, second_end:
        os.dup2(second.fileno(), first.fileno(), inheritable=False)  # as a worker that is kept does
        second.close()
        lose_in_children(first.fileno())
        name = str(Path(f"/proc/self/fd/{first.fileno()}").readlink())
        with child() as pid:
            while name in descriptors_of(pid):
                pass
            first.close()
            second_end.settimeout(60)
            assert second_end.recv(1) == b""
