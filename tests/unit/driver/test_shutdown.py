"""What is said and done when a signal stops a topology, with a topology that only looks like one."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from acktree import IterableSpout, TopologyBuilder
from acktree.core.stats.numbers import SpoutNumbers
from acktree.core.stats.statistics import Counters, Stats
from acktree.driver.shutdown import start_interruptibly, stop_on_signal, stop_on_signals
from acktree.driver.signals import signals_raise, signals_wait
from acktree.spark import submit
from acktree.system.stopped_by import StoppedBySignal


class Running:
    """Two spouts with open messages. ``ends``: a kill ends it; ``broken_off``: by a second signal."""

    name, checkpoint, is_running = "orders", Path("/checkpoints/orders"), True
    message_timeout_secs = 7

    def __init__(self, *, ends: bool = True, broken_off: bool = False) -> None:
        self.ends, self.broken_off, self.open = ends, broken_off, 1204

    def stats(self) -> Stats:
        return Stats.of(Counters(), spouts={"a": SpoutNumbers(self.open), "b": SpoutNumbers(0)})

    def kill(self, wait_secs: float | None = None) -> None:
        self.open, self.is_running = 3, not self.ends
        if self.broken_off:
            raise StoppedBySignal(signal.SIGTERM)


def stopped(running: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, "acktree"):
        try:
            stop_on_signal(running, StoppedBySignal(signal.SIGTERM))
        except StoppedBySignal:
            assert running.broken_off
        else:
            assert not running.broken_off
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("broken_off", [False, True])
def test_it_is_said_what_is_waited_for_and_what_is_open_at_the_end_of_each_spout(
    caplog: pytest.LogCaptureFixture, *, broken_off: bool
) -> None:
    first, last = stopped(Running(broken_off=broken_off), caplog)
    assert "signal=SIGTERM" in first
    assert "open messages (a 1,204, b 0) have 7 s" in first
    assert last.startswith("topology=orders is stopped. Open: a 3, b 0. To continue, submit it again on ")
    assert last.endswith("checkpoint=/checkpoints/orders")


def test_a_second_signal_while_the_first_is_logged_breaks_the_wait_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody who reads the line may send it before the wait begins."""

    class Impatient(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "a second signal stops at once" in record.getMessage():
                signal.raise_signal(signal.SIGTERM)

    class Waiting(Running):
        def kill(self, wait_secs: float | None = None) -> None:
            super().kill(wait_secs)
            with signals_wait() as came:
                self.saw = came()

    log, handler, running = logging.getLogger("acktree"), Impatient(), Waiting()
    log.addHandler(handler)
    try:
        with signals_raise(), caplog.at_level(logging.WARNING, "acktree"), pytest.raises(StoppedBySignal):
            stop_on_signal(running, StoppedBySignal(signal.SIGTERM))
    finally:
        log.removeHandler(handler)
    assert running.saw
    assert [record.getMessage()[:26] for record in caplog.records] == [
        "topology=orders signal=SIG", "topology=orders is stopped"
    ]  # fmt: skip


def test_what_could_not_be_stopped_in_time_is_reported_as_such(caplog: pytest.LogCaptureFixture) -> None:
    _, last = stopped(Running(ends=False, broken_off=True), caplog)
    assert "did not stop in time; it is left as after a crash. Open: a 3" in last


def test_a_topology_that_is_over_is_not_stopped_again(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.is_running = False
    assert stopped(running, caplog) == []


@pytest.mark.parametrize("stops", [False, True])
def test_a_signal_while_the_program_waits_stops_it_there_unless_a_block_will(*, stops: bool) -> None:
    running: Any = Running()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedBySignal), stop_on_signals(running, stops=stops):
        signal.raise_signal(signal.SIGTERM)
    assert running.is_running == (not stops)
    assert signal.getsignal(signal.SIGTERM) is before


def starting(start: Any, caplog: pytest.LogCaptureFixture) -> str:
    """What is said of a start that a signal comes into."""
    with caplog.at_level(logging.WARNING, "acktree"), pytest.raises(StoppedBySignal) as raised:
        start_interruptibly(start, "orders", Path("/checkpoints/orders"))
    assert raised.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("topology=orders signal=SIGTERM arrived while it was started: ")
    assert said.endswith("checkpoint=/checkpoints/orders")
    return said


def test_a_signal_while_it_starts_waits_and_then_it_is_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running: Any = Running()

    def start() -> Any:
        signal.raise_signal(signal.SIGTERM)
        return running

    assert "it is stopped" in starting(start, caplog)
    assert not running.is_running


def test_between_two_steps_of_the_start_it_is_not_gone_on(caplog: pytest.LogCaptureFixture) -> None:
    def start() -> Any:
        with signals_wait():
            signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the next step")

    assert "it is not started" in starting(start, caplog)


def test_what_breaks_behind_a_signal_is_its_work_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start() -> Any:
        signal.raise_signal(signal.SIGTERM)
        raise ConnectionError("the JVM was asked, too, and is gone")

    def breaks() -> Any:
        raise ConnectionError("there is no JVM")

    assert "it is not started" in starting(start, caplog)
    with pytest.raises(ConnectionError):
        start_interruptibly(breaks, "orders", Path("/checkpoints/orders"))


def test_a_start_without_a_signal_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    running: Any = Running()
    assert start_interruptibly(lambda: running, "orders", Path("/checkpoints/orders")) is running
    assert not caplog.records


def test_a_signal_while_spark_starts_gives_the_session_and_the_checkpoint_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = []

    def lends(name: str, *_: object) -> tuple[object, Any]:
        signal.raise_signal(signal.SIGINT)
        return object(), lambda: given_back.append(name)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a build may ignore it
    monkeypatch.setattr(submit, "lend_session", lends)
    monkeypatch.setattr(submit, "_start", lambda *_, **__: pytest.fail("it was gone on"))
    builder = TopologyBuilder("orders")
    builder.set_spout("numbers", IterableSpout([1], ["n"]))
    for _ in range(2):  # the lock is free again
        with pytest.raises(StoppedBySignal) as raised:
            submit.submit(builder.create_topology(), checkpoint=tmp_path)
        assert raised.value.code == 130
    assert given_back == ["orders", "orders"]
