"""Which methods of a component class run when they are called: coroutines and generators mostly do not.

Rules of this file
------------------
1. ``process`` of a bolt may be a coroutine, where acktree hosts the bolt (``hosted_async.py``), and then its
   ``process_tick`` too. pystorm has no such bolts.
2. A bolt that collects batches may not: ``process_batch`` is called for many tuples at a time.
3. Neither may a child process: it is given one tuple after another, so that nothing would run at once.
4. Whatever else would not run is refused before anything does: else its tuples would be acked.
"""

from __future__ import annotations

import inspect
from typing import Final

from acktree import ConfigError
from acktree.pystorm.bolt import BatchingBolt, Bolt

__all__ = ["is_async", "most_at_once", "refuse_bodies_that_do_not_run"]

_CALLED: Final = (
    "initialize", "process", "process_batch", "process_batches", "process_tick", "group_key", "next_tuple",
    "ack", "fail", "activate", "deactivate", "read_tuple", "_handle_run_exception", "_run",
)  # fmt: skip
"""What acktree calls, itself or by the base classes."""
_AWAITED: Final = ("process", "process_tick")
_MOST: Final = 100
"""The default ``max_concurrency`` of other bolts with coroutines, too."""
_NOT_RUN: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def is_async(kind: type) -> bool:
    """Whether a class is a bolt with ``async def process``."""
    return issubclass(kind, Bolt) and _is_coroutine(kind, "process")


def most_at_once(kind: type) -> int:
    """How many tuples of a task a bolt with ``async def process`` has at once.

    Raises:
        ConfigError: ``max_concurrency`` of the class is not an integer of at least 1.
    """
    most = getattr(kind, "max_concurrency", _MOST)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(
            f"max_concurrency is {most!r:.60}: it must be a whole number of at least 1",
            f"class {kind.__name__}",
            "write max_concurrency = 10, or leave it out for 100",
        )  # fmt: skip
    return most


def refuse_bodies_that_do_not_run(kind: type, *, in_child: bool = False) -> None:
    """Refuse coroutines and generators that nobody would run.

    Args:
        kind: The class of a component.
        in_child: Whether it runs as a child process.

    Raises:
        ConfigError: It has one.
    """
    for name in _CALLED:
        if not _is_coroutine(kind, name):
            code = getattr(getattr(kind, name, None), "__code__", None)
            if code is not None and code.co_flags & _NOT_RUN:
                what = f"{name}() of {kind.__name__} is a generator: a call does not run its body"
                raise _refused(kind, what, f"write def {name} without yield")
        elif name not in _AWAITED or not issubclass(kind, Bolt):
            what = f"{name}() of {kind.__name__} is a coroutine, and nobody awaits it"
            raise _refused(kind, what, f"write def {name} without async")
        elif issubclass(kind, BatchingBolt):
            what = f"{name}() of {kind.__name__} is a coroutine, and a BatchingBolt awaits none"
            raise _refused(kind, what, f"write def {name} without async, or derive the class from Bolt")
        elif in_child:
            what = f"{name}() of {kind.__name__} is a coroutine, and a child process is given one tuple "
            fix = 'let it run in acktree\'s own process, without "acktree.process"'
            raise _refused(kind, f"{what}after another: nothing would run at once", fix)
        elif not _is_coroutine(kind, "process"):
            what = f"{name}() of {kind.__name__} is a coroutine, and its process() is not"
            raise _refused(kind, what, f"write def {name} without async, or async def process")
    if is_async(kind) and kind._run is not Bolt._run:  # type: ignore[attr-defined]  # noqa: SLF001  # pystorm's
        what = f"_run() of {kind.__name__} is its own, and its process() is a coroutine"
        raise _refused(kind, what, "leave _run() out: acktree reads each tuple, and awaits process()")


def _is_coroutine(kind: type, name: str) -> bool:
    return inspect.iscoroutinefunction(getattr(kind, name, None))


def _refused(kind: type, what: str, fix: str) -> ConfigError:
    return ConfigError(what, f"class {kind.__name__}", fix)
