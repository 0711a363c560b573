"""What user code raises is data, whatever class it has; what comes from outside of it is passed on."""

from __future__ import annotations

import asyncio
import signal
import types
from functools import partial

import pytest

from acktree.stopped_by import EndOfLevelError, StoppedBySignal, pass_on


class LibraryError(BaseException):
    """As ``gevent.Timeout`` or ``trio.Cancelled``."""


def raised_by(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def raises(error):
    def call():
        raise error

    return call


OF_USERS = [
    ValueError(), LibraryError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(),
    asyncio.CancelledError(), pytest.fail.Exception("x"), BaseExceptionGroup("all", [LibraryError()]),
]  # fmt: skip


@pytest.mark.parametrize("error", OF_USERS, ids=repr)
def test_what_user_code_raises_is_not_passed_on(error):
    assert pass_on(raised_by(raises(error))) is None


@pytest.mark.parametrize("error", [EndOfLevelError(), StoppedBySignal(signal.SIGTERM)], ids=repr)
def test_what_ends_the_level_or_the_process_is_passed_on(error):
    with pytest.raises(type(error)):
        pass_on(raised_by(raises(error)))


def test_ctrl_c_is_passed_on_wherever_it_comes():
    def interrupted():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            list(range(3))

    with pytest.raises(KeyboardInterrupt):
        pass_on(raised_by(interrupted))


def test_a_coroutine_that_is_closed_is_closed():
    passed = []

    @types.coroutine
    def waiting():
        yield

    async def step():
        try:
            await waiting()
        except BaseException as error:
            passed.append(raised_by(partial(pass_on, error)))
            raise

    running = step()
    running.send(None)
    running.close()
    assert [*map(type, passed)] == [GeneratorExit]


@pytest.mark.parametrize("error", [LibraryError(), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_what_the_handler_of_a_signal_raises_is_passed_on(error):
    class Handler:
        def called(self, number, frame):
            raise error

    before = signal.signal(signal.SIGUSR1, Handler().called)
    try:
        raised = raised_by(lambda: signal.raise_signal(signal.SIGUSR1))
        if isinstance(error, KeyboardInterrupt):
            assert pass_on(raised) is None  # a `raise`, as user code has it
        else:
            with pytest.raises(type(error)):
                pass_on(raised)
    finally:
        signal.signal(signal.SIGUSR1, before)
