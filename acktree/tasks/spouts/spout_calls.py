"""Calls a spout's own methods (``ack``, ``fail``, ``keep_alive``), and handles what they raise.

Hooks that watch a task are in ``task_hooks.py``.

Rules of this file
------------------
1. A ``ConnectorError`` that may pass is reported once in a row, and the call is made again after a pause.
   Until it succeeds, later calls wait behind it in their order: verdicts keep their order.
2. A ``ConnectorError`` that cannot pass leaves this file: it stops the topology.
3. Whatever else is raised is reported, and the spout goes on; but ``sys.exit`` stops the topology.
4. What was lost gets no verdict, also when a call that is under way loses it. Only a hook that takes several
   at once, and loses some of them, has their verdicts already.
5. A call that is made again gives each ``ack`` and ``fail`` to a spout once: also where the spout overrides
   ``ack_batch`` and calls that of ``Spout`` in it, with the ids as it was given them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from acktree.core.spouts.open_messages import OpenMessages
from acktree.core.stats.numbers import Outage
from acktree.core.tracking.verdicts import Failure
from acktree.errors import ConnectorError
from acktree.spout import Spout, call_each, own_delivery
from acktree.system.stopped_by import pass_on
from acktree.tasks.spouts.upkeep import Pauses

IsLost = Callable[[object], bool]
"""Whether a message id is among those that were lost."""


@dataclass
class _VerdictCall:
    """A call that delivers verdicts of one kind.

    Attributes:
        in_bulk: The hook that takes all of them.
        one_by_one: The hook that takes one, where the spout does not override ``in_bulk``.
        items: Message ids, or (message id, failure) pairs.
        taken: The ids that a hook took one by one, in this try and in those before; by the hook.
    """

    in_bulk: Callable[..., None]
    one_by_one: Callable[..., None] | None
    items: Sequence[Any]
    is_ack: bool
    taken: dict[str, list[object]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "ack" if self.is_ack else "fail"

    def id_of(self, item: Any) -> object:  # noqa: ANN401  # as in items
        return item if self.is_ack else item[0]

    def without(self, is_lost: IsLost) -> _VerdictCall:
        return replace(self, items=[item for item in self.items if not is_lost(self.id_of(item))])


@dataclass
class _Call:
    """A call of a hook that delivers no verdict."""

    hook: Callable[..., None]
    arguments: tuple[object, ...]

    @property
    def name(self) -> str:
        return getattr(self.hook, "__name__", "a hook").removeprefix("_ask_")


class Calling:
    """The hook that is being called. The spout's thread sets it; any thread may read it.

    Attributes:
        now: Its name, and since when, as ``time.monotonic()`` counts; None while none is called.
    """

    now: tuple[str, float] | None = None


class Hooks:
    """The hooks of one spout task.

    Attributes:
        now_ms: The clock; the caller sets it before each call.
        calling: The hook that is being called.
    """

    def __init__(
        self,
        spout: Spout,
        report: Callable[[BaseException], None],
        recovered: Callable[[Outage, int], object],
    ) -> None:
        """Nothing was called yet.

        Args:
            report: Called with what user code raised.
            recovered: Called when calls work again: what was away, and the time now.
        """
        self._recovered = recovered
        self.now_ms, self.calling = 0, Calling()
        self._spout, self._report = spout, report
        self._pauses = Pauses()
        self._waiting: deque[_VerdictCall | _Call] = deque()
        self._must_ask = False  # next_tuple, or open, is the call that raised, or keep_alive
        self._only_beats = False  # it was keep_alive, and no other call since
        self._losses: list[IsLost] = []  # during the call that is under way
        self._under_way: _VerdictCall | None = None
        self._taken_before: dict[str, Counter[object]] = {}

    @property
    def has_undelivered(self) -> bool:
        """Whether verdicts wait for a call that raised."""
        return any(isinstance(call, _VerdictCall) for call in self._waiting)

    @property
    def may_ask(self) -> bool:
        """Whether ``next_tuple`` may be called: nothing waits, and it is not too early for the next try."""
        return not self._waiting and (not self._pauses.is_on or self._pauses.is_over(self.now_ms))

    def due_ms(self, *, can_ask: bool) -> int | None:
        """When a call is to be made again; None when none is.

        Args:
            can_ask: Whether ``next_tuple`` would be called otherwise.
        """
        return self._pauses.due_ms() if self._waiting or (self._must_ask and can_ask) else None

    def call(self, hook: Callable[..., None], *arguments: object) -> None:
        """Call a hook that delivers no verdict."""
        if self._waiting:
            self._waiting.append(_Call(hook, arguments))
        else:
            self._make(_Call(hook, arguments))

    def keep_alive(self, open_messages: OpenMessages, *, is_asked: bool) -> None:
        """Call ``keep_alive``: also while other calls wait, and not again before it is due.

        Args:
            open_messages: What it is given.
            is_asked: Whether ``next_tuple`` is called, too: then an outage ends with that. A ``keep_alive``
                without open messages may have nothing to do.
        """
        self.calling.now, self._losses = ("keep_alive", monotonic()), []
        try:
            self._spout.keep_alive(open_messages)
        except ConnectorError as error:
            if not error.can_retry:
                raise
            if not self._pauses.is_on:
                self.failed(error)
                self._only_beats = True
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on_exit(error)
            self._report(error)
        else:
            if self._only_beats and not self._waiting and not is_asked:
                self.succeeded()
        finally:
            self.calling.now = None

    def ack(self, message_ids: Sequence[object]) -> None:
        """Deliver acks to the spout."""
        spout = self._spout
        ack_one = spout.ack if _is_ours(spout.ack_batch, Spout.ack_batch) else None
        self._deliver(_VerdictCall(spout.ack_batch, ack_one, message_ids, is_ack=True))

    def fail(self, failures: Sequence[tuple[Any, Failure]]) -> None:
        """Deliver failures to the spout."""
        spout = self._spout
        fail_one = (lambda pair: spout.fail(*pair)) if _is_ours(spout.fail_batch, Spout.fail_batch) else None
        self._deliver(_VerdictCall(spout.fail_batch, fail_one, failures, is_ack=False))

    def lose(self, is_lost: IsLost) -> None:
        """Deliver no verdict for what was lost."""
        if self.calling.now is not None:
            self._losses.append(is_lost)
        without_lost = (
            call.without(is_lost) if isinstance(call, _VerdictCall) else call for call in self._waiting
        )
        self._waiting = deque(call for call in without_lost if isinstance(call, _Call) or call.items)

    def failed(self, error: ConnectorError) -> None:
        """``next_tuple`` or ``open`` raised what may pass, or ``keep_alive`` did: pause."""
        self._must_ask, self._only_beats = True, False
        self._pause(error)

    def succeeded(self) -> None:
        """``next_tuple`` or ``open`` returned, or ``keep_alive`` did where it was the one that raised."""
        if self._must_ask or self._pauses.is_on:
            self._must_ask = self._only_beats = False
            self._works()

    def try_again(self) -> bool:
        """Make the calls that wait, if it is time for that. True if one was made and returned."""
        has_moved = False
        while self._waiting and self._pauses.is_over(self.now_ms):
            if not self._make(self._waiting.popleft()):
                break
            has_moved = True
        if has_moved and not self._waiting and not self._must_ask:
            self._works()
        return has_moved

    def _deliver(self, verdicts: _VerdictCall) -> None:
        if self._waiting:
            self._waiting.append(verdicts)
        else:
            self._make(verdicts)

    def _make(self, call: _VerdictCall | _Call) -> bool:
        """Make a call. False if what it raised may pass: it waits, in front of all others."""
        self.calling.now, self._losses = (call.name, monotonic()), []
        try:
            if isinstance(call, _Call):
                call.hook(*call.arguments)
            else:
                self._deliver_now(call)
        except ConnectorError as error:
            if not error.can_retry:
                raise
            for is_lost in self._losses:
                call = call.without(is_lost) if isinstance(call, _VerdictCall) else call
            if isinstance(call, _Call) or call.items:
                self._waiting.appendleft(call)
            self._pause(error)
            return False
        except BaseException as error:  # noqa: BLE001  # user code
            pass_on_exit(error)
            self._report(error)
        finally:
            self.calling.now = None
        return True

    def _deliver_now(self, call: _VerdictCall) -> None:
        self._taken_before = {name: Counter(map(_identity, ids)) for name, ids in call.taken.items()}
        if call.one_by_one is not None:
            self._one_by_one(call, call.name, call.one_by_one, call.items)
            return
        self._under_way = call
        token = own_delivery.set((self._spout, partial(self._one_by_one_of_super, call)))
        try:
            call.in_bulk(call.items)
        finally:
            own_delivery.reset(token)
            self._under_way = None

    def _one_by_one_of_super(
        self, call: _VerdictCall, name: str, hook: Callable[..., None], items: Iterable[Any]
    ) -> None:
        """What ``Spout.ack_batch`` and ``fail_batch`` do where those of the task's spout call them."""
        if self._under_way is call:
            self._one_by_one(call, name, hook, items)
        else:  # the user's code has kept the context
            call_each(hook, items)

    def _one_by_one(
        self, call: _VerdictCall, name: str, hook: Callable[..., None], items: Iterable[Any]
    ) -> None:
        """Give a hook what it has not taken yet and was not lost, until it raises a ``ConnectorError``."""
        taken, before = call.taken.setdefault(name, []), self._taken_before.get(name)
        raised: list[BaseException] = []
        for item in items:
            message_id = item if name == "ack" else item[0]  # a `fail_batch` may call `ack_batch`
            if before is not None and before[_identity(message_id)]:
                before[_identity(message_id)] -= 1
                continue
            if self._losses and any(is_lost(message_id) for is_lost in self._losses):
                continue
            try:
                hook(item)
            except ConnectorError:
                if raised:
                    self._report(_together(raised))
                raise
            except BaseException as error:  # noqa: BLE001  # user code
                pass_on_exit(error)
                raised.append(error)
            taken.append(message_id)
        if raised:
            raise _together(raised)

    @property
    def outage(self) -> Outage | None:
        """What is away; None while calls work. Any thread may ask."""
        return self._pauses.outage

    def _works(self) -> None:
        outage = self._pauses.outage
        self._pauses.end()
        if outage is not None:
            self._recovered(outage, self.now_ms)

    def _pause(self, error: ConnectorError) -> None:
        if self._pauses.begin(self.now_ms, error):
            self._report(error)


def _identity(message_id: object) -> object:
    """The same for a message id each time a call is made; ids of users need not be hashable."""
    if isinstance(message_id, int | str | bytes | tuple | np.generic):  # an array makes each id anew
        with suppress(Exception):
            hash(message_id)
            return type(message_id), message_id
    return id(message_id)


def _is_ours(hook: object, default: object) -> bool:
    return getattr(hook, "__func__", None) is default


def pass_on_exit(raised: BaseException) -> None:
    """:func:`~acktree.system.stopped_by.pass_on`; and a spout that calls ``sys.exit`` stops its topology."""
    pass_on(raised)
    if isinstance(raised, SystemExit):
        raise raised


def _together(raised: Sequence[BaseException]) -> BaseException:
    if len(raised) == 1:
        return raised[0]
    return BaseExceptionGroup(f"{len(raised)} verdicts could not be delivered", raised)
