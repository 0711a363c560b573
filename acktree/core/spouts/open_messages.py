"""The open messages of a spout task, as ``keep_alive`` sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence


class OpenMessages(ABC):
    """What a spout task has emitted with a message id and has no final verdict for.

    Messages that wait for a retry are among them. Given to ``Spout.keep_alive``; valid during that call. Ages
    count from the first emit of a message, by the clock of the driver (``LocalCluster``: its own).
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @property
    @abstractmethod
    def oldest_secs(self) -> float | None:
        """Age of the oldest; None when none is open."""

    @abstractmethod
    def older_than(self, secs: float) -> Sequence[Hashable]:
        """The ids of the messages that are at least so old, in no particular order; ``older_than(0)``: all.

        Looks at each open message: call it once in a ``keep_alive``.
        """
