"""The channel between a Python worker and the state store; one that was interrupted is not used again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["Channel", "StateChannelLostError"]


class StateChannelLostError(BaseException):
    """A request to the state store was interrupted before its answer, so the channel must not be used again.

    The next request would read this request's answer. It is a BaseException so that ``except Exception`` does
    not catch it: it ends the level, and Spark runs the task again.
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


def _lost(how: str) -> StateChannelLostError:
    return StateChannelLostError(
        f"a question to the state store was interrupted ({how}); "
        "this process does not ask it again, and Spark runs the task again"
    )
