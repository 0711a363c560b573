"""The dead letters of a topology in a ``LocalCluster``: in memory, otherwise as on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from acktree.dead_letters.letter import DeadLetter
from acktree.errors import MisuseError

__all__ = ["LocalLetters"]


class LocalLetters:
    """Messages given up, lowest id first."""

    def __init__(self, send: Callable[[DeadLetter], None], now_ms: Callable[[], int]) -> None:
        """None yet; ``send`` hands a letter to the spout task that gave it up."""
        self._letters: dict[int, DeadLetter] = {}
        self._send, self._now_ms = send, now_ms

    def put(self, letter: DeadLetter) -> None:
        """Keep a letter; one of the same root is kept already if its verdict is told again."""
        if all(kept.root != letter.root for kept in self._letters.values()):
            number = len(self._letters) + 1
            self._letters[number] = replace(letter, id=number)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(list(self._letters.values()))

    def __len__(self) -> int:
        return len(self._letters)

    def count(self) -> int:
        """How many there are, those sent again included."""
        return len(self._letters)

    def redrive(self, ids: Iterable[int]) -> int:
        """Send letters again, as new messages with a first attempt; returns how many.

        Their source is through with them and is told nothing: one that is acked is done, one that fails for
        good becomes a dead letter again.

        Raises:
            MisuseError: One of the ids is not here; then none is sent.
        """
        wanted = list(ids)
        for number in wanted:
            if number not in self._letters:
                raise MisuseError(
                    f"there is no dead letter {number!r}",
                    "dead letters of a LocalCluster's topology",
                    "take the ids from the letters: iterating over them lists them",
                )
        for number in wanted:
            letter = self._letters[number] = replace(self._letters[number], redriven_ms=self._now_ms())
            self._send(letter)
        return len(wanted)
