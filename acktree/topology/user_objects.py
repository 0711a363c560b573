"""Checks that a spout or bolt fulfils its contract, as far as this can be checked before it runs.

Rules of this file
------------------
1. A hook with wrong parameters is refused: Python would raise only in the first micro-batch, in a worker. A
   hook that is a generator or a coroutine is refused: Python would never run its body.
2. The contract is read from the base classes; this file has no second list of hooks.
"""

from __future__ import annotations

import inspect
import keyword
import math
from typing import Final

from acktree.bolt import MOST_AT_ONCE, AnyBolt, ArrowBolt, BasicBolt, Bolt
from acktree.core.data.fields import DEFAULT_STREAM, StreamDeclaration, declare_streams
from acktree.dataframe_spout import DataFrameSpout
from acktree.function_bolt import FunctionBolt
from acktree.sink import Sink
from acktree.spout import Spout
from acktree.topology.declared import Declared, shown

_BOLTS: Final = (Bolt, BasicBolt, ArrowBolt)
_WAITING: Final = (Bolt, BasicBolt)
"""The classes whose tuples may be executed at once."""


def checked_object(declared: Declared) -> Spout | AnyBolt | Sink:
    """The given spout, bolt or sink, after checking that it is one and that its hooks can be called."""
    user_object = declared.user_object
    call = f"{declared.method}({declared.id!r}, "
    if isinstance(user_object, type):
        fix = f"make one: {call}{user_object.__name__}(), ...)"
        raise declared.mistake(
            f"{declared.name} is the class {user_object.__name__}, not an instance of it", fix
        )
    if declared.method == "set_sink":
        return _checked_sink(declared, user_object)
    if isinstance(user_object, Spout):
        return _checked_spout(declared, user_object)
    if isinstance(user_object, _BOLTS):
        if declared.kind == "spout":
            raise declared.mistake(
                f"{declared.owner} is a bolt", f"add it with set_bolt({declared.id!r}, ...)"
            )
        _check_hooks(declared, user_object, next(base for base in _BOLTS if isinstance(user_object, base)))
        return user_object
    if inspect.isroutine(user_object):
        fix = 'put @bolt(outputs=["field"]) above it'
        if declared.kind == "spout":
            fix = "for fixed items use IterableSpout(function, outputs=[...]), else derive a class from Spout"
        raise declared.mistake(f"{declared.name} is a plain function, {shown(user_object)}", fix)
    if isinstance(user_object, Sink):
        raise declared.mistake(f"{declared.owner} is a sink", f"add it with set_sink({declared.id!r}, ...)")
    bases = "Spout" if declared.kind == "spout" else "Bolt, BasicBolt or ArrowBolt"
    what = f"{declared.name} is {shown(user_object)}, which is no {declared.kind}"
    raise declared.mistake(what, f"give an instance of a class derived from {bases}")


def _checked_sink(declared: Declared, user_object: object) -> Sink:
    if not isinstance(user_object, Sink):
        what = f"{declared.owner} is not a Sink, and cannot tell what it has written"
        fix = f"derive it from Sink; or write at least once, with set_bolt({declared.id!r}, ...)"
        raise declared.mistake(what, fix)
    _check_hooks(declared, user_object, Sink)
    return user_object


def _checked_spout(declared: Declared, spout: Spout) -> Spout:
    if declared.kind == "bolt":
        raise declared.mistake(f"{declared.owner} is a spout", f"add it with set_spout({declared.id!r}, ...)")
    redelivers: object = spout.redelivers
    if not isinstance(redelivers, bool):
        what = f"redelivers of {declared.owner} is {redelivers!r:.60}"
        raise declared.mistake(what, "True: the queue brings back what was open; False: acktree does")
    if isinstance(spout, DataFrameSpout) and declared.parallelism != 1:
        what = f"{declared.owner} has parallelism {shown(declared.parallelism)}, and Spark reads its rows"
        raise declared.mistake(what, "leave parallelism out: its rows are read in all partitions anyway")
    _check_hooks(declared, spout, Spout)
    _check_keep_alive(declared, spout)
    return spout


def checked_streams(declared: Declared, user_object: Spout | AnyBolt) -> dict[str, StreamDeclaration]:
    """The output streams. A spout must have at least one."""
    streams = declare_streams(user_object.outputs, declared.owner)
    if isinstance(user_object, Spout) and not streams:
        class_name = type(user_object).__name__
        fix = f'name the fields of its tuples: {class_name}.outputs = ["field"]'
        raise declared.mistake(f"{declared.owner} declares no output", fix)
    if isinstance(user_object, FunctionBolt) and streams and DEFAULT_STREAM not in streams:
        what = f"{declared.owner} declares {', '.join(map(repr, streams))} and no default stream"
        raise declared.mistake(
            what, "a function emits to the default stream; for others, derive from BasicBolt"
        )
    return streams


def checked_remembers(declared: Declared, user_object: Spout | AnyBolt) -> tuple[str, ...]:
    """The attributes that are kept between micro-batches."""
    names: object = user_object.remembers
    class_name = type(user_object).__name__
    per_task: object = getattr(user_object, "remembers_per_task", False)
    if not isinstance(per_task, bool):
        what = f"remembers_per_task of {declared.owner} is {shown(per_task)}"
        raise declared.mistake(what, "give True or False; the attributes are named by remembers")
    if isinstance(names, str):
        what = f"remembers of {declared.owner} is {names!r}, a string and not a list"
        raise declared.mistake(what, f"put it in a list: {class_name}.remembers = [{names!r}]")
    if not isinstance(names, (list, tuple)):
        what = f"remembers of {declared.owner} is {shown(names)}, which is no list of attribute names"
        raise declared.mistake(what, f'name the attributes: {class_name}.remembers = ["counts"]')
    checked: list[str] = []
    for name in names:
        what = f"{declared.owner} remembers {name!r:.60}"
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise declared.mistake(
                f"{what}, which is no name of an attribute", 'write "counts" for self.counts'
            )
        if name.startswith("__"):
            fix = f"call it {'_' + name.strip('_')!r}: Python renames what begins with two underscores"
            raise declared.mistake(f"{what}, which Python stores under another name", fix)
        if name in checked:
            raise declared.mistake(f"{what} twice", "name it once")
        if callable(getattr(type(user_object), name, None)) or hasattr(Spout, name) or hasattr(Bolt, name):
            fix = f'name what its methods change, not a method: {class_name}.remembers = ["counts"]'
            raise declared.mistake(f"{what}, which is a method or a part of the contract", fix)
        checked.append(name)
    return tuple(checked)


def checked_latest_by(declared: Declared, user_object: object) -> tuple[str, ...]:
    """The fields of the key whose latest row counts, of a sink that has such a key."""
    names: object = user_object.latest_by if isinstance(user_object, Sink) else None
    if names is None or declared.method != "set_sink":
        return ()
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(isinstance(name, str) and name for name in names)
    ):
        fix = f'name the fields of the key: {type(user_object).__name__}.latest_by = ["id"]; None for no key'
        raise declared.mistake(f"latest_by of {declared.owner} is {shown(names)}", fix)
    return tuple(dict.fromkeys(names))


def checked_tick_secs(declared: Declared, user_object: Spout | AnyBolt | Sink) -> float | None:
    """The bolt's own tick interval, if it has one."""
    secs: object = getattr(user_object, "tick_secs", None)
    class_name = type(user_object).__name__
    if isinstance(user_object, ArrowBolt):
        if secs is not None or hasattr(user_object, "tick"):
            what = f"{declared.owner} is an ArrowBolt and has {'tick' if secs is None else 'tick_secs'}"
            raise declared.mistake(what, "an ArrowBolt is never ticked: derive from BasicBolt or Bolt")
        return None
    if not isinstance(user_object, (Bolt, BasicBolt)) or secs is None:
        return None
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 < secs < math.inf:
        what = f"tick_secs of {declared.owner} is {secs!r:.60}"
        raise declared.mistake(
            what, f"give it seconds, more than 0: {class_name}.tick_secs = 5; None for no ticks"
        )
    if type(user_object).tick in (Bolt.tick, BasicBolt.tick):
        arguments = "self, tup" if isinstance(user_object, Bolt) else "self, tup, collector"
        fix = f"add `def tick({arguments})` to {class_name}, or leave tick_secs out"
        raise declared.mistake(f"{declared.owner} has tick_secs = {secs} and no tick", fix)
    return float(secs)


def _check_keep_alive(declared: Declared, spout: Spout) -> None:
    """Refuse an invalid interval, and an interval without a ``keep_alive`` to call."""
    secs: object = spout.keep_alive_secs
    if secs is None:
        return
    class_name = type(spout).__name__
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not 0 < secs < math.inf:
        what = f"keep_alive_secs of {declared.owner} is {secs!r:.60}"
        fix = f"give it seconds, more than 0: {class_name}.keep_alive_secs = 10; None for never"
        raise declared.mistake(what, fix)
    if getattr(spout.keep_alive, "__func__", None) is Spout.keep_alive:
        fix = f"add `def keep_alive(self, open_messages)` to {class_name}, or leave keep_alive_secs out"
        raise declared.mistake(f"{declared.owner} has keep_alive_secs = {secs} and no keep_alive", fix)


def checked_concurrency(
    declared: Declared, user_object: Spout | AnyBolt | Sink
) -> tuple[int | None, int | None]:
    """How many tuples of a task are executed at once: as coroutines, or on threads."""
    most: object = getattr(user_object, "max_concurrency", None)
    threads: object = getattr(user_object, "threads", None)
    is_function = isinstance(user_object, FunctionBolt)
    written = "@bolt({}=10)" if is_function else f"{type(user_object).__name__}.{{}} = 10"
    if not isinstance(user_object, _WAITING):
        if isinstance(user_object, ArrowBolt) and (most, threads) != (None, None):
            name = "threads" if most is None else "max_concurrency"
            what = f"{declared.owner} is an ArrowBolt and sets {name}"
            raise declared.mistake(what, "it executes whole batches: derive from BasicBolt or Bolt")
        return None, None
    is_async = inspect.iscoroutinefunction(user_object.execute)
    for name, limit in (("max_concurrency", most), ("threads", threads)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise declared.mistake(
                f"{name} of {declared.owner} is {limit!r:.60}",
                f"give a whole number: {written.format(name)}",
            )
    if is_async and threads is not None:
        what = f"{declared.owner} has threads = {threads}, and its execute is async"
        raise declared.mistake(
            what, "write max_concurrency instead; threads are for a plain execute that blocks"
        )
    if not is_async and most is not None:
        what = f"{declared.owner} has max_concurrency = {most}, and its execute is not async"
        raise declared.mistake(
            what, "write `async def execute`; or threads instead, for a client that blocks"
        )
    if is_async:
        return most if isinstance(most, int) else MOST_AT_ONCE, None
    return None, threads if isinstance(threads, int) else None


def _may_be_async(name: str, user_object: object, base: type) -> bool:
    """Whether a hook may be async: ``execute``, and any hook of a bolt whose ``execute`` is async."""
    execute = getattr(user_object, "execute", None)
    return base in _WAITING and (name == "execute" or inspect.iscoroutinefunction(execute))


def _check_hooks(declared: Declared, user_object: object, base: type) -> None:
    """Refuse a hook that cannot be called with the arguments of the contract."""
    for name, contract in inspect.getmembers(base, inspect.isfunction):
        own = getattr(user_object, name)
        if getattr(own, "__func__", None) is contract:
            continue  # not overridden
        what = f"{name} of {declared.owner}"
        method = f"{type(user_object).__name__}.{name}"
        if not callable(own):
            raise declared.mistake(
                f"{what} is {shown(own)}, not a method",
                f"call the attribute otherwise: {name} is a hook",
            )
        if inspect.iscoroutinefunction(own) and not _may_be_async(name, user_object, base):
            fix = f"write {method} without `async`"
            if base in _WAITING:
                fix += ", or write execute as `async def` too"
            raise declared.mistake(f"{what} is async, and is never awaited", fix)
        if inspect.isgeneratorfunction(own) or inspect.isasyncgenfunction(own):
            fix = f"call collector.emit([...]) in {method} instead of yield"
            if base is BasicBolt:
                fix += "; or use a function under @bolt, which may yield"
            raise declared.mistake(f"{what} has a yield, so calling it would run nothing", fix)
        try:
            inspect.signature(own).bind(*list(inspect.signature(contract).parameters)[1:])
        except ValueError:
            continue  # a builtin without a signature
        except TypeError:
            wanted = list(inspect.signature(contract).parameters)
            parameters = ", ".join(inspect.signature(own).parameters)
            what = f"{what} takes ({parameters}) after self, and is called with ({', '.join(wanted[1:])})"
            fix = f"write def {name}({', '.join(wanted)}) in {type(user_object).__name__}"
            raise declared.mistake(what, fix) from None
