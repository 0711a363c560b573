"""Epochs: how the driver and the levels of a resident query agree on what belongs together.

An epoch is a unit of commit, as a micro-batch is. The driver cuts it and sends its rows to the partitions of
the first level, each followed by a *marker*. A level in a partition runs an epoch when the markers of all
partitions of the level before it have come. Then it sends its rows and a marker to each partition of the next
level, and reports to the driver. When all levels have reported from all partitions, the driver commits it.

Channels keep their order, so rows that come before a marker belong to its epoch. Rows that a faster
partition sends after its marker wait. Source: Chandy and Lamport, "Distributed Snapshots" (1985); Flink's
barriers.

Rules of this file
------------------
1. Epochs are committed in order, each once. At most :data:`MOST_UNDER_WAY` are cut and not committed; one
   with sinks or exactly-once bolts. The mark of a sink, and a Trident state, name the last epoch alone; and
   an epoch that is not logged may be cut in another way after a restart.
2. A start of the query is an *incarnation*. Reports of an earlier one do not count. Epochs that were under
   way run again in the next one, as they were cut.
3. Nothing here knows Spark, sockets or time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from acktree.errors import ProtocolError

__all__ = ["MOST_UNDER_WAY", "Alignment", "Epochs", "Place"]

MOST_UNDER_WAY: Final = 2
"""One runs in the later levels while the next one runs in the earlier levels."""

RowT = TypeVar("RowT")
ContentT = TypeVar("ContentT")
ReportT = TypeVar("ReportT")
Place = tuple[int, int]
"""A level, and a partition of it."""


class Alignment(Generic[RowT]):
    """What has arrived at one level in one partition, by epoch."""

    def __init__(self, senders: Collection[int]) -> None:
        """Expect the markers of these senders."""
        self._senders = frozenset(senders)
        self._rows: dict[int, list[RowT]] = {}
        self._marked: dict[int, set[int]] = {}
        self._last: dict[int, int] = {}

    def arrived(self, sender: int, epoch: int, rows: Collection[RowT]) -> None:
        """Add rows of an epoch.

        Raises:
            ProtocolError: They come after the sender's marker of that epoch, or from nobody who is expected.
        """
        last = self._last.get(sender, epoch - 1)
        if sender not in self._senders or epoch != last + 1:
            raise _wrong(f"rows of epoch {epoch} came from sender {sender} after its marker of epoch {last}")
        self._rows.setdefault(epoch, []).extend(rows)

    def marked(self, sender: int, epoch: int) -> list[RowT] | None:
        """Note a marker. Returns the rows of the epoch if it is whole by that, else None.

        Raises:
            ProtocolError: It is not the sender's next marker.
        """
        self.arrived(sender, epoch, ())
        self._last[sender] = epoch
        marked = self._marked.setdefault(epoch, set())
        marked.add(sender)
        if marked != self._senders:
            return None
        del self._marked[epoch]
        return self._rows.pop(epoch)


@dataclass
class _Epoch(Generic[ContentT, ReportT]):
    """An epoch under way."""

    content: ContentT
    reports: dict[Place, ReportT] = field(default_factory=dict)


class Epochs(Generic[ContentT, ReportT]):
    """The driver's side: which epochs are under way, and what has been reported of them.

    ``ContentT`` is what is sent of an epoch, ``ReportT`` what a level reports of it in one partition.

    Attributes:
        incarnation: The number of the query's last start.
    """

    def __init__(
        self, places: Collection[Place], last_committed: int = -1, most: int = MOST_UNDER_WAY
    ) -> None:
        """Begin after the last commit.

        Args:
            places: Who reports each epoch.
            last_committed: The number of the last commit; epochs continue its numbers.
            most: How many epochs may be under way.
        """
        self._places, self._most = frozenset(places), most
        self._committed = last_committed
        self._under_way: dict[int, _Epoch[ContentT, ReportT]] = {}
        self.incarnation = 0

    @property
    def next_number(self) -> int:
        """The number of the epoch that is cut next."""
        return self._committed + self.under_way + 1

    @property
    def under_way(self) -> int:
        """How many epochs are cut and not committed."""
        return len(self._under_way)

    @property
    def can_cut(self) -> bool:
        """Whether another epoch may be cut."""
        return self.under_way < self._most

    def cut(self, content: ContentT) -> int:
        """Cut the next epoch; returns its number. Send it to all partitions of the first level.

        Raises:
            ProtocolError: Too many are under way.
        """
        if not self.can_cut:
            raise _wrong(f"{self.under_way} epochs are under way, and another is cut")
        number = self.next_number
        self._under_way[number] = _Epoch(content)
        return number

    def begin(self) -> dict[int, ContentT]:
        """Begin an incarnation. Returns the epochs under way, ascending: send them again."""
        self.incarnation += 1
        for epoch in self._under_way.values():
            epoch.reports.clear()
        return {number: epoch.content for number, epoch in self._under_way.items()}

    def reported(self, incarnation: int, place: Place, number: int, report: ReportT) -> None:
        """Note the report of a level in one partition; one of an earlier incarnation is dropped.

        Raises:
            ProtocolError: Nobody asked for it, or it came before.
        """
        if incarnation != self.incarnation:
            return
        epoch = self._under_way.get(number)
        if epoch is None or place not in self._places or place in epoch.reports:
            raise _wrong(f"level {place[0]} reports epoch {number} from partition {place[1]} out of turn")
        epoch.reports[place] = report

    def whole(self) -> tuple[int, ContentT, dict[Place, ReportT]] | None:
        """The oldest epoch under way with its reports by place, if all are there. Commit it."""
        number, epoch = next(iter(self._under_way.items()), (0, None))
        if epoch is None or epoch.reports.keys() != self._places:
            return None
        return number, epoch.content, dict(sorted(epoch.reports.items()))

    def committed(self, number: int) -> None:
        """Note that an epoch is committed.

        Raises:
            ProtocolError: It is not the one that :meth:`whole` returns.
        """
        epoch: tuple[int, Any, Any] | None = self.whole()
        if epoch is None or epoch[0] != number:
            raise _wrong(f"epoch {number} is committed, and is not the oldest one that is whole")
        del self._under_way[number]
        self._committed = number


def _wrong(what: str) -> ProtocolError:
    return ProtocolError(what, "real time", "this is a bug in acktree: please report it")
