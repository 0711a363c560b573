"""Whether something can be read: as ``select.select`` says, but for any number of open files."""

from __future__ import annotations

import fcntl
import os
import resource
import socket

import pytest

from acktree.system.readable import is_readable


def test_what_is_sent_and_the_end_can_be_read():
    ours, theirs = socket.socketpair()
    with ours:
        assert not is_readable(ours)
        assert not is_readable(ours.fileno(), 0.001)
        theirs.send(b"x")
        assert is_readable(ours)
        assert is_readable(ours.fileno(), -1.0)
        ours.recv(1)
        assert not is_readable(ours)
        theirs.close()
        assert is_readable(ours)
    with pytest.raises(ValueError, match="negative"):
        is_readable(ours)


def test_a_descriptor_may_have_a_large_number():
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most <= 1100:
        pytest.skip(f"a process may have {most} files here")
    read, write = os.pipe()
    large = fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, 1050)
    try:
        os.write(write, b"x")
        assert is_readable(large)
    finally:
        for file in (read, write, large):
            os.close(file)
