"""A topology without Spark: the oracle that Spark must agree with, and the users' test harness.

It runs the very tasks that Spark runs: the same plan, frames, acker, memory and spout tasks, through the same
codecs. What it does not have is threads, processes and time: everything happens inside
:meth:`LocalCluster.advance`, and the clock does not move in between.

How it differs from ``submit``: nothing is durable, a run ends with the ``with`` block; there is one partition
unless ``Config.partitions`` says otherwise; a round takes what the spouts have, as a micro-batch does, but of
at most 10,000 messages a task; a spout whose ``next_tuple`` goes on raising is asked again
when the clock or a verdict moves something; a plain ``execute`` is not interrupted, whatever its execute
timeout is, which a warning says; a spout that never rests at one moment of the clock ends
:meth:`LocalCluster.advance` with an error, which names it; DataFrameSpout needs Spark. Unlike Storm's
LocalCluster it times messages out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from numbers import Real
from types import TracebackType
from typing import Any, Final, Self

from acktree.config import Config, given_config
from acktree.errors import MisuseError, ending_at_caller, naming_keywords, nearest
from acktree.logs.loggers import logger
from acktree.testing.local_topology import LocalTopology
from acktree.topology.model import Topology, refuse_other_than_topology
from acktree.traces.events import EventLogger

log = logger("acktree")

_ROUND_SECS: Final = 0.1
"""For how long one round of :meth:`LocalCluster.run` asks a spout task for messages."""
_PAUSE_SECS: Final = 0.01


class LocalCluster:
    """Runs topologies in this thread, with a clock that only the test moves.

    ::

        with LocalCluster() as cluster:
            running = cluster.submit(topology)
            feeder.feed(["a b"], message_id=1)
            cluster.advance(secs=0)
            assert feeder.acked == [1]
    """

    def __init__(self) -> None:
        """An empty cluster; its clock starts at zero."""
        self.now_ms = 0
        self._running: list[LocalTopology] = []
        self._was_closed = False

    def __repr__(self) -> str:
        return f"LocalCluster(now_ms={self.now_ms}, {len(self._running)} topologies)"

    @naming_keywords
    def submit(
        self,
        topology: Topology,
        *,
        config: Config | None = None,
        event_logger: EventLogger | None = None,
    ) -> LocalTopology:
        """Open a topology's spouts; it moves with :meth:`advance`.

        Args:
            event_logger: Where tuples go while ``debug`` is on; ``events`` has the last ones anyway.

        Raises:
            SpoutError: A spout's ``open`` raised; those that were open are closed again.
            ConnectorError: It raised this one, which says that it cannot pass.
            MisuseError: A DataFrameSpout.
            TopologyError: ``topology`` is none: a builder, for example.
            ConfigError: ``config`` is none: a dict, for example.
        """
        refuse_other_than_topology(topology, "submit")
        config = given_config(config, "submit")
        _say_what_is_not_interrupted(topology, config)
        running = LocalTopology(topology, config, lambda: self.now_ms, self._advance_until, event_logger)
        self._running.append(running)
        return running

    @ending_at_caller
    def advance(self, secs: float = 0) -> None:
        """Run until nothing moves, then step the clock through every deadline on the way, running at each.

        Args:
            secs: How far the clock moves in all. 0: only run what can run now.

        Raises:
            MisuseError: ``secs`` is less than 0, or no number of seconds.
            SpoutError: Something moves for ever while the clock stands: a spout emits a message again in its
                ``fail``, and it fails each time, or a spout always has another message. Found when one
                message failed 100 times, or spouts emitted 1,000,000 messages.
        """
        given: object = secs
        if not isinstance(given, Real) or not math.isfinite(given) or given < 0:
            raise MisuseError(
                f"the clock cannot advance by {given!r:.60}",
                f"LocalCluster.advance({given!r:.60})",
                "give seconds, 0 or more: it never goes back",
            )
        self._advance_until(lambda: False, self.now_ms + round(secs * 1000))

    @ending_at_caller
    def run(self, secs: float | None = None, *, most_messages: int | None = None) -> None:
        """Run in real time, for spouts that never end: the cluster's clock follows the machine's.

        Args:
            secs: For how long. None: until every topology has ended.
            most_messages: After this number of attempts, next attempts included and of all spouts together,
                no spout is asked for another; one call of ``next_tuple`` may exceed it. What is open then
                goes on until nothing moves. None: any number.
        """
        started, first_ms = time.monotonic(), self.now_ms
        messages_left = math.inf if most_messages is None else most_messages
        while messages_left > 0 and any(topology.is_running for topology in self._running):
            elapsed = time.monotonic() - started
            if secs is not None and elapsed >= secs:
                return
            self.now_ms = max(self.now_ms, first_ms + round(elapsed * 1000))
            moved = False
            for topology in self._running:
                topology.beat()
                moved |= topology.round(
                    is_first=True, most=messages_left, until=time.monotonic() + _ROUND_SECS
                )
                messages_left -= topology.emitted_count
            if not moved:
                time.sleep(_PAUSE_SECS)
        if messages_left <= 0:
            self._rest()

    def _rest(self) -> None:
        """Run until nothing moves, without new messages of spouts."""
        for topology in self._running:
            topology.deactivate()
        self._run_rounds()
        for topology in self._running:
            topology.activate()

    @ending_at_caller
    def tuples(self, component: str, stream: str = "default") -> list[list[Any]]:
        """All that a component emitted on a stream, in the order it did, each tuple once.

        Raises:
            MisuseError: No topology here has the component, or it is closed, or it has no such stream.
        """
        found = [topology for topology in self._running if component in topology.plan.topology.components]
        if not found:
            known = {name for topology in self._running for name in topology.plan.topology.components}
            fix = "submit the topology first"
            if known:
                fix = nearest(component, known)
            elif self._was_closed:
                fix = "ask before the `with` block ends, or close() is called: nothing is kept then"
            raise MisuseError(f"no topology here has a component {component!r}", "LocalCluster.tuples()", fix)
        return [values for topology in found for values in topology.tuples(component, stream)]

    def close(self) -> None:
        """Close every spout and forget everything."""
        for topology in self._running:
            topology.close()
        self._running.clear()
        self._was_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _advance_until(self, done: Callable[[], bool], end_ms: int | None) -> bool:
        """Step the clock through every deadline until something is done; returns whether it is.

        Args:
            done: Asked whenever nothing moves.
            end_ms: Until when at the most. None: until nothing but ticks would happen.
        """
        while True:
            self._run_rounds()
            if done():
                return True
            due = [due for topology in self._running if (due := topology.due_ms()) is not None]
            if end_ms is None and all(each.due_ms(with_ticks=False) is None for each in self._running):
                return False
            if not due or (end_ms is not None and min(due) > end_ms):
                break
            self.now_ms = max(self.now_ms, min(due))
            for topology in self._running:
                topology.beat()
        if end_ms is not None:
            self.now_ms = max(self.now_ms, end_ms)
        return False

    def _run_rounds(self) -> None:
        """Run micro-batches until nothing moves any more. SpoutError where that would never be."""
        moved = is_first = True
        while moved:
            moved = False
            for topology in self._running:
                moved |= topology.round(is_first=is_first)
            is_first = False


def _say_what_is_not_interrupted(topology: Topology, config: Config) -> None:
    """Log the bolts whose execute timeout was set and is not kept: a plain call is not interrupted here.

    On Spark a worker's main thread is interrupted by a signal, and a process that cannot be is killed. Here
    both are the user's own. A coroutine is cancelled here too, and a thread of a bolt is left behind.
    """
    is_set = config.execute_timeout_secs not in (None, Config().execute_timeout_secs)
    mine = [each for each in topology.bolts if not each.is_concurrent and not each.is_sink]
    names = [each.id for each in mine if is_set or each.execute_timeout_secs is not None]
    if names:
        log.warning(
            "topology=%s the execute timeout is not kept in LocalCluster, as it is on Spark, by the "
            "plain execute of %s: nothing interrupts it here", topology.name, ", ".join(names),
        )  # fmt: skip
