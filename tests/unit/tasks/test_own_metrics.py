"""The metrics of a task are read when something is over; a gauge that raises is reported once."""

from __future__ import annotations

import signal
import sys

import pytest

from acktree.system.stopped_by import StoppedBySignal
from acktree.tasks.own_metrics import grown_metrics, task_services


def test_a_gauge_whose_read_raises_is_reported_once_until_it_can_be_read_again():
    services, answers, reported = task_services(), [ValueError("a"), ValueError("b"), 5, ValueError("c")], []

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    services.instruments.gauge("depth", read)
    counts = []
    while answers:
        grown_metrics(services, reported.append)
        counts.append(len(reported))
    assert counts == [1, 1, 1, 2]
    assert "gauge 'depth' raised: ValueError: a" in str(reported[0])


def test_a_gauge_whose_read_calls_sys_exit_is_reported_and_a_signal_is_not_swallowed():
    services, reported = task_services(), []
    services.instruments.gauge("depth", lambda: sys.exit(3))
    grown_metrics(services, reported.append)
    assert "gauge 'depth' raised: SystemExit: 3" in str(reported[0])

    def interrupted():
        raise StoppedBySignal(signal.SIGTERM)

    services = task_services()
    services.instruments.gauge("depth", interrupted)
    with pytest.raises(StoppedBySignal):
        grown_metrics(services, reported.append)


def test_an_exception_of_the_users_with_an_attribute_signal_is_reported():
    class WorkerGoneError(Exception):
        signal = 9

    def gone():
        raise WorkerGoneError

    services, reported = task_services(), []
    services.instruments.gauge("depth", gone)
    grown_metrics(services, reported.append)
    assert "gauge 'depth' raised: WorkerGoneError" in str(reported[0])
