"""The streaming query of a run, as the supervisor sees it. ``spark/query/handle.py`` has Spark's."""

from __future__ import annotations

from typing import Final, Protocol


class Query(Protocol):
    """The streaming query of a run, as far as the supervisor needs it."""

    @property
    def is_active(self) -> bool:
        """Whether it has neither failed nor been stopped."""

    @property
    def is_between_batches(self) -> bool:
        """Whether no micro-batch runs now."""

    def failure(self) -> BaseException | None:
        """What stopped the query; None if it was stopped without an error."""

    def last_batch_secs(self) -> float | None:
        """How long the last micro-batch took; None when unknown."""

    def has_read_all(self) -> bool:
        """Whether the last micro-batch found nothing new in any DataFrame. Asks Spark."""

    def explained(self, error: BaseException) -> BaseException:
        """The error to raise for a failure of the run: a full disk, for example, is named as the cause."""

    def stop(self, *, at_once: bool) -> None:
        """Stop the query.

        Args:
            at_once: The running micro-batch may be aborted. Spark's messages about it are not shown.
        """


class _EndedQuery(Query):
    """The query of a topology that ended in an earlier run."""

    is_active = False
    is_between_batches = True

    def failure(self) -> BaseException | None:
        return None

    def last_batch_secs(self) -> float | None:
        return None

    def has_read_all(self) -> bool:
        return True

    def explained(self, error: BaseException) -> BaseException:
        return error

    def stop(self, *, at_once: bool) -> None:
        """No-op: there is no query."""


ENDED_QUERY: Final[Query] = _EndedQuery()
