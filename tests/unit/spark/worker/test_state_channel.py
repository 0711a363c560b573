"""Requests to the state store come one after another, whichever thread makes them."""

from __future__ import annotations

import threading

import pytest

from acktree.core.state.store import MemoryStore
from acktree.spark.worker.state_channel import Channel, GuardedStore, StateChannelLostError


def test_threads_ask_one_after_another():
    channel, said = Channel(), []
    is_asking, may_end = threading.Event(), threading.Event()

    def ask(name: str) -> None:
        try:
            with channel.question():
                said.append(f"{name} asks")
                is_asking.set()
                may_end.wait(120)
                said.append(f"{name} has an answer")
        except BaseException as error:  # noqa: BLE001  # a lost channel is no Exception
            said.append(repr(error))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    is_asking.wait(120)
    threads[1].start()
    threads[1].join(0.05)  # without the lock it has been refused by now
    may_end.set()
    for thread in threads:
        thread.join(120)
    assert said == ["first asks", "first has an answer", "second asks", "second has an answer"]
    channel.refuse_if_lost()


class Failing(MemoryStore):
    """A disk that refuses one read."""

    def get(self, name):
        if name == "bad":
            raise OSError("the disk cannot read")
        return super().get(name)


def test_an_error_of_the_store_ends_the_level_also_if_user_code_catches_everything():
    store = GuardedStore(Failing())
    store.put("good", b"1")
    assert store.get("good") == b"1"
    with pytest.raises(StateChannelLostError, match="OSError: the disk cannot read"):
        store.get("bad")
    for later in (lambda: store.get("good"), lambda: store.put("good", b"2"), lambda: store.delete("good")):
        with pytest.raises(StateChannelLostError):
            later()
    with pytest.raises(StateChannelLostError):
        store.channel.refuse_if_lost()
