"""Checks that the user's objects can be pickled or copied.

A bolt or a custom grouping is pickled to the workers; a spout is deep-copied for each of its tasks, in the
process that calls ``submit``. Both are tried once here, so that the error can name the attribute at fault.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Final

import cloudpickle

from acktree.dataframe_spout import DataFrameSpout
from acktree.errors import TopologyError
from acktree.function_bolt import FunctionBolt
from acktree.spout import Spout

_LONGEST: Final = 160


def check_travels(user_object: object, owner: str, where: str) -> None:
    """Copy a spout, or pickle any other object, and discard the result.

    Args:
        user_object: A spout, bolt or custom grouping.
        owner: Its name in errors: ``"bolt 'count' (Count)"``.
        where: The call that it was passed to.

    Raises:
        TopologyError: It cannot be copied or pickled; names the attribute at fault.
    """
    if isinstance(user_object, DataFrameSpout):
        return  # it is not copied: Spark reads its rows
    copied = isinstance(user_object, Spout)
    travel: Callable[[object], object] = copy.deepcopy if copied else cloudpickle.dumps
    refusal = _refusal(travel, user_object)
    if refusal is None:
        return
    blamed = ""
    for name, value in getattr(user_object, "__dict__", {}).items():
        narrower = _refusal(travel, value)
        if narrower is not None:
            refusal, blamed = narrower, f" because of its attribute {name!r} ({type(value).__name__})"
            break
    lines = str(refusal).strip().splitlines() or [type(refusal).__name__]
    what = f"{owner} cannot be {'copied' if copied else 'pickled'}{blamed}: {lines[0]:.{_LONGEST}}"
    raise TopologyError(what, where, _fix(user_object, copied=copied)) from refusal


def _fix(user_object: object, *, copied: bool) -> str:
    if copied:
        return "make it in open(), which each task runs for itself, not in __init__()"
    if isinstance(user_object, FunctionBolt):
        return "make it inside the function; or derive from BasicBolt and make it in prepare()"
    return "make it in prepare(), which each task runs for itself, not in __init__()"


def _refusal(travel: Callable[[object], object], value: object) -> Exception | None:
    try:
        travel(value)
    except Exception as refusal:  # noqa: BLE001  # __reduce__ and __deepcopy__ are user code and may raise anything
        return refusal
    return None
