"""What user code raises is data, whatever class it has; what comes from outside of it is passed on."""

from __future__ import annotations

import asyncio
import signal
import sys
import types
from functools import partial

import pytest

from acktree.system.stopped_by import EndOfLevelError, StoppedBySignal, pass_on


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
    asyncio.CancelledError(), pytest.fail.Exception("x"),
    BaseExceptionGroup("all", [LibraryError(), KeyboardInterrupt()]),
]  # fmt: skip


@pytest.mark.parametrize("error", OF_USERS, ids=repr)
def test_what_user_code_raises_is_not_passed_on(error):
    assert pass_on(raised_by(raises(error))) is None


@pytest.mark.parametrize(
    "error",
    [EndOfLevelError(), StoppedBySignal(signal.SIGTERM), BaseExceptionGroup("x", [EndOfLevelError()])],
    ids=repr,
)
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


def called(error, number, frame):
    raise error


class Callable:
    def __init__(self, error):
        self.error = error

    def __call__(self, number, frame):
        raise self.error

    def called(self, number, frame):
        raise self.error


HANDLERS = {
    "method": lambda error: Callable(error).called,
    "object": Callable,
    "partial": lambda error: partial(called, error),
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("error", [LibraryError(), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_what_the_handler_of_a_signal_raises_is_passed_on(error, handler):
    before = signal.signal(signal.SIGUSR1, HANDLERS[handler](error))
    try:
        raised = raised_by(lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(type(error)):
            pass_on(raised)
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupts():
    signal.raise_signal(signal.SIGINT)


async def interrupts_later():
    interrupts()
    await asyncio.sleep(60)


async def interrupts_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(interrupts_later())


def in_a_group():
    try:
        interrupts()
    except KeyboardInterrupt as error:
        raise BaseExceptionGroup("as trio does", [ValueError(), error]) from None


def exits():
    try:
        interrupts()
    except KeyboardInterrupt:
        sys.exit(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: asyncio.run(interrupts_later()),
        lambda: asyncio.run(interrupts_in_a_group()),
        in_a_group,
        exits,
    ],
    ids=["asyncio.run", "asyncio.TaskGroup", "exception group", "sys.exit"],
)
def test_what_ctrl_c_has_become_in_user_code_is_passed_on(call):
    raised = raised_by(call)
    with pytest.raises(type(raised)):
        pass_on(raised)
