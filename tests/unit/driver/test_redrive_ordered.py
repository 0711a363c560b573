"""Dead letters that the next run is to send again: all that can be sent, and the order outlives an outage."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from threading import Event

import pytest

from acktree import Config, ConnectorError, IterableSpout, MisuseError, TopologyBuilder
from acktree.checkpoint.folder import Checkpoint
from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.driver.resume import redrive_ordered, send
from acktree.driver.spouts.spout_threads import Threads
from tests.unit.dead_letters.letters import LETTER

ORDERED_MS = 1_800_000_000_000


@pytest.fixture
def held(tmp_path):
    builder = TopologyBuilder("numbers")
    builder.set_spout("numbers", IterableSpout(range(3), outputs=["n"]))
    with closing(Checkpoint(tmp_path / "cp")) as checkpoint:
        checkpoint.begin_run(builder.create_topology(), Config(), 1)
        checkpoint.order_redrive([1, 2, 3, 99], ORDERED_MS)
        yield checkpoint


def store_of(send):
    letters = DeadLetters(IN_MEMORY, send=send)
    letters.put([replace(LETTER, root=root) for root in range(1, 4)])
    return letters


def test_one_letter_that_is_refused_keeps_no_other_back(held):
    sent = []

    def send(letters):
        if any(letter.id == 2 for letter in letters):
            raise MisuseError("another topology's", "letter 2", "none")
        sent.extend(letter.id for letter in letters)

    redrive_ordered(held, store_of(send))
    assert sent == [1, 3]
    assert [*held.letters_to_redrive] == [1, 2, 3]  # 99 is gone


def test_many_letters_are_sent_in_few_calls(held):
    """Each call reads all orders, so one call for each letter would take the square of their number."""
    calls, sent = [], []

    def send(letters):
        calls.append(len(letters))
        if any(letter.id == 300 for letter in letters):
            raise MisuseError("another topology's", "letter 300", "none")
        sent.extend(letter.id for letter in letters)

    letters = DeadLetters(IN_MEMORY, send=send)
    letters.put([replace(LETTER, root=root) for root in range(1, 501)])
    held.order_redrive(range(1, 501), ORDERED_MS)
    redrive_ordered(held, letters)
    assert sent == [number for number in range(1, 501) if number != 300]
    assert len(calls) < 25
    assert len(held.letters_to_redrive) == 500


def test_an_order_stays_where_the_store_is_away(held, monkeypatch):
    letters = store_of(lambda _: None)
    letters.close()
    with pytest.raises(ConnectorError):
        redrive_ordered(held, letters)
    assert [*held.letters_to_redrive] == [1, 2, 3, 99]


def test_an_order_stands_until_its_letter_has_a_verdict_that_is_younger(held):
    sent = []
    letters = store_of(lambda given: sent.extend(letter.id for letter in given))
    letters.mark_settled([1], ORDERED_MS - 1)  # the verdict of an earlier redrive
    letters.mark_settled([2], ORDERED_MS)
    redrive_ordered(held, letters)
    assert sent == [1, 3]
    redrive_ordered(held, letters)  # the next driver, after this one died
    assert sent == [1, 3, 1, 3]
    letters.mark_settled([1, 3], ORDERED_MS + 5)
    redrive_ordered(held, letters)
    assert sent == [1, 3, 1, 3]
    assert not held.letters_to_redrive


def test_a_topology_that_ended_is_over_again_when_its_letters_have_their_verdicts(held):
    held.mark_ended()
    assert held.is_over
    held.order_redrive([1], ORDERED_MS)
    assert (held.has_ended, held.is_over) == (True, False)
    held.mark_ended()
    assert held.is_over


def test_a_topology_that_ended_keeps_its_orders_until_it_ends_again(held):
    """Letter 3 may have been sent again by hand meanwhile: without an order nobody would go on with it."""
    held.mark_ended()
    held.order_redrive([1], ORDERED_MS)
    sent = []
    letters = store_of(lambda given: sent.extend(letter.id for letter in given))
    letters.mark_settled([1], ORDERED_MS + 5)
    redrive_ordered(held, letters)
    assert (sent, held.is_over) == ([], False)


def test_a_letter_is_refused_once_the_spouts_are_asked_to_stop():
    threads = Threads()
    threads.stop()
    builder = TopologyBuilder("numbers")
    builder.set_spout("numbers", IterableSpout(range(3), outputs=["n"]))
    with pytest.raises(MisuseError, match="order it for the next run"):
        send(builder.create_topology(), threads, Event(), [])
