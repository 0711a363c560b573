"""The receiving thread: bounded, in order, and errors are raised after the items before them."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
import time

import pytest

from acktree import Receiver


@pytest.fixture
def made():
    receivers = []

    def make(receive, **options):
        receivers.append(Receiver(receive, **options))
        return receivers[-1]

    yield make
    for receiver in receivers:
        assert receiver.close(10)


class Source:
    """What ``receive`` gives is put in by the test; its calls are counted."""

    def __init__(self):
        self.given, self.woken, self.calls = queue.Queue(), threading.Semaphore(0), 0

    def receive(self):
        self.calls += 1
        try:
            item = self.given.get(timeout=0.05)
        except queue.Empty:
            return []
        if isinstance(item, BaseException):
            raise item
        return item

    async def receive_later(self):
        await asyncio.sleep(0)
        return self.receive()

    def wake(self):
        self.woken.release()

    def comes(self):
        assert self.woken.acquire(timeout=120)


@pytest.mark.parametrize("is_async", [False, True])
def test_items_come_in_order_and_the_spout_is_woken(made, is_async):
    source = Source()
    receiver = made(source.receive_later if is_async else source.receive, wake=source.wake)
    assert receiver.get() is None
    source.given.put([1, 2])
    source.given.put([3])
    source.comes()
    source.comes()
    assert [receiver.get() for _ in range(4)] == [1, 2, 3, None]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_is_raised_once_after_the_items_before_it_and_then_receiving_continues(made, is_async):
    source = Source()
    receiver = made(source.receive_later if is_async else source.receive, wake=source.wake)
    for item in ([1], OSError("gone"), [2]):
        source.given.put(item)
    source.comes()
    source.comes()
    assert not source.given.empty()  # nothing is received while the error waits
    assert receiver.get() == 1
    with pytest.raises(OSError, match="gone"):
        receiver.get()
    source.comes()
    assert receiver.get() == 2
    assert receiver.get() is None


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_an_exception_that_is_no_error_is_raised_too_and_does_not_end_the_receiving(made, kind, is_async):
    source = Source()
    receiver = made(source.receive_later if is_async else source.receive, wake=source.wake)
    source.given.put(kind("as the test says"))
    source.comes()
    with pytest.raises(kind, match="as the test says"):
        receiver.get()
    source.given.put([1])
    source.comes()
    assert receiver.get() == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wake_that_raises_is_an_error_and_ends_no_receiving(made, is_async):
    source, wakes = Source(), []

    def wake():
        wakes.append(None)
        if len(wakes) <= 2:
            raise RuntimeError("wake")
        source.wake()

    receiver = made(source.receive_later if is_async else source.receive, wake=wake)
    source.given.put([1])
    while len(wakes) < 2:
        time.sleep(0.001)
    source.given.put([2])
    assert receiver.get() == 1
    with pytest.raises(RuntimeError, match="wake"):
        receiver.get()
    source.comes()
    assert receiver.get() == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_none_is_no_items(made, is_async):
    source = Source()
    receiver = made(source.receive_later if is_async else source.receive, wake=source.wake)
    source.given.put(None)
    source.given.put([1])
    source.comes()
    assert receiver.get() == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_what_cannot_be_items_is_an_error_that_says_what_to_return(made, is_async):
    source = Source()
    receiver = made(source.receive_later if is_async else source.receive, wake=source.wake)
    for wrong, name in ((7, "int"), (asyncio.sleep(0), "coroutine")):
        source.given.put(wrong)
        source.comes()
        with pytest.raises(TypeError, match=f"receive returned '{name}'.*return a list.*async def"):
            receiver.get()
    source.given.put([1])
    source.comes()
    assert receiver.get() == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_nothing_is_received_while_there_is_no_room(made, is_async):
    source = Source()
    receiver = made(source.receive_later if is_async else source.receive, most=2, wake=source.wake)
    for n in range(4):
        source.given.put([n])
    source.comes()
    source.comes()
    assert (len(receiver), source.given.qsize()) == (2, 2)
    assert receiver.clear() == [0, 1]
    source.comes()
    assert receiver.get() == 2


def test_coroutines_run_beside_receive_on_its_loop(made):
    source = Source()
    started = threading.Event()

    async def receive():
        started.set()
        await asyncio.Event().wait()  # for ever

    async def add(one, other):
        return one + other

    receiver = made(receive)
    assert started.wait(120)
    assert receiver.call(add(1, 2), 10) == 3
    with pytest.raises(TimeoutError):
        receiver.call(asyncio.sleep(60), 0.01)
    assert source.calls == 0


def test_a_receive_that_blocks_is_left_behind():
    may_end = threading.Event()
    receiver = Receiver(lambda: may_end.wait(120) and [])
    assert not receiver.close(0.01)
    may_end.set()
    assert receiver.close(10)


def test_what_waits_can_be_looked_at_and_stays(made):
    source = Source()
    receiver = made(source.receive, wake=source.wake)
    source.given.put([1, 2])
    source.comes()
    assert receiver.waiting() == [1, 2]
    assert receiver.get() == 1
    assert receiver.waiting() == [2]


def test_a_process_ends_although_a_receiver_without_room_was_not_closed():
    program = """
import threading
from acktree import Receiver
came = threading.Event()
async def receive():
    return [1]
receiver = Receiver(receive, most=1, wake=came.set)
assert came.wait(120)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
