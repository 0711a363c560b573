"""A spout that a test feeds by hand."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from acktree.acknowledger import Acknowledger
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.data.fields import Outputs, declare_streams
from acktree.core.spouts.open_messages import OpenMessages
from acktree.core.tracking.verdicts import Failure
from acktree.errors import MisuseError
from acktree.spout import EndOfStream, Spout, SpoutOutputCollector


class FeederSpout(Spout):
    """Emits what :meth:`feed` was given, and writes down the verdicts.

    The copies that the tasks of a topology work on all share the lists of the one the test holds, so it works
    with ``LocalCluster`` and with ``submit()`` alike. Feeding is safe from any thread.

    Attributes:
        acked: Message ids fully processed, in the order of their verdicts.
        failed: (message id, failure) of those that were not, in the order of their verdicts.
    """

    def __init__(
        self, outputs: Outputs, *, redelivers: bool = True, acknowledger: Acknowledger | None = None
    ) -> None:
        """Make a feeder with these output fields (or streams).

        Args:
            redelivers: As of a spout.
            acknowledger: Gets the verdicts, as with the ``DataFrameSpout`` that this spout replaces in a
                test; only ``open_batch`` is not called.
        """
        self.outputs = outputs
        self._acknowledger = acknowledger
        if acknowledger is not None:
            self.keep_alive_secs = acknowledger.keep_alive_secs
        self.redelivers = redelivers
        self._width = {
            name: len(stream.fields) for name, stream in declare_streams(outputs, "FeederSpout").items()
        }
        self.acked: list[Any] = []
        self.failed: list[tuple[Any, Failure]] = []
        self._fed: deque[tuple[list[Any], Any, str, str | bytes | int | None, str | None]] = deque()
        self._ending: list[bool] = []

    def __repr__(self) -> str:
        return f"FeederSpout({self.outputs!r:.80})"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return copy.copy(self)

    def feed(
        self,
        values: Sequence[Any],
        message_id: Any = None,  # noqa: ANN401
        stream: str = "default",
        *,
        key: str | bytes | int | None = None,
        label: str | None = None,
    ) -> None:
        """Emit these values next; without a message id they are untracked.

        Args:
            values: One for each field of the stream.
            message_id: Any id.
            stream: A stream of ``outputs``.
            key: The message's identity, as in ``emit``.
            label: What people call the message, as in ``emit``.

        Raises:
            MisuseError: There is no such stream, or it has another number of fields; or it has ended.
        """
        if self._width.get(stream) != len(values):
            raise MisuseError(
                f"fed {values!r:.80} on stream {stream!r}; fields by stream: {self._width}",
                "FeederSpout.feed()",
                "give a list with one value for each field of a stream in its outputs",
            )
        if self._ending:
            what = f"fed {values!r:.80} after end()"
            raise MisuseError(what, "FeederSpout.feed()", "call end() last")
        self._fed.append((list(values), message_id, stream, key, label))

    def end(self) -> None:
        """Raise EndOfStream once everything fed was emitted."""
        self._ending.append(True)

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self._collector = collector
        if self._acknowledger is not None:
            self._acknowledger.open(config, context)
            self.keep_alive_secs = self._acknowledger.keep_alive_secs

    def next_tuple(self) -> None:
        try:
            values, message_id, stream, key, label = self._fed.popleft()
        except IndexError:
            if self._ending:
                raise EndOfStream from None
            return
        self._collector.emit(values, message_id=message_id, stream=stream, key=key, label=label)

    def ack(self, message_id: Any) -> None:  # noqa: ANN401  # whatever was fed
        self.acked.append(message_id)

    def fail(self, message_id: Any, failure: Failure) -> None:  # noqa: ANN401  # whatever was fed
        self.failed.append((message_id, failure))

    def ack_batch(self, message_ids: Sequence[Any]) -> None:
        super().ack_batch(message_ids)
        if self._acknowledger is not None:
            self._acknowledger.ack_batch(message_ids)

    def fail_batch(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        super().fail_batch(failures)
        if self._acknowledger is not None:
            self._acknowledger.fail_batch(failures)

    def keep_alive(self, open_messages: OpenMessages) -> None:  # noqa: ARG002
        if self._acknowledger is not None:
            self._acknowledger.keep_alive()

    def close(self) -> None:
        if self._acknowledger is not None:
            self._acknowledger.close()
