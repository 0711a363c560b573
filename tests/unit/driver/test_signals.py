"""Who gets Ctrl-C and SIGTERM, when, and what the process ends with."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from acktree.driver.signals import signals_raise, signals_wait
from acktree.system.stopped_by import StoppedByCtrlC, StoppedBySignal

ROOT = Path(__file__).parents[3]
BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def as_python_starts() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_in_a_block_a_signal_is_raised_with_the_code_that_shells_give(number: int, code: int) -> None:
    with pytest.raises(StoppedBySignal) as raised, signals_raise():
        signal.raise_signal(number)
    assert (raised.value.code, raised.value.signal) == (code, number)
    assert isinstance(raised.value, KeyboardInterrupt) == (number == signal.SIGINT)


def test_while_somebody_waits_signals_are_noted_and_the_first_is_raised_behind_the_wait() -> None:
    seen = []

    def wait() -> None:
        with signals_wait() as came:
            seen.append(came())
            signal.raise_signal(signal.SIGINT)
            seen.append(came())
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(StoppedByCtrlC), signals_raise():
        wait()
    assert seen == [False, True]
    with signals_raise(), signals_wait() as came:  # they are over and done with
        assert not came()


def test_a_block_within_another_sees_what_arrived_in_that_one_and_what_it_raised_is_over() -> None:
    with signals_raise(), signals_wait() as outside:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(StoppedByCtrlC), signals_wait() as inside:
            assert inside()
        assert not outside()
        with signals_wait() as inside:
            assert not inside()


def test_the_handlers_of_before_are_back_behind_the_outermost_block() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    with signals_raise():
        with signals_raise():
            ours = [signal.getsignal(number) for number in BOTH]
        assert [signal.getsignal(number) for number in BOTH] == ours != before
    assert [signal.getsignal(number) for number in BOTH] == before
    with pytest.raises(OSError, match="user code"), signals_raise():
        raise OSError("user code")
    assert [signal.getsignal(number) for number in BOTH] == before


def test_a_handler_of_the_programs_own_is_left_alone_and_so_is_a_signal_that_is_ignored() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals_raise(), signals_wait() as came:
        for number in BOTH:
            signal.raise_signal(number)
        assert not came()
    assert asked == [signal.SIGTERM]


def test_sparks_own_handler_which_would_cancel_the_micro_batch_is_not_left_in_place() -> None:
    def of_spark(*_: object) -> None:
        raise AssertionError("it cancels every job")

    of_spark.__module__ = "pyspark.core.context"
    signal.signal(signal.SIGINT, of_spark)
    with pytest.raises(StoppedByCtrlC), signals_raise():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is of_spark


def test_in_another_thread_there_is_nothing_to_heed() -> None:
    seen: list[object] = []

    def wait() -> None:
        with signals_raise(), signals_wait() as came:
            seen.append((came(), signal.getsignal(signal.SIGTERM)))

    thread = Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [(False, signal.SIG_DFL)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_uncaught_it_ends_the_process_with_its_code_and_not_a_word(number: int, code: int) -> None:
    program = (
        "import signal; from acktree.driver.signals import signals_raise\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a build may ignore it
        f"with signals_raise(): signal.raise_signal({int(number)})"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
