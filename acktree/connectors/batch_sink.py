"""The base of sinks that write many tuples at once, and ack or fail each by what the broker answered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from acktree import Bolt, Config, ConnectorError, OutputCollector, TaskContext, Tuple

__all__ = ["BatchSink"]


class BatchSink(Bolt):
    """Collects tuples and writes them in pages, the last at the end of the micro-batch. At least once.

    A tuple that the broker refused fails alone. Where the broker cannot be reached the whole page fails.
    """

    outputs = []
    page: int = 500
    """How many tuples are written at once."""

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:  # noqa: ARG002
        """Connect at the first page; connections stay with the process."""
        self._collector = collector
        self._page: list[Tuple] = []

    @abstractmethod
    def write(self, tuples: Sequence[Tuple]) -> Mapping[int, ConnectorError]:
        """Write tuples, and wait for the answers.

        Returns:
            The tuples that were refused, by their index, and why.

        Raises:
            ConnectorError: None of them is known to be written.
        """

    def execute(self, tup: Tuple) -> None:
        """Collect it; write a full page."""
        self._page.append(tup)
        if len(self._page) >= self.page:
            self._write()

    def flush(self, collector: OutputCollector) -> None:  # noqa: ARG002
        """Write the rest."""
        if self._page:
            self._write()

    def _write(self) -> None:
        page = list(self._page)
        self._page.clear()
        try:
            refused = self.write(page)
        except ConnectorError as error:
            refused = dict.fromkeys(range(len(page)), error)
        for index, tup in enumerate(page):
            if index in refused:
                self._collector.fail(tup, str(refused[index]))
            else:
                self._collector.ack(tup)
