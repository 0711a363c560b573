"""What a task asks of the keyed state that a bolt remembers, whatever its kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from acktree.core.state.store import StateStore

K = TypeVar("K")
V = TypeVar("V")


class StoredState(MutableMapping[K, V]):
    """A mapping that reads from a store what is asked for, and writes what changed.

    A copy or a pickle of it is not bound, and has all keys.
    """

    @property
    @abstractmethod
    def is_bound(self) -> bool:
        """Whether it is bound to a state store."""

    @abstractmethod
    def bind(
        self,
        store: StateStore,
        dumps: Callable[[object], bytes],
        loads: Callable[[bytes], Any],
        now_ms: int | None = None,
    ) -> None:
        """Attach it to a store: continue from the store's content, or from its own if the store is empty.

        Called by the task between ``prepare`` and the first tuple.

        Args:
            store: The store.
            dumps: How values are encoded.
            loads: How they are decoded.
            now_ms: The clock of the micro-batch; None where no time passes.
        """

    @abstractmethod
    def save(self) -> None:
        """Write the changes since :meth:`bind`; called by the task at the end of its micro-batch."""

    @property
    @abstractmethod
    def may_stay(self) -> bool:
        """Whether it may be used on: asked after :meth:`save`. It has then what one that is bound anew reads.

        No one can tell it from that one, and what it keeps in memory is bounded.
        """

    @abstractmethod
    def go_on(
        self, store: StateStore, dumps: Callable[[object], bytes], loads: Callable[[bytes], Any]
    ) -> None:
        """Use it on, in place of :meth:`bind` of a new one, with what the last :meth:`save` has written."""

    @abstractmethod
    def emptied(self) -> MutableMapping[K, V]:
        """An empty, unbound state of the same kind."""
