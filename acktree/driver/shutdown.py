"""Stops a topology on a signal, and logs how many messages are open and what is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from acktree.core.stats.statistics import Stats
from acktree.driver.signals import signals_raise, signals_wait
from acktree.logs.loggers import logger
from acktree.system.stopped_by import StoppedBySignal

log = logger("acktree")


class Stoppable(Protocol):
    """The part of a running topology that is needed to stop it."""

    @property
    def name(self) -> str:
        """The topology's name."""

    @property
    def checkpoint(self) -> Path | str:
        """The checkpoint to submit it on again."""

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""

    @property
    def message_timeout_secs(self) -> float:
        """How long a message may be open, and how long ``kill`` waits for one."""

    def stats(self) -> Stats:
        """The statistics so far."""

    def kill(self, wait_secs: float | None = None) -> None:
        """Wait for open messages, then stop."""


Started = TypeVar("Started", bound=Stoppable)


def start_interruptibly(start: Callable[[], Started], name: str, checkpoint: Path | str) -> Started:
    """Start a topology. A signal takes effect at the end of a ``signals_wait`` block, or after the start.

    Args:
        start: Starts the topology.
        name: Its name, for the log.
        checkpoint: Its checkpoint, for the log.

    Raises:
        StoppedBySignal: A signal arrived, and the topology was stopped. Other errors raised after the signal
            are
            dropped: a terminal or an init system sends the signal to the JVM too, which exits at once.
    """
    with signals_raise():
        running = None
        try:
            with signals_wait() as came:
                try:
                    running = start()
                except Exception:
                    if not came():
                        raise
        except StoppedBySignal as asked:
            try:
                if running is not None:
                    running.kill(wait_secs=0)
            finally:
                how = "is not started" if running is None else _how(running)
                log.warning(
                    "topology=%s signal=%s arrived while it was started: it %s. To continue, submit it again "
                    "on checkpoint=%s",
                    name, asked.signal.name, how, checkpoint,
                )  # fmt: skip
            raise
    assert running is not None, "it was started, or what stopped it was raised"
    return running


@contextmanager
def stop_on_signals(running: Stoppable, *, stops: bool) -> Iterator[None]:
    """Let a signal end the wait for a topology, in this block.

    Args:
        running: The topology.
        stops: Whether the signal also stops the topology here. If not, the caller's ``with`` block stops it.

    Raises:
        StoppedBySignal: A signal arrived.
    """
    with signals_raise():
        try:
            yield
        except StoppedBySignal as asked:
            if stops:
                stop_on_signal(running, asked)
            raise


def stop_on_signal(running: Stoppable, asked: StoppedBySignal) -> None:
    """Kill a topology, and log the number of open messages before and afterwards.

    Raises:
        StoppedBySignal: A second signal arrived, and the topology was stopped at once.
    """
    if not running.is_running:
        return
    try:
        with signals_wait():  # a second signal may follow the line of the log at once: it is for kill()
            log.warning(
                "topology=%s signal=%s: spouts are deactivated, and open messages (%s) have %g s to finish; "
                "a second signal stops at once",
                running.name, asked.signal.name, _open(running), running.message_timeout_secs,
            )  # fmt: skip
            running.kill()
    finally:
        log.warning(
            "topology=%s %s. Open: %s. To continue, submit it again on checkpoint=%s",
            running.name, _how(running), _open(running), running.checkpoint,
        )  # fmt: skip


def _how(running: Stoppable) -> str:
    return "did not stop in time; it is left as after a crash" if running.is_running else "is stopped"


def _open(running: Stoppable) -> str:
    stats = running.stats()
    numbers = {name: component.open for name, component in stats.components.items()}
    return ", ".join(f"{name} {count:,}" for name, count in numbers.items() if count is not None)
