"""Whether a spout for a queue keeps the contract, asked of the real queue.

Rules of this file
------------------
1. Every check uses the public contract alone, so that it holds for every spout.
2. No check is specific to a broker: what has to happen to one is a method of ``Broker``.
3. A check fails with an AssertionError that begins with its name.

Source: ours. It is the list of what was seen to lose, repeat or falsely acknowledge messages.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from acktree.core.spouts.retry import Retry
from acktree.errors import ConnectorError
from acktree.testing.broker import Broker, MakeSpout
from acktree.testing.spout_case import Case, expect
from acktree.testing.spout_harness import SpoutHarness

__all__ = ["SPOUT_CHECKS", "check_spout"]

_FDS: Final = Path("/proc/self/fd")
ERROR_SECS: Final = 10.0
"""An error must be reported within this time."""


def check_spout(make_spout: MakeSpout, broker: Broker, *, only: Iterable[str] | None = None) -> None:
    """Check a spout against its queue; takes some minutes.

    Args:
        make_spout: Makes a spout that reads the broker's queue, not opened.
        broker: The queue. Its ``clear`` is called before each check.
        only: Names of :data:`SPOUT_CHECKS`; None for all. A test can take one at a time.

    Raises:
        AssertionError: The first check that fails, with its name and what was seen.
    """
    for name in SPOUT_CHECKS if only is None else only:
        broker.clear()
        try:
            _CHECKS[name](Case(make_spout, broker))
        except AssertionError as failed:
            raise AssertionError(f"{name}: {failed}") from failed
        except ConnectorError as error:
            raise AssertionError(f"{name}: the spout stopped the topology: {error}") from error


def _opens_and_closes_without_leaks(case: Case) -> None:
    def once() -> None:
        with case.open() as harness:
            harness.rest(0.1)

    left = 0, 0
    once()  # what a client keeps for good is there now
    for _ in range(3):  # a leak adds with every opening; a client of the test's own may reconnect meanwhile
        threads, files = _held()
        for _ in range(3):
            once()
        left = _left_over(threads, files)
        if left == (0, 0):
            return
    expect(not left[0], f"{left[0]} threads are left after three openings")
    expect(not left[1], f"{left[1]} files or sockets are left after three openings")


def _left_over(threads: int, files: int) -> tuple[int, int]:
    """How many more threads and files there are than these, once what is closing had five seconds."""
    deadline = time.monotonic() + 5
    while True:
        now = _held()
        left = max(0, now[0] - threads), max(0, now[1] - files)
        if left == (0, 0) or time.monotonic() >= deadline:
            return left
        time.sleep(0.05)


def _held() -> tuple[int, int]:
    """How many threads this process has, and how many open files, where the system says so."""
    return threading.active_count(), sum(1 for _ in _FDS.iterdir()) if _FDS.exists() else 0


def _each_message_at_least_once(case: Case) -> None:
    wanted = case.put(50)
    with case.open() as harness:
        case.ack_all(harness, wanted)
    case.expect_left(0)


def _acks_out_of_order(case: Case) -> None:
    wanted = case.put(20)
    with case.open() as harness:
        arrived = case.until_arrived(harness, 20, "20 messages come")
        acked = arrived[1::2]
        for each in reversed(acked):
            harness.ack([each])
        harness.rest(0.3)
    missing = wanted - set(case.bodies(acked))
    case.expect_left(len(missing))
    with case.open() as harness:
        case.ack_all(harness, missing)
        again = set(case.bodies(harness.arrived)) - missing
        expect(not again, f"came again though they were acked: {sorted(again)[:3]}")
    case.expect_left(0)


def _a_verdict_of_an_earlier_connection(case: Case) -> None:
    case.put(5)
    with case.open() as harness:
        first = case.until_arrived(harness, 5, "5 messages come")
        case.broker.cut()
        if case.broker.acks_belong_to_connection:
            case.until_arrived(harness, 10, "5 messages come again after the cut")
            open_count = harness.task.open_count
            expect(open_count == len(first), f"{open_count} of 5 messages are open after a cut")
            harness.ack(first)
            for each in first:
                harness.spout.ack_batch([each.message_id])
            harness.rest(0.3)
        else:
            harness.ack(first)
            harness.until(lambda: harness.task.is_idle, case.patience, "5 messages are acked after the cut")
            harness.rest(case.broker.redelivery_secs)
            expect(len(harness.arrived) == len(first), "messages that were acked came again")
    case.expect_left(5 if case.broker.acks_belong_to_connection else 0)


def _a_failed_message_comes_again(case: Case) -> None:
    wanted = case.put(3)
    with case.open() as harness:
        first = case.until_arrived(harness, 3, "3 messages come")
        harness.fail(first)
        second = case.until_arrived(harness, 6, "3 failed messages come again")[3:]
        expect(set(case.bodies(second)) == wanted, "other messages came again than failed")
        if case.broker.counts_attempts:
            attempts = {each.attempt for each in second}
            expect(attempts == {2}, f"the second delivery has the attempts {sorted(attempts)}")
        case.ack_all(harness, wanted, first=3)
    case.expect_left(0)


def _what_is_given_up_has_one_copy(case: Case) -> None:
    wanted = case.put(2)
    with case.open(Retry(max_attempts=1)) as harness:
        harness.fail(case.until_arrived(harness, 2, "2 messages come"))
        harness.until(lambda: harness.task.is_idle, case.patience, "2 messages are given up")
        harness.rest(0.3)
        expect(len(harness.arrived) == len(wanted), "a message that was given up came again")
        ours = len(harness.letters)
    case.expect_left(0)
    theirs = sorted(case.broker.dead_letters())
    wanted_ours = 0 if case.broker.given_up == "reject" else 2
    expect(ours == wanted_ours, f"acktree has {ours} dead letters, and should have {wanted_ours}")
    expect(
        theirs == (sorted(wanted) if case.broker.given_up == "reject" else []),
        f"the broker's dead letters are {theirs}",
    )


def _a_cut_while_messages_are_open(case: Case) -> None:
    wanted = case.put(20)
    with case.open(most=10) as harness:
        arrived = case.until_arrived(harness, 10, "10 messages come")
        harness.ack(arrived[:5])
        case.broker.cut()
        acked = arrived[:5]
        if not case.broker.acks_belong_to_connection:  # what is open stays so
            harness.ack(arrived[5:])
            acked = arrived
        case.ack_all(harness, wanted - set(case.bodies(acked)), first=10)
    case.expect_left(0)


def _a_cut_while_a_retry_waits(case: Case) -> None:
    case.put(1)
    with case.open(Retry(max_attempts=3, backoff_secs=(0.5, 0.5), jitter=False)) as harness:
        harness.fail(case.until_arrived(harness, 1, "the message comes"))
        case.broker.cut()
        at = 1
        letters = partial(_letters, case.broker, harness)

        def is_given_up() -> bool:
            nonlocal at
            if len(harness.arrived) > at:
                fresh, at = harness.arrived[at:], len(harness.arrived)
                harness.fail(fresh)
            return harness.task.is_idle and letters() > 0

        harness.until(is_given_up, case.patience, "the message is given up")
        harness.rest(1.5)
        is_given_up()
        expect(letters() == 1, f"one poison message made {letters()} dead letters")
    case.expect_left(0)


def _letters(broker: Broker, harness: SpoutHarness) -> int:
    """How many messages are given up: ours, or the broker's."""
    return len(broker.dead_letters()) if broker.given_up == "reject" else len(harness.letters)


def _a_cut_between_ack_and_commit(case: Case) -> None:
    wanted = case.put(5)
    with case.open() as harness:
        first = case.until_arrived(harness, 5, "5 messages come")
        case.broker.cut()
        harness.ack(first)  # the spout has not seen the cut yet
        deadline = time.monotonic() + case.broker.redelivery_secs + 2
        at = 5
        while time.monotonic() < deadline:
            harness.step()
            fresh, at = harness.arrived[at:], len(harness.arrived)
            if fresh:
                harness.ack(fresh)
            time.sleep(0.01)
        expect(set(case.bodies(harness.arrived)) == wanted, "a message is missing")
    case.expect_left(0)


def _server_away(end: str) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        wanted = case.put(20)
        with case.open(most=10) as harness:
            case.until_arrived(harness, 10, "10 messages come")
            getattr(case.broker, end)()
            try:
                harness.rest(2)
                count = len(harness.reports)
                expect(count == 1, f"the outage was reported {count} times, and should be once")
            finally:
                case.broker.start()
            case.ack_all(harness, wanted)
        case.expect_left(0)

    return check


def _saturated_for_three_leases(case: Case) -> None:
    wanted = case.put(10)
    with case.open(most=5) as harness:
        case.until_arrived(harness, 5, "5 messages come")
        harness.rest(3 * case.broker.shortest_lease_secs)
        expect(not harness.reports, f"while saturated: {[each.reason for each in harness.reports]}")
        case.ack_all(harness, wanted)
        twice = len(harness.arrived) - 10
        expect(not twice, f"{twice} messages came twice")
    case.expect_left(0)


def _deactivated_for_three_leases(case: Case) -> None:
    wanted = case.put(10)
    with case.open(most=5) as harness:
        first = case.until_arrived(harness, 5, "5 messages come")
        harness.task.deactivate()
        harness.rest(3 * case.broker.shortest_lease_secs)
        expect(not harness.reports, f"while deactivated: {[each.reason for each in harness.reports]}")
        harness.ack(first)
        harness.task.activate()
        case.ack_all(harness, wanted - set(case.bodies(first)), first=5)
        twice = len(harness.arrived) - 10
        expect(not twice, f"{twice} messages came twice")
    case.expect_left(0)


def _never_more_open_than_allowed(case: Case) -> None:
    wanted = case.put(40)
    most = 7
    with case.open(most=most) as harness:
        case.ack_all(harness, wanted)
        expect(harness.most_open <= most, f"{harness.most_open} messages were open, and {most} are allowed")
    case.expect_left(0)


def _two_tasks_one_ends(case: Case) -> None:
    wanted = case.put(40)
    with case.open(most=10) as stays:
        with case.open(most=10) as ends:
            for harness in (stays, ends):
                case.until_arrived(harness, 1, "each of two tasks is given messages")
        case.ack_all(stays, wanted)
    case.expect_left(0)


def _driver_killed(case: Case) -> None:
    wanted = case.put(20)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        with suppress(BaseException):
            harness = case.open(most=10)
            case.until_arrived(harness, 5, "5 messages come")
            os.write(write, b".")
            harness.rest(60)
        os._exit(1)
    os.close(write)
    try:
        has_arrived = os.read(read, 1) == b"."
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    expect(has_arrived, "the driver that is killed was given no messages")
    with case.open() as harness:
        case.ack_all(harness, wanted)
    case.expect_left(0)


def _a_mistake_is_reported_with_its_fix(case: Case) -> None:
    for name, (make_spout, may_pass) in case.broker.misconfigured().items():
        error: BaseException | None = None
        began = time.monotonic()
        try:
            harness = SpoutHarness(make_spout())
            try:
                harness.until(lambda h=harness: bool(h.reports), ERROR_SECS, f"{name} is reported")  # type: ignore[misc]
                error = harness.reports[0].exception
            finally:
                harness.close()
        except ConnectorError as raised:
            error = raised
        took = time.monotonic() - began
        expect(isinstance(error, ConnectorError), f"{name}: reported as {error!r}")
        assert isinstance(error, ConnectorError)
        expect(error.can_retry is may_pass, f"{name}: can_retry is {error.can_retry}")
        expect(all((error.what, error.where, error.fix)), f"{name}: a part of the error is empty")
        secret = case.broker.secret
        expect(secret is None or secret not in str(error), f"{name}: the error shows the password")
        expect(took <= ERROR_SECS, f"{name}: reported after {took:.1f} s")


def _a_deleted_queue_stops_it(case: Case) -> None:
    case.put(3)
    with case.open() as harness:
        case.until_arrived(harness, 3, "3 messages come")
        try:
            case.broker.drop_queue()
        except NotImplementedError:
            return
        if case.broker.makes_queues:
            case.put(3)
            harness.ack(case.until_arrived(harness, 6, "messages of the queue made anew come"))
            harness.until(lambda: harness.task.is_idle, case.patience, "all messages are acked")
            return
        try:
            harness.rest(ERROR_SECS)
        except ConnectorError as error:
            expect(not error.can_retry, "the error says that it may pass")
            return
    reported = [each.reason for each in harness.reports]
    raise AssertionError(f"nothing stopped it for {ERROR_SECS:g} s; reported: {reported}")


_CHECKS: Final[Mapping[str, Callable[[Case], None]]] = {
    "opens and closes without leaks": _opens_and_closes_without_leaks,
    "each message at least once": _each_message_at_least_once,
    "acks out of order": _acks_out_of_order,
    "a verdict of an earlier connection": _a_verdict_of_an_earlier_connection,
    "a failed message comes again": _a_failed_message_comes_again,
    "what is given up has one copy": _what_is_given_up_has_one_copy,
    "a cut while messages are open": _a_cut_while_messages_are_open,
    "a cut while a retry waits": _a_cut_while_a_retry_waits,
    "a cut between ack and commit": _a_cut_between_ack_and_commit,
    "the server stops and comes back": _server_away("stop"),
    "the server is killed and comes back": _server_away("kill"),
    "saturated for three leases": _saturated_for_three_leases,
    "deactivated for three leases": _deactivated_for_three_leases,
    "never more open than allowed": _never_more_open_than_allowed,
    "two tasks, one ends": _two_tasks_one_ends,
    "the driver is killed": _driver_killed,
    "a mistake is told with its mend": _a_mistake_is_reported_with_its_fix,
    "a deleted queue stops it": _a_deleted_queue_stops_it,
}

SPOUT_CHECKS: Final = tuple(_CHECKS)
"""The names of all checks, for a test that takes one at a time."""
