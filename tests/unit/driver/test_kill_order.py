"""The order to kill a run: the newest one counts, until the run stops."""

from __future__ import annotations

import math

import pytest

from acktree.driver.kill_order import KillOrder


def busy() -> bool:
    return False


def idle() -> bool:
    return True


def test_nothing_is_due_before_an_order():
    order = KillOrder()
    assert not order.is_given
    assert order.left_secs() is None
    assert not order.is_due(idle)


@pytest.mark.parametrize(("first", "second", "is_due"), [(0, 600, False), (600, 0, True)])
def test_the_newest_order_counts_whether_its_wait_is_longer_or_shorter(first, second, is_due):
    order = KillOrder()
    assert [order.give(first), order.give(second)] == [first, second]
    assert order.is_due(busy) is is_due


def test_it_is_due_as_soon_as_no_message_is_open():
    order = KillOrder()
    order.give(600)
    assert not order.is_due(busy)
    assert order.is_due(idle)


def test_what_was_due_once_stays_due_whatever_becomes_open_meanwhile():
    order = KillOrder()
    order.give(600)
    assert order.is_due(idle)
    assert order.is_due(busy)
    assert order.give(600) == 0


def test_an_order_that_comes_while_it_is_looked_whether_messages_are_open_counts():
    order = KillOrder()
    order.give(600)

    def idle_and_ordered_again():
        order.give(300)
        return True

    assert not order.is_due(idle_and_ordered_again)
    assert 200 < order.left_secs() <= 300
    assert order.is_due(idle)


def test_a_run_that_stops_is_not_stopped_later_by_a_longer_wait():
    order = KillOrder()
    order.give(0)
    assert order.is_due(busy)
    assert order.give(600) == 0
    assert order.is_due(busy)


def test_a_run_that_something_else_has_stopped_takes_no_order():
    order = KillOrder()
    order.close()
    assert order.give(600) == 0
    assert not order.is_given


@pytest.mark.parametrize("secs", [-1.0, math.nan])
def test_a_wait_that_is_no_time_is_none(secs):
    order = KillOrder()
    order.give(secs)
    assert order.left_secs() == 0
    assert order.is_due(busy)
