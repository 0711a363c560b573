"""Refuses a ``submit`` that runs because its module is imported: by ``acktree run``, or by a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from acktree.errors import MisuseError

_imported: list[str] = []
_FIX = (
    "put submit(...), and what belongs to it, under `if __name__ == '__main__':`: then the module can be "
    "imported, and runs as a program all the same"
)


@contextmanager
def importing(target: str) -> Iterator[None]:
    """Refuse every ``submit`` in the block, which imports what a command was given.

    Args:
        target: What the command was given: ``MODULE:NAME``.
    """
    _imported.append(target)
    try:
        yield
    finally:
        _imported.pop()


def refuse_submit_by_import(topology_name: str, *, is_worker: bool) -> None:
    """Raise a MisuseError if a module submits the topology while it is imported."""
    where = f"submit() of topology {topology_name!r}"
    if is_worker:
        raise MisuseError("a Python worker imported a module that submits a topology", where, _FIX)
    if _imported:
        raise MisuseError(f"{_imported[-1]} submits a topology when it is imported", where, _FIX)
