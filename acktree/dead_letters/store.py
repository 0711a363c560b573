"""The store of dead letters, which finds, redrives and purges them.

It is an SQLite file beside the checkpoint, or a database of the user's.

Rules of this file
------------------
1. When ``put`` returns, the letters are durable. Only then may the spout's ``fail`` be called.
2. ``put`` is idempotent by (topology, root): a verdict that is repeated after a crash makes no second letter.
3. This file unpickles nothing. A letter whose class is missing can still be listed, counted, read, exported.
4. A call that names an unknown letter raises, and changes no other letter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, Unpack

from acktree import markup
from acktree.dead_letters.export import export_to
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.sqlite import IN_MEMORY, SqliteTable
from acktree.dead_letters.summary import LetterGroup, grouped
from acktree.dead_letters.table import Filters, Table, Which, letter_of_row, listed_ids, parts_of, row_of
from acktree.errors import (
    AcktreeError,
    ConfigError,
    ConnectorError,
    MisuseError,
    ending_at_caller,
    installing,
)
from acktree.logs.private_urls import is_url, masked_place
from acktree.texts import bounded

__all__ = ["IN_MEMORY", "DeadLetters"]

_PAGE: Final = 100
_SHOWN: Final = 20
_MOST_ID: Final = 200
_SQLITE: Final = "sqlite:///"


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_not_kept(_: Sequence[DeadLetter], __: int) -> AbstractContextManager[object]:
    """The default where no checkpoint keeps the order to send letters again."""
    return nullcontext()


def _is_never_open(_: DeadLetter) -> bool:
    """The default where no topology is running: no redriven letter is open."""
    return False


class DeadLetters:
    """The dead letters of one store. Any thread may call any method, and other processes may read meanwhile.

    A method with filters applies to the letters that match all of them; see ``Filters``.

    Args:
        place: The path of an SQLite file that is there, such as ``dead_letters.sqlite`` in a checkpoint, or
            of the checkpoint's folder; or an SQLAlchemy URL, which needs ``acktree[sql]``
            (``sqlite:///path`` does not); or :data:`IN_MEMORY`.
        send: Sends letters into the running topology, for :meth:`redrive`; None where no topology is running.
        ordering: Makes it durable that letters are sent again, and when that was ordered: from the begin of
            the block on, or not at all where the block raises. A driver that dies leaves it to the next one.
        is_open: Whether the message that a letter was sent again as has no final verdict yet.
        create: Make the file if it is missing, as a running topology does. None: make no file, and in a
            database that is there the tables. False: make neither.
        topology: Read and change only the letters of this topology. None: of all topologies in the store.
        now_ms: The clock for the time of a redrive.

    Raises:
        CheckpointError: The file or table belongs to another program, or to a newer acktree.
        ConfigError: There is no such file or table, and none is made; the URL is invalid, or its driver is
            missing.
        ConnectorError: The store cannot be opened, or is damaged. Any method may raise it, with the location
            and the fix; ``can_retry`` is True when a later call may succeed.
    """

    def __init__(
        self,
        place: Path | str,
        send: Callable[[Sequence[DeadLetter]], None] | None = None,
        *,
        ordering: Callable[[Sequence[DeadLetter], int], AbstractContextManager[object]] = _is_not_kept,
        is_open: Callable[[DeadLetter], bool] = _is_never_open,
        topology: str | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        create: bool | None = None,
    ) -> None:
        self._table = _open(place if create else _existing(place), create=create)
        self._send, self._ordering, self._is_open = send, ordering, is_open
        self._scope, self._now_ms = topology, now_ms
        self._redriving = Lock()

    def __repr__(self) -> str:
        return f"DeadLetters({self.place!r:.80})"

    def _repr_html_(self) -> str:
        """For notebooks: how many there are, and the first few."""
        rows = [
            (
                letter.id,
                letter.spout,
                letter.message_id_repr,
                letter.component,
                letter.reason,
                letter.attempts,
            )
            for letter in self.page(0, _SHOWN)
        ]
        head = ("id", "spout", "message", "component", "reason", "attempts")
        return markup.block(f"{self.count():,} dead letters", markup.table(head, rows, right_from=5))

    @property
    def place(self) -> str:
        """The location of the store, for display: without a password."""
        return self._table.place

    def put(self, letters: Iterable[DeadLetter]) -> int:
        """Store letters, all or none; durable when this returns.

        A letter whose topology and root are already stored is ignored: the first one is kept. Letters are
        numbered in the order given; their own ``id`` is ignored.

        Returns:
            The number of new letters.

        Raises:
            ConnectorError: The database refuses them, or has the letter of another message under one of their
                roots: the others are stored then.
        """
        listed = list(letters)
        new = self._table.insert([row_of(letter) for letter in listed])
        if new < len(listed):
            self._refuse_other_messages(listed)
        return new

    def _refuse_other_messages(self, letters: Sequence[DeadLetter]) -> None:
        """ConnectorError where a root of these has the letter of another message.

        An id whose ``repr`` is another in each run, and a row of a DataFrame, are known by their time.
        """
        for topology in {letter.topology for letter in letters}:
            of_topology = [letter for letter in letters if letter.topology == topology]
            stored = self._table.messages(topology, [letter.root for letter in of_topology])
            for letter in of_topology:
                message_id, first_ms = stored.get(
                    letter.root, (letter.message_id_repr, letter.first_emitted_ms)
                )
                if message_id != letter.message_id_repr and first_ms != letter.first_emitted_ms:
                    other, this = (bounded(text, _MOST_ID) for text in (message_id, letter.message_id_repr))
                    raise ConnectorError(
                        f"message {this} cannot become a dead letter: message {other} has one with its root",
                        self.place,
                        "the checkpoint was brought back from a copy, or begun anew with the same run_salt: "
                        "stop the topology, and submit it with another dead_letters_url",
                    )

    def known_roots(self, topology: str, roots: Sequence[int]) -> set[int]:
        """The roots among these that already have a letter of this topology; :meth:`put` ignores them."""
        return self._table.known_roots(topology, roots)

    def __iter__(self) -> Iterator[DeadLetter]:
        return self.find()

    def __len__(self) -> int:
        return self.count()

    def find(self, **filters: Unpack[Filters]) -> Iterator[DeadLetter]:
        """The letters that match, lowest id first.

        Letters stored during the iteration are included; the iteration does not block writers.
        """
        return self._pages(Which.of(filters, self._scope))

    def page(self, after: int, most: int, **filters: Unpack[Filters]) -> list[DeadLetter]:
        """The first letters that match with an id above ``after``, lowest id first, at most ``most``."""
        letters: list[DeadLetter] = []
        for ids in parts_of(Which.of(filters, self._scope).ids):
            selection = replace(Which.of(filters, self._scope), ids=ids)
            letters += map(letter_of_row, self._table.select(selection, after, most - len(letters)))
            if len(letters) >= most:
                break
        return letters

    def count(self, **filters: Unpack[Filters]) -> int:
        """The number of letters that match; all letters without a filter."""
        return self._table.count(Which.of(filters, self._scope))

    def summary(self, **filters: Unpack[Filters]) -> list[LetterGroup]:
        """The letters that match by what went wrong, the largest group first.

        Reasons that differ in numbers, in what stands in quotes or in ids with digits are one group.
        """
        return grouped(self._table.causes(Which.of(filters, self._scope)))

    def dead_again(self, letters: Iterable[DeadLetter]) -> dict[int, int]:
        """The settled letters whose message was given up again: id -> id of the letter that it became.

        The message of any other settled letter was acked, unless the letter that it became was deleted.
        """
        return self._table.again(
            [letter.id for letter in letters if letter.id is not None and letter.settled_ms]
        )

    @ending_at_caller
    def get(self, ids: Iterable[int]) -> list[DeadLetter]:
        """The letters with these ids, in this order.

        Raises:
            MisuseError: One of them is not in the store, or ``ids`` is no list.
        """
        asked = listed_ids(ids)
        by_id = {letter.id: letter for letter in self.find(ids=asked)}
        for number in asked:
            given: object = number
            # 1.0 and True equal letter 1.
            is_id = isinstance(given, Integral) and not isinstance(given, bool)
            if not is_id or number not in by_id:
                raise MisuseError(
                    f"there is no dead letter {number!r}",
                    f"dead letters in {self.place}",
                    "`acktree dead-letters list`, or iterating over the store, shows the ids",
                )
        return [by_id[number] for number in asked]

    @ending_at_caller
    def redrive(self, ids: Iterable[int]) -> int:
        """Send letters again, as new messages at attempt 1; returns how many were sent.

        A letter that is named twice is sent once. A letter that was sent before and has no final verdict yet
        is not sent again, and not counted.

        The order is durable when this returns: if the driver dies, the next run sends what has no verdict.

        The spout's ``ack`` and ``fail`` are not called for them, since the first give-up was final. A message
        that is given up again becomes another dead letter. The letter itself stays in the store, and is
        marked as settled when its message has a final verdict.

        Raises:
            MisuseError: A letter is not in the store, or the topology is not running; then none is sent.
        """
        send = self._send
        if send is None:
            self.get(ids)
            raise MisuseError(
                "dead letters can be sent again only into the running topology that gave them up",
                f"dead letters in {self.place}",
                "call running.dead_letters.redrive(ids) while it runs; or order it for the next run, with "
                "`acktree dead-letters redrive CHECKPOINT ID ...`",
            )
        with self._redriving:  # two threads that redrive the same letter send it once
            asked = {letter.id: letter for letter in self.get(ids)}
            letters = [letter for letter in asked.values() if not self._is_open(letter)]
            self._redrive(letters, send)
        return len(letters)

    def _redrive(self, letters: Sequence[DeadLetter], send: Callable[[Sequence[DeadLetter]], None]) -> None:
        # Ordered before the mark: a driver that dies leaves no letter that is marked and that nobody sends.
        # Marked before the send: a fast verdict marks the letter as settled, and must not be overwritten.
        now_ms = self._now_ms()
        with self._ordering(letters, now_ms):
            self.mark_redriven([letter.id for letter in letters if letter.id is not None], now_ms)
            try:
                send(letters)
            except BaseException:
                with suppress(AcktreeError):  # the error of the send is the one to raise
                    self._put_marks_back(letters)
                raise

    def mark_redriven(self, ids: Iterable[int], now_ms: int) -> None:
        """Record that these letters were sent again at ``now_ms``; durable when this returns.

        Raises:
            MisuseError: A letter is not in the store; then none is marked.
        """
        self._mark(ids, {"redriven_ms": now_ms, "settled_ms": None})

    def mark_settled(self, ids: Iterable[int], now_ms: int) -> None:
        """Record that the messages of redriven letters have a final verdict; purged letters are ignored."""
        self._table.mark(list(ids), {"settled_ms": now_ms})

    @ending_at_caller
    def purge(self, **filters: Unpack[Filters]) -> int:
        """Delete the letters that match; returns how many. They cannot be restored.

        ``purge(redriven=True, settled=True)`` deletes the redriven letters whose message has a final verdict.

        Raises:
            MisuseError: No filter was given, or one of ``ids`` is not in the store; then none is deleted.
        """
        selection = Which.of(filters, self._scope)
        if selection.is_everything:
            raise MisuseError(
                "purge() without a filter would delete every dead letter",
                f"dead letters in {self.place}",
                "give a filter: purge(ids=[...]) or purge(before=...); for all, before= the current time",
            )
        if selection.ids is not None:
            asked = list(filters["ids"])
            self.get(asked)
            selection = Which.of({**filters, "ids": asked}, self._scope)
        return self._table.delete(selection)

    @ending_at_caller
    def export(self, path: Path | str, **filters: Unpack[Filters]) -> int:
        """Write the letters that match to a new file for other programs; returns how many.

        ``.parquet``: one row per letter, times as timestamps. ``.jsonl``: one JSON object per line. Both hold
        all parts of a letter: the whole payload, and those values that are not pickled. Unpickles nothing.
        Only the owner can read the file. It is written completely or not at all.

        Raises:
            MisuseError: The name has another suffix, the file exists, or it cannot be written.
        """
        return export_to(Path(path), self.find(**filters))

    def close(self) -> None:
        """Close the store; a second call does nothing.

        Every other method raises ConnectorError afterwards.
        """
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pages(self, selection: Which) -> Iterator[DeadLetter]:
        for ids in parts_of(selection.ids):
            part, last, is_last = replace(selection, ids=ids), 0, False
            while not is_last:
                rows = self._table.select(part, last, _PAGE)
                yield from map(letter_of_row, rows)
                is_last = len(rows) < _PAGE
                last = rows[-1][0] if rows else last

    def _mark(self, ids: Iterable[int], marks: Mapping[str, int | None]) -> None:
        known = [letter.id for letter in self.get(ids) if letter.id is not None]
        self._table.mark(known, marks)

    def _put_marks_back(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            assert letter.id is not None, "it was stored"
            self._table.mark(
                [letter.id], {"redriven_ms": letter.redriven_ms, "settled_ms": letter.settled_ms}
            )


def _existing(place: Path | str) -> Path | str:
    """The file that a reader means.

    Raises:
        ConfigError: There is none.
    """
    path = Path(place)
    if isinstance(place, str) and place.startswith(_SQLITE) and "?" not in place:
        path = Path(place.removeprefix(_SQLITE))
    elif isinstance(place, str) and (place == IN_MEMORY or is_url(place)):
        return place
    if path.is_dir():
        path /= "dead_letters.sqlite"
    if path.is_file() and path.stat().st_size:
        return path
    raise ConfigError(
        f"there are no dead letters in {masked_place(str(place))}",
        f"DeadLetters({masked_place(str(place))!r}), seen from {Path.cwd()}",
        "pass the folder of a checkpoint, or the file dead_letters.sqlite in it; create=True makes a store",
    )


def _open(place: Path | str, *, create: bool | None) -> Table:
    if isinstance(place, Path) or "://" not in place:
        return SqliteTable(place)
    if place.startswith(_SQLITE) and "?" not in place:
        return SqliteTable(Path(place.removeprefix(_SQLITE)))
    try:
        from acktree.dead_letters.sql import SqlTable  # noqa: PLC0415  # needs an optional dependency
    except ImportError as missing:
        raise ConfigError(
            f"dead letters in a database need SQLAlchemy, which cannot be imported: {missing}",
            "Config(dead_letters_url=...)",
            f"{installing('sql')}; and your database's driver, which the extra postgresql has for PostgreSQL",
        ) from missing
    return SqlTable(place, create=create)
