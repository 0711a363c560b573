"""A queue on a real server, as the checks of a spout use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from acktree.spout import Spout

__all__ = ["Broker", "MakeSpout"]

MakeSpout = Callable[[], Spout]


class Broker(ABC):
    """A queue on a real server, in the hands of ``check_spout``. Make one for each kind of queue.

    The queue is empty and there when a check begins; messages are bytes, no two alike in one check.
    """

    redelivery_secs: float = 15.0
    """The longest time until messages of a dead consumer come again."""
    shortest_lease_secs: float = 4.0
    """The shortest heartbeat, lease or poll limit that applies to the spout."""
    counts_attempts: bool = False
    """Whether the queue counts deliveries, so that ``attempt`` grows over reconnects."""
    acks_belong_to_connection: bool = True
    """Whether an ack counts on the connection that brought the message alone. False: on any, as with SQS."""
    given_up: Literal["dead_letter", "reject"] = "dead_letter"
    """Where what a ``Retry`` gives up goes: acktree's dead letters, or the broker's own."""
    makes_queues: bool = False
    """Whether the server makes a queue when it is named: one that was deleted is then an empty one."""
    secret: str | None = None
    """A password that no error may show."""

    @abstractmethod
    def put(self, bodies: Sequence[bytes]) -> None:
        """Add messages to the queue, durably."""

    @abstractmethod
    def count(self) -> int:
        """How many messages are not acknowledged; asked while no spout is open."""

    @abstractmethod
    def cut(self) -> None:
        """Break every connection of a consumer, or take away what it holds, as a bad network does."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server in order."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the server."""

    @abstractmethod
    def start(self) -> None:
        """Start it again with what it had; returns when it serves."""

    @abstractmethod
    def clear(self) -> None:
        """Make the queue anew, empty, and its dead letters too."""

    def drop_queue(self) -> None:
        """Delete the queue. NotImplementedError, as here, where a queue cannot be: it is not checked then."""
        raise NotImplementedError

    def dead_letters(self) -> Sequence[bytes]:
        """What lies in the broker's own dead letters. Asked more than once in a check."""
        return []

    def body_of(self, values: Sequence[Any]) -> bytes:
        """The message in what the spout emitted."""
        return bytes(values[0])

    def misconfigured(self) -> Mapping[str, tuple[MakeSpout, bool]]:
        """Spouts that cannot work, by what is wrong, and whether that may pass by itself."""
        return {}
