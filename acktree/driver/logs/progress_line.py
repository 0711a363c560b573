"""The progress of a topology while its end is awaited: a line that changes, or one line a second.

On a terminal it is one line of rich, where that is installed; otherwise a plain line a second to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import Event, Thread
from typing import Final

_SECS: Final = 1.0


@contextmanager
def progress_shown(said: Callable[[], str], *, secs: float = _SECS) -> Iterator[None]:
    """While this is open, show what ``said`` returns, once a second, and once more at the end.

    Args:
        said: One line. Called on a thread of its own.
        secs: The time between two lines.
    """
    show = _on_terminal if _has_terminal() and find_spec("rich") else _as_lines
    is_over = Event()
    thread = Thread(target=show, args=(said, is_over, secs), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def say_progress(line: str) -> None:
    """Print one line to stderr, if there is one."""
    with suppress(OSError, ValueError, AttributeError):  # it is closed
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _as_lines(said: Callable[[], str], is_over: Event, secs: float) -> None:
    """The thread's target where lines are printed."""
    while True:
        was_last = is_over.wait(secs)
        say_progress(said())
        if was_last:
            return


def _on_terminal(said: Callable[[], str], is_over: Event, secs: float) -> None:
    """The thread's target where one line is written again and again."""
    from rich.console import Console  # noqa: PLC0415  # it may not be installed, and takes long to import
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(Text(said()), console=Console(stderr=True), auto_refresh=False) as live:
        was_last = False
        while not was_last:
            was_last = is_over.wait(secs)
            live.update(Text(said()), refresh=True)
