"""A spout that a test feeds by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from acktree.config import Config
from acktree.core.context import TaskContext
from acktree.core.fields import Outputs
from acktree.core.verdicts import Failure
from acktree.spout import EndOfStream, Spout, SpoutOutputCollector


class FeederSpout(Spout):
    """Emits what :meth:`feed` was given, and writes down the verdicts.

    The copies that the tasks of a topology work on all share the lists of the one the test holds, so it works
    with ``LocalCluster`` and with ``submit()`` alike. Feeding is safe from any thread.

    Attributes:
        acked: Message ids fully processed, in the order told.
        failed: (message id, failure) of those that were not, in the order told.
    """

    def __init__(self, outputs: Outputs, *, redelivers: bool = True) -> None:
        """Make a feeder with these output fields (or streams)."""
        self.outputs = outputs
        self.redelivers = redelivers
        self.acked: list[Any] = []
        self.failed: list[tuple[Any, Failure]] = []
        self._fed: deque[tuple[list[Any], Any, str]] = deque()
        self._ending: list[bool] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> FeederSpout:
        return self._twin()

    def _twin(self) -> FeederSpout:
        twin = FeederSpout(self.outputs, redelivers=self.redelivers)
        twin.acked, twin.failed, twin._fed, twin._ending = self.acked, self.failed, self._fed, self._ending
        return twin

    def feed(self, values: Sequence[Any], message_id: Any = None, stream: str = "default") -> None:
        """Emit these values next; without a message id they are untracked."""
        self._fed.append((list(values), message_id, stream))

    def end(self) -> None:
        """Raise EndOfStream once everything fed was emitted."""
        self._ending.append(True)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self._collector = collector

    def next_tuple(self) -> None:
        try:
            values, message_id, stream = self._fed.popleft()
        except IndexError:
            if self._ending:
                raise EndOfStream from None
            return
        self._collector.emit(values, message_id=message_id, stream=stream)

    def ack(self, message_id: Any) -> None:
        self.acked.append(message_id)

    def fail(self, message_id: Any, failure: Failure) -> None:
        self.failed.append((message_id, failure))
