"""The channel between a Python worker and the state store; one that was interrupted is not used again.

What bolts remember is in files, or at a URL in Spark's state. An error of either is no error of user code: it
ends the level, and Spark runs the task again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from acktree.core.state.store import StateStore
from acktree.system.stopped_by import EndOfLevelError


class StateChannelLostError(EndOfLevelError):
    """A request to the state store failed or was interrupted, so the channel must not be used again.

    Of Spark's state the next request would read this request's answer.
    """


class Channel:
    """Notes whether a request is pending, so that an interrupted channel is not used again.

    Threads ask one after another: tasks of one bolt share the channel of their partition.
    """

    def __init__(self) -> None:
        self._is_asking = False
        self._lock = Lock()

    @contextmanager
    def question(self) -> Iterator[None]:
        """Send a request and read its answer in this block.

        Raises:
            StateChannelLostError: This request or an earlier one was interrupted.
        """
        with self._lock:
            self.refuse_if_lost()
            self._is_asking = True  # it stays so if anything is raised, wherever that is
            try:
                yield
            except BaseException as error:
                raise _lost(f"{type(error).__name__}: {error}") from error
            self._is_asking = False

    def refuse_if_lost(self) -> None:
        """Raise StateChannelLostError if a question was interrupted; also when user code caught that."""
        if self._is_asking:
            raise _lost("user code caught the exception")


class GuardedStore(StateStore):
    """A state store whose errors end the level, also if user code catches them: no tuple fails for them.

    Attributes:
        channel: Whether an access has failed; the operator asks at the end of a level.
    """

    def __init__(self, store: StateStore) -> None:
        """Guard a store."""
        self._store = store
        self.channel = Channel()

    def get(self, name: str) -> bytes | None:
        with self.channel.question():
            return self._store.get(name)

    def put(self, name: str, blob: bytes) -> None:
        with self.channel.question():
            self._store.put(name, blob)

    def delete(self, name: str) -> None:
        with self.channel.question():
            self._store.delete(name)


def _lost(how: str) -> StateChannelLostError:
    return StateChannelLostError(
        f"a question to the state store was interrupted ({how}); "
        "this process does not ask it again, and Spark runs the task again"
    )
