"""What a person is told who stops a topology by a signal: what is waited for, and what is open at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from acktree.spark.signals import StoppedBySignal, heeded

if TYPE_CHECKING:
    from acktree.spark.running import RunningTopology

log = logging.getLogger("acktree")


@contextmanager
def heeding_signals(running: RunningTopology, *, stops: bool) -> Iterator[None]:
    """While the program waits for a topology, a signal ends the wait.

    Args:
        stops: Whether it stops the topology here too; else whoever runs it in a ``with`` block does.

    Raises:
        StoppedBySignal: One came.
    """
    with heeded():
        try:
            yield
        except StoppedBySignal as asked:
            if stops:
                stop_politely(running, asked)
            raise


def stop_politely(running: RunningTopology, asked: StoppedBySignal) -> None:
    """Kill a topology, and say what is open before and afterwards.

    Raises:
        StoppedBySignal: There was another signal, and it was stopped at once.
    """
    if not running.is_running:
        return
    log.warning(
        "topology=%s signal=%s: the spouts are not asked any more, and what is open (%s) has %g s to finish; "
        "a second signal stops at once",
        running.name, asked.signal.name, _open(running), running.plan.config.message_timeout_secs,
    )  # fmt: skip
    try:
        running.kill()
    finally:
        log.warning(
            "topology=%s %s. Open: %s. To go on submit it again on checkpoint=%s",
            running.name, _how(running), _open(running), running.checkpoint,
        )  # fmt: skip


def _how(running: RunningTopology) -> str:
    return "did not stop in time, and is left as after a crash" if running.is_running else "is stopped"


def _open(running: RunningTopology) -> str:
    stats = running.stats()
    return ", ".join(f"{spout.id} {stats[spout.id].open:,}" for spout in running.plan.topology.spouts)
