"""Where messages that were given up are kept: in SQLite beside the checkpoint, or in a database of yours.

Rules of this file
------------------
1. When ``put`` returns, the letters are durable: only then may a spout be told of its dead message.
2. ``put`` is idempotent by (topology, root). After a crash the same verdict comes again; it is one letter.
3. Nothing is unpickled here. A letter whose class is gone can still be listed, counted, read and exported.
4. Who names a letter that is not there is told so, and nothing is done to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, Unpack

from acktree.dead_letters.export import export_to
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.sqlite import IN_MEMORY, SqliteTable
from acktree.dead_letters.table import Filters, Table, Which, letter_of_row, row_of, runs_of
from acktree.errors import AcktreeError, ConfigError, MisuseError

__all__ = ["IN_MEMORY", "DeadLetters"]

_PAGE: Final = 100
_SQLITE: Final = "sqlite:///"


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_never_open(_: DeadLetter) -> bool:
    """Where no topology runs."""
    return False


class DeadLetters:
    """The dead letters in one place. Any thread may call any method, and other processes may read meanwhile.

    Where filters may be given, those letters are meant that fit all of them; see ``Filters``.

    Args:
        place: The path of an SQLite file, made if missing; or a URL as SQLAlchemy has them, which needs
            ``acktree[sql]`` (``sqlite:///path`` does not); or :data:`IN_MEMORY`.
        send: Sends letters into the topology again, for :meth:`redrive`; None where none runs.
        is_open: Whether what a letter was sent again as is still on its way.
        topology: Show and change the letters of this topology alone. None: those of all that share the place.
        now_ms: The clock that redrives are marked by.

    Raises:
        CheckpointError: What is there is of another program, or of a newer acktree.
        ConfigError: The URL cannot be read, or its driver is not installed.
        ConnectorError: It cannot be opened, or is damaged. Any method may raise this one too, with the place
            and what to do; ``can_retry`` when it may work later by itself.
    """

    def __init__(
        self,
        place: Path | str,
        send: Callable[[Sequence[DeadLetter]], None] | None = None,
        *,
        is_open: Callable[[DeadLetter], bool] = _is_never_open,
        topology: str | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
    ) -> None:
        self._table = _open(place)
        self._send, self._is_open, self._scope, self._now_ms = send, is_open, topology, now_ms
        self._redriving = Lock()

    @property
    def place(self) -> str:
        """Where they are, for people: without a password."""
        return self._table.place

    def put(self, letters: Iterable[DeadLetter]) -> int:
        """Store letters, all or none; durable when this returns.

        A letter whose topology and root are in the store already is left as it stands there: the first story
        told is kept. Letters are numbered in the order given; an ``id`` that they carry is ignored.

        Returns:
            How many were new.
        """
        return self._table.insert([row_of(letter) for letter in letters])

    def known_roots(self, topology: str, roots: Sequence[int]) -> set[int]:
        """Those of the roots that have a letter of this topology already: :meth:`put` would leave it be."""
        return self._table.known_roots(topology, roots)

    def __iter__(self) -> Iterator[DeadLetter]:
        return self.find()

    def __len__(self) -> int:
        return self.count()

    def find(self, **filters: Unpack[Filters]) -> Iterator[DeadLetter]:
        """The letters that fit, lowest id first.

        Letters stored meanwhile are seen too, and nobody is kept from storing them.
        """
        return self._pages(Which.of(filters, self._scope))

    def count(self, **filters: Unpack[Filters]) -> int:
        """How many letters fit; all of them when no filter is given."""
        return self._table.count(Which.of(filters, self._scope))

    def get(self, ids: Iterable[int]) -> list[DeadLetter]:
        """The letters with these ids, in this order.

        Raises:
            MisuseError: One of them is not in the store.
        """
        asked = list(ids)
        found = {letter.id: letter for letter in self.find(ids=asked)}
        for number in asked:
            if number not in found or isinstance(number, bool | float):  # True and 1.0 equal letter 1
                raise MisuseError(
                    f"there is no dead letter {number!r}",
                    f"dead letters in {self.place}",
                    "take the ids from the letters: iterating over the store lists them",
                )
        return [found[number] for number in asked]

    def redrive(self, ids: Iterable[int]) -> int:
        """Send letters again, as new messages with a first attempt; returns how many were sent.

        A letter that is named twice is sent once. One that was sent before and has no verdict yet is not sent
        a second time, and not counted.

        Their source is through with them and is told nothing: one that is acked is done, one that fails for
        good becomes a dead letter again. Either way the letter stays, and is marked as settled then.

        Raises:
            MisuseError: One of them is not in the store, or the topology does not run; then none is sent.
        """
        send = self._send
        if send is None:
            self.get(ids)
            raise MisuseError(
                "dead letters can be sent again only into the running topology that gave them up",
                f"dead letters in {self.place}",
                "submit the topology, and call running.dead_letters.redrive(ids)",
            )
        with self._redriving:  # two threads that redrive the same letter send it once
            letters = [letter for letter in self.get(dict.fromkeys(ids)) if not self._is_open(letter)]
            self._redrive(letters, send)
        return len(letters)

    def _redrive(self, letters: Sequence[DeadLetter], send: Callable[[Sequence[DeadLetter]], None]) -> None:
        # Marked first: one that is through at once is settled, and the mark must not come after that.
        self.mark_redriven([letter.id for letter in letters if letter.id is not None], self._now_ms())
        try:
            send(letters)
        except BaseException:
            with suppress(AcktreeError):  # what hindered the sending is the news
                self._put_marks_back(letters)
            raise

    def mark_redriven(self, ids: Iterable[int], now_ms: int) -> None:
        """Note that these letters were sent again at ``now_ms``; durable when this returns.

        Raises:
            MisuseError: One of them is not in the store; then none is marked.
        """
        self._mark(ids, {"redriven_ms": now_ms, "settled_ms": None})

    def mark_settled(self, ids: Iterable[int], now_ms: int) -> None:
        """Note that what these letters were sent again as has come to its end; purged ones need no note."""
        self._table.mark(list(ids), {"settled_ms": now_ms})

    def purge(self, **filters: Unpack[Filters]) -> int:
        """Delete the letters that fit, for good; returns how many.

        ``purge(redriven=True, settled=True)`` deletes those whose redrive came to its end.

        Raises:
            MisuseError: No filter was given, or one of ``ids`` is not in the store; then none is deleted.
        """
        which = Which.of(filters, self._scope)
        if which.is_everything:
            raise MisuseError(
                "purge() without a filter would delete every dead letter",
                f"dead letters in {self.place}",
                "say which: purge(ids=[...]), purge(before=...); for all of them before= the present time",
            )
        if which.ids is not None:
            asked = list(filters["ids"])
            self.get(asked)
            which = Which.of({**filters, "ids": asked}, self._scope)
        return self._table.delete(which)

    def export(self, path: Path | str, **filters: Unpack[Filters]) -> int:
        """Write the letters that fit into a new file for other programs; returns how many.

        ``.parquet``: a row each, times as timestamps. ``.jsonl``: a JSON object a line. Both hold every part
        of a letter, the payload whole and what can be seen of the values. Unpickles nothing. The file is
        readable by its owner alone, and it is there whole or not at all.

        Raises:
            MisuseError: The name ends otherwise, there is a file of this name, or it cannot be written.
        """
        return export_to(Path(path), self.find(**filters))

    def close(self) -> None:
        """Let go of the place; a second call does nothing.

        Every other method raises ConnectorError from now on.
        """
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pages(self, which: Which) -> Iterator[DeadLetter]:
        for ids in runs_of(which.ids):
            run, last, is_last = replace(which, ids=ids), 0, False
            while not is_last:
                rows = self._table.select(run, last, _PAGE)
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


def _open(place: Path | str) -> Table:
    if isinstance(place, Path) or "://" not in place:
        return SqliteTable(place)
    if place.startswith(_SQLITE) and "?" not in place:
        return SqliteTable(Path(place.removeprefix(_SQLITE)))
    try:
        from acktree.dead_letters.sql import SqlTable  # noqa: PLC0415  # an extra, which most do not need
    except ImportError as missing:
        raise ConfigError(
            f"dead letters in a database need SQLAlchemy, which cannot be imported: {missing}",
            "Config(dead_letters_url=...)",
            "pip install 'acktree[sql]' and your database's driver, or 'acktree[postgresql]' for both",
        ) from missing
    return SqlTable(place)
