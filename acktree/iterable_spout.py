"""A spout over anything that can be iterated again from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from acktree.core.data.fields import DEFAULT_STREAM, Outputs, declare_streams
from acktree.errors import AcktreeError, SpoutError, TopologyError, naming_keywords
from acktree.spout import EndOfStream, Spout, SpoutOutputCollector
from acktree.texts import error_text

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay quick
    from acktree.config import Config
    from acktree.core.data.context import TaskContext

__all__ = ["IterableSpout"]

_MOST_TRIES: Final = 8
"""So often an IterableSpout tries one position before it stops the topology."""
_FIRST_PAUSE_SECS: Final = 0.1
"""After its first failed try; twice as long after each further one."""


class IterableSpout(Spout):
    """The items of anything that can be iterated again from the start; the message id is the position.

    Args:
        factory: A function that returns an iterable (``lambda: open("words.txt")``), or an iterable that
            starts anew each time (a list, a range). It must give the same items each time: after a restart
            the spout skips what it has emitted. Of several tasks, task i takes the positions p with
            ``p % tasks == i``.
        outputs: Fields of the default stream. With one field an item may be the value itself; an item that is
            a list or tuple is always the list of values.

    One item per ``next_tuple``; EndOfStream after the last. Nothing is lost when the driver dies: the
    position is remembered, and the messages that were open are brought back by acktree.

    No item is skipped. When an item cannot be read or does not fit the fields, the error is reported, and
    after a pause the items are read anew from the start, up to the same position: at most 8 tries at one
    position, with pauses from 0.1 s that double. After the last the topology stops with a SpoutError that
    names the position. To skip what cannot be read, catch the exception inside the iterable and yield
    something else; open a text file with ``errors="replace"``, so that a bad byte does not stop it.
    """

    redelivers = False
    remembers = ("position",)

    @naming_keywords
    def __init__(self, factory: Callable[[], Iterable[object]] | Iterable[object], outputs: Outputs) -> None:
        where = "IterableSpout(...)"
        given: object = factory  # what a caller without a type checker may have passed
        if isinstance(given, Iterator):
            what = f"{type(given).__name__} can be iterated only once, and a restart has to begin again"
            raise TopologyError(
                what, where, "pass a list, or a function that makes it: lambda: read_lines(path)"
            )
        if not callable(given) and not isinstance(given, Iterable):
            what = f"{given!r} can neither be iterated nor called"
            raise TopologyError(what, where, "pass a list, or a function that returns an iterable")
        streams = declare_streams(outputs, where)
        if set(streams) != {DEFAULT_STREAM}:
            what = f"an IterableSpout emits to stream 'default' alone, and is given {sorted(streams)}"
            raise TopologyError(what, where, 'name the fields of an item: outputs=["line"]')
        self.factory = factory
        self.outputs = outputs
        self.position = 0
        """The first position that this task has not dealt with."""
        self._one_field = len(streams[DEFAULT_STREAM].fields) == 1
        self._items: Iterable[object] | None = None
        self._reader: Iterator[object] | None = None
        self._reader_at = 0
        self._tries = 0

    def __repr__(self) -> str:
        return f"IterableSpout({self.factory!r:.40}, outputs={self.outputs!r:.30}, position={self.position})"

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:  # noqa: ARG002
        """Note which positions are this task's; nothing is read before ``next_tuple``."""
        self._collector = collector
        self._index, self._count = context.task_index, len(context.task_ids(context.component_id))

    def next_tuple(self) -> None:
        """Emit the next item of this task's, with its position as message id.

        Raises:
            EndOfStream: There is no further item.
            SpoutError: The item cannot be read or emitted: it is tried again after a pause; the last try
                stops the topology.
        """
        start = self.position + (self._index - self.position) % self._count
        try:
            self._emit_item(start)
        except EndOfStream:
            raise
        except Exception as error:
            # A generator that raised is at its end, and a file that did is anywhere: neither is asked again.
            self._reader = None
            self._tries += 1
            raise self._not_emitted(start, error) from error
        self._tries = 0
        self.position = start + 1

    def _emit_item(self, start: int) -> None:
        if self._reader is None or self._reader_at != start:
            self._reader, self._reader_at = islice(self._fresh_items(), start, None, self._count), start
        try:
            item = next(self._reader)
        except StopIteration:
            raise EndOfStream from None
        self._reader_at += self._count
        self._collector.emit(self._values_of(item, start), message_id=start)

    def _fresh_items(self) -> Iterable[object]:
        """The items from the start; an iterator that was half read would give others."""
        items = self.factory() if callable(self.factory) else self.factory
        if isinstance(items, Iterator) and items is self._items:
            raise SpoutError(
                "the function gave the same iterator a second time, which does not begin again",
                "IterableSpout(factory)",
                "make a new iterator at each call: lambda: open(path), lambda: read_lines(path)",
            )
        self._let_go()
        self._items = items
        return items

    def close(self) -> None:
        """Close what the function opened."""
        self._let_go()

    def _let_go(self) -> None:
        if callable(self.factory) and isinstance(self._items, Iterator) and hasattr(self._items, "close"):
            with suppress(Exception):  # a generator's own `finally`: its items are not asked for any more
                self._items.close()
        self._items = self._reader = None

    def _not_emitted(self, position: int, error: Exception) -> SpoutError:
        is_last = self._tries >= _MOST_TRIES
        follows = "the topology stops" if is_last else "it is tried again"
        return SpoutError(
            f"item {position} was not emitted, try {self._tries} of {_MOST_TRIES}, {follows}: "
            f"{error.what if isinstance(error, AcktreeError) else error_text(error)}",
            f"IterableSpout, position {position}, or one before it that had to be read again",
            "correct the source, and submit again on the same checkpoint: it goes on at this position; to "
            "skip what cannot be read, catch the exception inside the iterable",
            can_go_on=not is_last,
            pause_secs=_FIRST_PAUSE_SECS * 2 ** (self._tries - 1),
        )

    def _values_of(self, item: object, position: int) -> Sequence[object]:
        if isinstance(item, (list, tuple)):
            return item
        if self._one_field:
            return [item]
        raise SpoutError(
            f"item {position} is {item!r:.80}, which is no list of values for the fields {self.outputs!r}",
            f"IterableSpout, position {position}",
            "yield a list or tuple with one value for each field",
        )
