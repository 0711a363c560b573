"""The base classes of bolts, also of those that process their tuples in batches."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import defaultdict, namedtuple
from collections.abc import Awaitable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from inspect import GEN_CREATED, getgeneratorstate, isasyncgen, isawaitable, iscoroutine, isgenerator
from typing import Any, Final

from acktree.pystorm.component import Component, Tuple, handle_exception, is_hosted
from acktree.pystorm.exceptions import ComponentTypeError

__all__ = [
    "BatchingBolt", "Bolt", "TicklessBatchingBolt", "ack_unclosed", "current_tups", "refuse_unrun",
]  # fmt: skip

current_tups: Final[ContextVar[Sequence[Tuple]]] = ContextVar("acktree_current_tups")
"""The tuple of the ``async def process`` that this code belongs to."""
_NO_IDENTIFIER: Final = re.compile(r"\W|^(?=\d)")


class Bolt(Component):
    """A bolt: ``process`` is called with each tuple.

    Attributes:
        auto_anchor: Whether an emit is anchored to the current tuple, unless it says otherwise.
        auto_ack: Whether a tuple is acked when ``process`` returns.
        auto_fail: Whether a tuple fails when ``process`` raises.
    """

    auto_anchor = True
    auto_ack = True
    auto_fail = True
    _current_tups: list[Tuple] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._source_tuple_types: defaultdict[str, dict[str, type]] = defaultdict(dict)

    def _setup_component(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super()._setup_component(storm_conf, context)
        for source, streams in context.get("source->stream->fields", {}).items():
            for stream, fields in streams.items():
                self._source_tuple_types[source][stream] = values_type(source, stream, tuple(fields))

    @staticmethod
    def is_tick(tup: Tuple) -> bool:
        """Whether a tuple is a tick."""
        return bool(tup.component == "__system" and tup.stream == "__tick")

    def read_tuple(self) -> Tuple:
        """The next tuple."""
        message = self.read_command()
        source, stream, values = message["comp"], message["stream"], message["tuple"]
        kind = self._source_tuple_types[source].get(stream)
        named = tuple(values) if kind is None else kind(*values)
        return Tuple(message["id"], source, stream, message["task"], named)

    def process(self, tup: Tuple) -> Awaitable[None] | None:
        """Called with each tuple that is neither a tick nor a heartbeat.

        It may be an ``async def``, which is not in pystorm: where acktree hosts the bolt, tuples are then
        processed at once, up to ``max_concurrency`` of its class, or 100. ``process_tick`` may be one, too.
        """
        raise NotImplementedError

    def process_tick(self, tup: Tuple) -> Awaitable[None] | None:
        """Called at each tick."""

    def emit(  # type: ignore[override]  # pystorm's: a bolt's tuples have no ids
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Any] | None = None,
        direct_task: Any = None,
        need_task_ids: bool = False,
    ) -> list[Any] | None:
        """Emit a tuple.

        Args:
            tup: Its values.
            stream: None for the default stream.
            anchors: Tuples or ids. None: the current tuples, if ``auto_anchor``; an empty list: none.
            direct_task: The task that it is sent to, of a direct stream.
            need_task_ids: Whether the ids of the tasks that it goes to are returned.
        """
        if anchors is None:
            anchors = current_tups.get(None) or self._current_tups if self.auto_anchor else ()
        ids = [anchor.id if isinstance(anchor, Tuple) else anchor for anchor in anchors]
        return Component.emit(
            self, tup, stream=stream, anchors=ids, direct_task=direct_task, need_task_ids=need_task_ids
        )

    def ack(self, tup: Any) -> None:
        """Ack a tuple, or the tuple of an id."""
        self.send_message({"command": "ack", "id": tup.id if isinstance(tup, Tuple) else tup})

    def fail(self, tup: Any) -> None:
        """Fail a tuple, or the tuple of an id."""
        self.send_message({"command": "fail", "id": tup.id if isinstance(tup, Tuple) else tup})

    def _run(self) -> None:
        _take(self, self.read_tuple(), acks=True)

    def _handle_run_exception(self, exc: Exception) -> None:
        """Report an exception, and fail the current tuples: one, or none at the end of ``_run``."""
        tups = self._current_tups
        self.raise_exception(exc, tups[0] if len(tups) == 1 else tups)
        if self.auto_fail:
            _fail_unclosed(self, tups)


class BatchingBolt(Bolt):
    """A bolt that collects tuples, and processes them in batches when ticks come.

    A tuple stays open until its batch was processed. The message timeout must be longer than that takes.

    Attributes:
        ticks_between_batches: Batches are processed when more ticks than these have come.
        tuples_between_batches: Batches are processed when this number of tuples has come, too. It is not in
            pystorm.
    """

    ticks_between_batches = 1
    tuples_between_batches: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batches: defaultdict[Hashable, list[Tuple]] = defaultdict(list)
        self._tick_counter = 0
        self._current_key: Hashable = None

    def group_key(self, tup: Tuple) -> Hashable:  # noqa: ARG002  # for those that override it
        """The key of the batch that a tuple belongs to. By default there is one batch."""
        return None

    def process_batch(self, key: Hashable, tups: list[Tuple]) -> None:
        """Called with each batch. Emits are anchored to all of its tuples."""
        raise NotImplementedError

    def emit(self, tup: Sequence[Any], **kwargs: Any) -> None:  # type: ignore[override]
        """Emit a tuple; see :meth:`Bolt.emit`. No task ids are returned."""
        super().emit(tup, **(kwargs | {"need_task_ids": False}))

    def process_tick(self, tick_tup: Tuple) -> None:
        """Ack the tick and count it; process the batches if it is time."""
        self._tick_counter += 1
        self.ack(tick_tup)
        if self._tick_counter > self.ticks_between_batches and self._batches:
            self.process_batches()
            self._tick_counter = 0

    def process(self, tup: Tuple) -> None:
        """Add a tuple to its batch."""
        self._batches[self.group_key(tup)].append(tup)
        most = self.tuples_between_batches
        if isinstance(most, int) and sum(map(len, self._batches.values())) >= most:
            self.process_batches()

    def process_batches(self) -> None:
        """Process each batch, and ack its tuples."""
        for key in list(self._batches):
            batch = self._current_tups = self._batches[key]
            self._current_key = key
            refuse_unrun(self, self.process_batch(key, batch))  # type: ignore[func-returns-value]  # a user's may
            for tup in batch:
                ack_unclosed(self, tup)
            del self._batches[key]
            self._current_key = None

    def _run(self) -> None:
        _take(self, self.read_tuple(), acks=False)

    def _handle_run_exception(self, exc: Exception) -> None:
        self.raise_exception(exc, self._current_tups)
        if not self.auto_fail:
            return
        is_batch = self._current_tups is self._batches.get(self._current_key)
        lost = [self._current_key] if is_batch else []
        if self.exit_on_exception and not is_hosted(self):  # the process ends, and all batches with it
            lost = list(self._batches)
        tups = [tup for key in lost for tup in self._batches.pop(key, ())]
        _fail_unclosed(self, (*tups, *self._current_tups))
        self._current_key = None


class TicklessBatchingBolt(BatchingBolt):
    """A bolt that processes its batches every ``secs_between_batches``.

    In a child process a thread does so. Hosted by acktree, the bolt is ticked at that interval, and
    ``process_batch`` is called on the thread of ``process``.

    Attributes:
        secs_between_batches: The interval in seconds; it may have a fraction.
    """

    secs_between_batches: float = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch_lock = threading.RLock()

    def process_tick(self, tick_tup: Tuple) -> None:
        """Ack the tick."""
        self.ack(tick_tup)

    def _setup_component(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super()._setup_component(storm_conf, context)
        if not is_hosted(self):
            threading.Thread(target=self._batch_entry, name="batches", daemon=True).start()

    def _batch_entry(self) -> None:
        while True:
            try:
                self._batch_entry_run()
            except Exception as error:  # noqa: BLE001  # user code
                with self._batch_lock:
                    handle_exception(self, error)
                if self.exit_on_exception:
                    sys.stdout.flush()
                    os._exit(1)

    def _batch_entry_run(self) -> None:
        time.sleep(self.secs_between_batches)
        with self._batch_lock:
            self.process_batches()

    def _run(self) -> None:
        tup = self.read_tuple()  # not within the lock: it waits
        with self._batch_lock:
            if is_hosted(self) and self.is_tick(tup):  # the time of the batches, whatever process_tick does
                self.process_batches()
            _take(self, tup, acks=False)


def _take(bolt: Bolt, tup: Tuple, *, acks: bool) -> None:
    """Do what the tuple, tick or heartbeat asks for; ``acks``: then ack it, if it is still open."""
    bolt.serializer.take(tup.id)
    bolt._current_tups = [tup]  # noqa: SLF001  # pystorm's name
    if bolt.is_heartbeat(tup):
        bolt.send_message({"command": "sync"})
    else:
        returned = bolt.process_tick(tup) if bolt.is_tick(tup) else bolt.process(tup)
        if returned is not None:
            refuse_unrun(bolt, returned)
        if acks:
            ack_unclosed(bolt, tup)
    bolt._current_tups = []  # noqa: SLF001  # not in a `finally`: what raised is about these tuples


def refuse_unrun(bolt: Bolt, returned: object) -> None:
    """Refuse what a method returned if its body has not run: its tuples would be acked, and nothing done."""
    if isgenerator(returned) and getgeneratorstate(returned) == GEN_CREATED:
        what, fix = "is a generator: a call does not run its body", "write it without yield"
    elif isasyncgen(returned):
        what, fix = "is an asynchronous generator: a call does not run its body", "write it without yield"
    elif isawaitable(returned):
        what = "is a coroutine, and nobody awaits it"
        fix = (
            "write it without async. Where acktree hosts a Bolt, process itself may be an async def, and so "
            "must be what a decorator makes of it"
        )
    else:
        return
    if iscoroutine(returned):
        returned.close()
    name = getattr(returned, "__qualname__", type(returned).__name__)
    raise ComponentTypeError(
        f"{name}() {what}", f"component {bolt.component_name!r}, class {type(bolt).__name__}", fix
    )


def ack_unclosed(bolt: Bolt, tup: Tuple) -> None:
    """The automatic ack, of a tuple that the bolt neither acked nor failed."""
    if bolt.auto_ack and not bolt.serializer.is_closed(tup.id):
        bolt.ack(tup)


def _fail_unclosed(bolt: Bolt, tups: Iterable[Tuple]) -> None:
    """Fail each tuple once that the bolt neither acked nor failed."""
    for tup in {tup.id: tup for tup in tups}.values():
        if not bolt.serializer.is_closed(tup.id):
            bolt.fail(tup)


@lru_cache(maxsize=4096)
def values_type(source: str, stream: str, fields: tuple[str, ...]) -> type:
    """The named tuple of a stream's values. Its objects can be pickled: a batch may be kept.

    Fields that are no identifiers get the names ``_0``, ``_1``, as ``namedtuple(rename=True)`` gives them.
    """
    names = (_NO_IDENTIFIER.sub("_", part.title()) for part in (source, stream))
    make: Any = namedtuple  # noqa: PYI024  # its fields are known at run time
    kind = make("".join(names) + "Tuple", fields, rename=True)
    kind.__reduce__ = lambda values: (_values, (source, stream, fields, *values))
    return kind  # type: ignore[no-any-return]  # a class


def _values(source: str, stream: str, fields: tuple[str, ...], *values: object) -> object:
    return values_type(source, stream, fields)(*values)
