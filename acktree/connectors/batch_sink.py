"""The base of the sinks: tuples are encoded one by one, written in pages, and acked or failed one by one.

Rules of this file
------------------
1. A tuple is encoded alone, in its own ``execute``: what its values raise fails this tuple and no other.
2. A tuple is acked when ``send`` has said that it is written. One of which it says nothing fails.
3. A server that does not answer is waited for once in a micro-batch, not once for each tuple or page.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import pyarrow as pa

from acktree import Bolt, Config, ConfigError, ConnectorError, OutputCollector, TaskContext, Tuple

__all__ = [
    "BatchSink", "Outcome", "as_bytes", "as_id", "as_text", "headers_in", "headers_of", "misfit",
    "must_read", "otherwise_marked", "refusals_of", "rows_of", "writer_of",
]  # fmt: skip

Entry = TypeVar("Entry")
Outcome = tuple[Sequence[int], ConnectorError | None]
"""(indexes of entries that have the same outcome, None if they are written or why they are refused)"""


class BatchSink(Bolt, Generic[Entry]):
    """Collects tuples and writes them in pages, the last at the end of the micro-batch. At least once.

    A tuple that cannot be encoded, or that is refused, fails alone. Where the server cannot be used,
    none of the tuples that are not written by then is sent: their messages wait, or the topology stops.
    """

    outputs = []
    page: int | None = 500
    """How many tuples are written at once; None: all of a micro-batch."""

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:  # noqa: ARG002
        """Connect at the first page; connections stay with the process."""
        self._collector = collector
        self._tuples: list[Tuple] = []
        self._entries: list[Entry] = []
        self._outage: ConnectorError | None = None

    @abstractmethod
    def entry(self, tup: Tuple) -> Entry:
        """What is sent of a tuple: checked and encoded. No server is asked.

        Raises:
            Exception: The tuple fails with it; a ConnectorError says which value does not fit, and the fix.
        """

    @abstractmethod
    def send(self, tuples: Sequence[Tuple], entries: Sequence[Entry]) -> Iterator[Outcome]:
        """Write a page: yield outcomes as they become known.

        Args:
            tuples: The tuples of the page, for what they are, not for their values.
            entries: What :meth:`entry` made of them.

        Raises:
            ConnectorError: The server cannot be used. Entries without an outcome, and the later pages of this
                micro-batch, are not written. Never for a value: that is an outcome.
        """

    def execute(self, tup: Tuple) -> None:
        """Encode it; write a full page."""
        if self._outage is None:
            self._entries.append(self.entry(tup))
            self._tuples.append(tup)
            if len(self._tuples) == self.page:
                self._write_page()

    def flush(self, collector: OutputCollector) -> None:  # noqa: ARG002
        """Write the rest.

        Raises:
            ConnectorError: The server cannot be used. The messages of all tuples that are not written wait;
                without ``can_retry`` the topology stops.
        """
        if self._tuples:
            self._write_page()
        outage, self._outage = self._outage, None
        if outage is not None:
            raise outage

    def _write_page(self) -> None:
        tuples, self._tuples = self._tuples, []
        entries, self._entries = self._entries, []
        waiting = set(range(len(tuples)))
        reason = "the sink does not know whether it was written"
        try:
            for indexes, refusal in self.send(tuples, entries):
                waiting.difference_update(indexes)
                for index in indexes:
                    if refusal is None:
                        self._collector.ack(tuples[index])
                    else:
                        self._refuse(tuples[index], refusal)
        except ConnectorError as error:
            self._outage = error  # flush raises it, and the engine fails what is open
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                raise
        finally:
            if self._outage is None:
                for index in sorted(waiting):
                    self._collector.fail(tuples[index], reason)

    def _refuse(self, tup: Tuple, refusal: ConnectorError) -> None:
        """Fail a tuple with what ``Retry(final=...)`` reads, unless trying again can help."""
        self._collector.fail(tup, str(refusal), exception=None if refusal.can_retry else refusal)


def must_read(context: TaskContext, where: str, *fields: object) -> None:
    """Refuse a sink that reads fields of which no stream has one, before its first message.

    Args:
        context: What the sink's ``check`` is given.
        where: The sink, for errors.
        fields: Their names; what is no text, such as a function of the tuple, reads what it likes.

    Raises:
        ConfigError: No stream that it reads has one of them.
    """
    streams = context.input_fields.values()
    for name in fields:
        if isinstance(name, str) and not any(name in emitted for emitted in streams):
            known = ", ".join(dict.fromkeys(each for emitted in streams for each in emitted))
            fix = f"emit a field of this name; there are {known}"
            raise ConfigError(f"no stream that it reads has a field {name!r}", where, fix)


def writer_of(context: TaskContext) -> str:
    """The name of a task among all that write marks."""
    return f"{context.checkpoint_id}/{context.component_id}/{context.task_id}"


def rows_of(batch: pa.RecordBatch) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """The rows of a batch by their index, and why others cannot be read: Python has no such value."""
    try:
        return dict(enumerate(batch.to_pylist())), {}
    except Exception:  # noqa: BLE001  # Arrow raises many types over a value
        rows: dict[int, dict[str, Any]] = {}
        refused: dict[int, str] = {}
        for index in range(batch.num_rows):
            try:
                rows[index] = batch.slice(index, 1).to_pylist()[0]
            except Exception as error:  # noqa: BLE001
                refused[index] = f"Python has no such value: {type(error).__name__}: {error!s:.200}"
        return rows, refused


def refusals_of(text: str | bytes) -> dict[int, str]:
    """What json.dumps made of the refusals of a write."""
    return {int(index): reason for index, reason in json.loads(text).items()}


def otherwise_marked(where: str) -> ConnectorError:
    """Another process of this task has written since this one has looked."""
    what = "the last mark is not the one that this process has seen: another process runs the task"
    fix = "none is needed: nothing was written, and the task runs again"
    return ConnectorError(what, where, fix, can_retry=True)


def misfit(name: str, value: object, where: str, fix: str) -> ConnectorError:
    """The value of a field that cannot be sent as it is."""
    return ConnectorError(f"{name} is of type {type(value).__name__}, which cannot be sent", where, fix)


def as_bytes(name: str, value: object, where: str) -> bytes:
    """A text in UTF-8, or bytes. Raises ConnectorError for anything else."""
    if isinstance(value, str):
        return as_text(name, value, where).encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise misfit(name, value, where, "emit bytes or a text, such as json.dumps(value)")


def as_text(name: str, value: object, where: str) -> str:
    """A text that has a form in UTF-8. Raises ConnectorError for anything else."""
    if not isinstance(value, str):
        fix = "emit a text: value.decode() of bytes, str(value) of a number, json.dumps(value) of the rest"
        raise misfit(name, value, where, fix)
    try:
        str.encode(value)
    except UnicodeEncodeError as error:
        what = f"{name} has a lone surrogate at {error.start}, which no encoding has"
        raise ConnectorError(what, where, 'emit bytes: value.encode("utf-8", "surrogateescape")') from None
    return str.__str__(value)


def as_id(name: str, value: object, where: str) -> str:
    """The text of a value that names a message in every attempt. Raises ConnectorError for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal | UUID | date):
        raise misfit(name, value, where, "emit a text, a number, a UUID or a date")
    if isinstance(value, str):
        return as_text(name, value, where)
    # Not str(): that of an enumeration's member is its name.
    return next((base.__repr__(value) for base in (int, float) if isinstance(value, base)), str(value))


def headers_of(tup: Tuple, field: str, where: str) -> Mapping[str, Any]:
    """A tuple's field of headers or the like; empty where it has none or None. Raises ConnectorError."""
    return headers_in(tup[field] if field in tup.fields else None, field, where)


def headers_in(value: object, field: str, where: str) -> Mapping[str, Any]:
    """As :func:`headers_of`, of the field's value."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise misfit(repr(field), value, where, "emit a dict, or None")
    for name in value:
        as_text(f"a key of {field!r}", name, where)
    return value
