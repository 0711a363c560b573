"""Finds traces: what ``running.traces`` is, and what commands use on a checkpoint that nobody runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from acktree.core.tracking.verdicts import Verdict
from acktree.errors import CheckpointError, MisuseError
from acktree.tasks.spouts.watched_ids import WATCH_SECS
from acktree.texts import kept_label, searched_id
from acktree.traces.packs import tuples_of
from acktree.traces.store import IN_MEMORY, TraceStore
from acktree.traces.trace import Trace, TracedMessage, TracedTuple, in_order

FILE: Final = "traces.sqlite"
"""The name of the store in a checkpoint."""
_MOST_FOUND: Final = 1000
_COLUMNS: Final = (
    "root, spout, task_id, stream, message_id, attempt, retry_of, emitted_ms, verdict, verdict_ms, reason,"
    " component, traceback, traceparent, label, shown,"
    " tuples + (SELECT coalesce(sum(l.tuples), 0) FROM later l WHERE l.root = m.root) AS tuples"
)
_IS_ON_THE_WAY: Final = (
    "(component = ? OR spout = ? OR EXISTS (SELECT 1 FROM json_each(m.components) WHERE value = ?)"
    " OR EXISTS (SELECT 1 FROM later l, json_each(l.components) c WHERE l.root = m.root AND c.value = ?))"
)
_PACKS: Final = (
    "SELECT batch_id, body FROM packs WHERE pack IN (SELECT pack FROM messages WHERE root = ?1"
    " UNION SELECT pack FROM later WHERE root = ?1) ORDER BY pack"
)


class Traces:
    """The traced messages of a topology. Any thread may use it."""

    def __init__(
        self,
        store: TraceStore | None,
        settle: Callable[[], object] = lambda: None,
        set_rate: Callable[[float], None] | None = None,
        rate: Callable[[], float] = lambda: 0.0,
        watch: Callable[[Iterable[object], float], None] | None = None,
        watched: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Made by ``submit``, ``LocalCluster`` and :meth:`of_checkpoint`.

        Args:
            store: Where they are; None for none.
            settle: Called before something is read: waits until all that was recorded is stored.
            set_rate: Gives the order to trace another share of messages; None where nobody runs.
            rate: Says which share is traced.
            watch: Gives the order to trace messages by their ids; None where nobody runs.
            watched: Says which messages these are, and for how many seconds.
        """
        self._store, self._settle, self._set_rate, self._get_rate = store, settle, set_rate, rate
        self._watch, self._get_watched = watch, watched

    def __repr__(self) -> str:
        return f"Traces({len(self)} messages, rate={self.rate:g})"

    @classmethod
    def of_checkpoint(cls, folder: str | Path) -> Self:
        """The traces that a checkpoint keeps; a driver may run on it meanwhile.

        Raises:
            CheckpointError: The file cannot be read.
        """
        file = Path(folder) / FILE
        return cls(TraceStore(file, read_only=True) if file.exists() else TraceStore(IN_MEMORY))

    def __len__(self) -> int:
        """How many messages are stored."""
        return 0 if self._store is None else self._store.count()

    @property
    def rate(self) -> float:
        """The share of messages that is traced, 0 to 1."""
        return self._get_rate()

    @rate.setter
    def rate(self, rate: float) -> None:
        """Trace another share from the next micro-batches on; until the run ends."""
        if self._set_rate is None:
            raise MisuseError(
                "nobody runs this topology, so its trace rate cannot be changed",
                "traces.rate",
                "submit it with Config(trace_sample_rate=...)",
            )
        if not 0 <= rate <= 1:
            raise MisuseError(f"{rate!r:.40} is no share of messages", "traces.rate", "give 0 to 1")
        self._set_rate(float(rate))

    @property
    def watched(self) -> Mapping[str, float]:
        """Message ids that are watched now, as they were named, and for how many more seconds.

        Of the number 7 and the text "7" the latter is shown as ``acktree open`` shows it: ``'7'``.
        """
        return self._get_watched()

    def watch(self, message_ids: Iterable[object], secs: float = WATCH_SECS) -> None:
        """Trace the next attempts of these messages, whatever the rate is, and also at 0.

        Attempts that are emitted within the time are traced to their end; those that are open now are not.
        100 messages can be watched at a time.

        Args:
            message_ids: As they are emitted, or as ``acktree open`` shows them.
            secs: For how long, above 0 and up to 86,400; or until the run ends.

        Raises:
            MisuseError: No ids, too many or no such time; or nothing can be traced: nobody runs the topology,
                it has no ackers, or its traces cannot be stored.
        """
        if self._watch is None:
            raise MisuseError(
                "nobody runs this topology, so none of its messages can be watched",
                "traces.watch()",
                "submit it, and call it on running.traces",
            )
        self._watch(message_ids, secs)

    def find(
        self,
        *,
        message_id: object = None,
        label: str | None = None,
        root: int | None = None,
        verdict: Verdict | str | None = None,
        component: str | None = None,
        reason: str | None = None,
        since_ms: int | None = None,
        before_ms: int | None = None,
        limit: int = 50,
        after: tuple[int, int] | None = None,
    ) -> list[TracedMessage]:
        """Traced messages, the newest first.

        Args:
            message_id: As it was emitted, or as ``acktree open`` shows it.
            label: What people call the message.
            verdict: "ACKED", "FAILED", "TIMED_OUT", or "OPEN" for none so far.
            component: One that received a tuple of it, its spout, or where it failed.
            reason: Part of the reason, in any case.
            since_ms: Emitted at this time or later, in milliseconds since 1970.
            before_ms: Emitted before this time.
            limit: How many at most; 1000 is the largest.
            after: (emitted_ms, root) of the last message of the page before.

        Raises:
            MisuseError: There is no such verdict.
        """
        if self._store is None:
            return []
        self._settle()
        tests, values = _tests(
            message_id, label, root, verdict, component, reason=reason, since_ms=since_ms,
            before_ms=before_ms, after=after,
        )  # fmt: skip
        query = (
            f"SELECT {_COLUMNS} FROM messages m WHERE {' AND '.join(tests) or 'TRUE'}"  # noqa: S608 - our own
            " ORDER BY emitted_ms DESC, m.root DESC LIMIT ?"
        )
        rows = self._store.select(query, (*values, max(1, min(_MOST_FOUND, limit))))
        return [_message(row) for row in rows]

    def get(self, root: int) -> Trace | None:
        """The trace of a root; None if it is not stored."""
        messages = self.find(root=root)
        if not messages or self._store is None:
            return None
        rows = self._store.select(_PACKS, (root,))
        try:
            tuples, more = tuples_of(root, [(row["batch_id"], row["body"]) for row in rows])
        except ValueError as error:
            raise CheckpointError(
                f"the traces cannot be read: {error}",
                self._store.place,
                "delete the file; messages are not in it",
            ) from error
        return Trace(messages[0], in_order(root, [TracedTuple(**each) for each in tuples]), more)

    def attempts(self, message: TracedMessage) -> list[TracedMessage]:
        """All traced attempts of the same message, by number."""
        if message.message_id is None:
            return [message]
        messages = self.find(message_id=message.message_id, limit=_MOST_FOUND)
        of_spout = (attempt for attempt in messages if attempt.spout == message.spout)
        return sorted(of_spout, key=lambda attempt: (attempt.emitted_ms, attempt.attempt))

    def close(self) -> None:
        """Close the store. Nothing can be read afterwards."""
        if self._store is not None:
            self._store.close()


def _tests(
    message_id: object,
    label: str | None,
    root: int | None,
    verdict: Verdict | str | None,
    component: str | None,
    reason: str | None,
    since_ms: int | None,
    before_ms: int | None,
    after: tuple[int, int] | None,
) -> tuple[list[str], list[object]]:
    """Conditions in SQL, and the values of their placeholders."""
    tests: list[tuple[str, Sequence[object]]] = []
    if message_id is not None:
        tests.append(_is_named(message_id))
    if root is not None:
        is_one = -(1 << 63) <= root < 1 << 63  # SQLite takes no larger number
        tests.append(("m.root = ?", [root]) if is_one else ("0", []))
    if verdict is not None:
        known = {*(name.value for name in Verdict), "OPEN"}
        if str(verdict) not in known:
            raise MisuseError(
                f"there is no verdict {verdict!r:.40}", "traces", f"one of {', '.join(sorted(known))}"
            )
        is_open = str(verdict) == "OPEN"
        tests.append(("verdict IS NULL", []) if is_open else ("verdict = ?", [str(verdict)]))
    if component is not None:
        tests.append((_IS_ON_THE_WAY, [component] * 4))
    simple = {
        "label = ?": None if label is None else kept_label(label),
        "instr(lower(m.reason), lower(?)) > 0": reason,
        "emitted_ms >= ?": since_ms,
        "emitted_ms < ?": before_ms,
    }
    tests += [(test, [value]) for test, value in simple.items() if value is not None]
    if after is not None:
        tests.append(("(emitted_ms, m.root) < (?, ?)", after))
    return [test for test, _ in tests], [value for _, values in tests for value in values]


def _is_named(message_id: object) -> tuple[str, Sequence[object]]:
    """The test of a message id: the id itself, or a text that a command or page shows for it.

    A shortened text may stand for several ids; what is stored has a digest behind it: see ``searched_id``.
    """
    if not isinstance(message_id, str):
        return "message_id = ?", [searched_id(message_id)]
    start = f"{message_id} "
    return (
        "(message_id IN (?, ?) OR (instr(?, '...') AND substr(message_id, 1, ?) = ?))",
        [searched_id(message_id), message_id, message_id, len(start), start],
    )


def _message(row: Mapping[str, Any]) -> TracedMessage:
    return TracedMessage(
        row["root"], row["spout"], task_id=row["task_id"], stream=row["stream"],
        message_id=row["message_id"], attempt=row["attempt"], retry_of=row["retry_of"],
        emitted_ms=row["emitted_ms"], values=json.loads(row["shown"] or "[]"), verdict=row["verdict"],
        verdict_ms=row["verdict_ms"], reason=row["reason"], component=row["component"],
        traceback=row["traceback"], tuples=row["tuples"], traceparent=row["traceparent"], label=row["label"],
    )  # fmt: skip
