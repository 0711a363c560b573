"""Levels of loggers that an operator sets: in the driver at once, in workers with their next Spark task.

Workers that see the checkpoint read the file ``log-levels.json`` in it, which belongs to the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any, Final

from acktree.errors import ConfigError, MisuseError
from acktree.logs.log_levels import LevelSetter, level_number
from acktree.logs.loggers import logger
from acktree.ui.known_names import read_order

log = logger("acktree")

_MOST_LOGGERS: Final = 200
_MOST_NAMED: Final = 10
"""How many loggers an error names."""
MOST_SECS: Final = 7 * 24 * 3600.0
"""The longest time for which a level is set."""


@dataclass(frozen=True)
class _Set:
    """A level that was set; ``until`` is in seconds since 1970, None for no end."""

    level: str
    secs: float | None
    until: float | None


class LogLevels:
    """The levels of one run.

    Args:
        write: Stores them where workers read them; None if they read nothing of the driver's.
    """

    def __init__(self, write: Callable[[bytes], None] | None) -> None:
        self._write = write
        self._lock = Lock()
        self._setter = LevelSetter()
        self._set: dict[str, _Set] = {}
        self._timer: Timer | None = None
        self._is_closed = False

    def begin(self) -> None:
        """Take back what an earlier driver that died left to the workers."""
        with self._lock:
            self._store()

    def change(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Set and take back levels.

        Args:
            given: ``set``: name -> {``level``, ``secs`` or None}; ``reset``: names.

        Returns:
            What :meth:`shown` says then.

        Raises:
            ConfigError: A level or a time is none, or a logger of ``reset`` has no level of its own.
                Nothing is changed then.
            MisuseError: The run is over.
        """
        now, read = time.time(), read_order("log-levels", given)
        wanted = {name: _wanted(name, each, now) for name, each in read.get("set", {}).items()}
        reset = read.get("reset", [])
        with self._lock:
            if self._is_closed:
                raise MisuseError(
                    "the topology is stopping", "set-log-level", "set the levels of its next run"
                )
            for name in reset:
                if name not in self._set:
                    raise _not_set(name, self._set)
            changed = {name: each for name, each in self._set.items() if name not in reset} | wanted
            if len(changed) > _MOST_LOGGERS:
                raise ConfigError(
                    f"{len(changed)} loggers would have a level of their own",
                    "set-log-level",
                    f"set at most {_MOST_LOGGERS}; a name stands for all loggers below it",
                )
            self._set = changed
        self._apply()
        return self.shown()

    def shown(self) -> dict[str, Any]:
        """Storm's ``namedLoggerLevels``, and whether workers follow."""
        with self._lock:
            named = {
                name: {
                    "target_level": each.level,
                    "reset_level": self._setter.before(name),
                    "timeout": 0 if each.secs is None else round(each.secs),
                    "timeout_epoch": 0 if each.until is None else round(each.until * 1000),
                }
                for name, each in sorted(self._set.items())
            }
        return {"namedLoggerLevels": named, "workers": self._write is not None}

    def close(self) -> None:
        """The run is over: every logger has its old level."""
        with self._lock:
            self._is_closed, self._set = True, {}
        self._apply()

    def _apply(self) -> None:
        """Drop what is over, set the rest, and wait for the next end."""
        with self._lock:
            now = time.time()
            self._set = {name: each for name, each in self._set.items() if not _is_over(each, now)}
            self._setter.apply({name: each.level for name, each in self._set.items()})
            if self._timer is not None:
                self._timer.cancel()
            ends = [each.until for each in self._set.values() if each.until is not None]
            self._timer = Timer(max(0.0, min(ends) - now), self._apply) if ends else None
            if self._timer is not None:
                self._timer.daemon = True
                self._timer.start()
            self._store()

    def _store(self) -> None:
        """Write the levels that hold. The caller has the lock: the file is as the last order said."""
        if self._write is None:
            return
        try:
            self._write(json.dumps({name: each.level for name, each in self._set.items()}).encode())
        except OSError as error:  # a full disk stops the topology by itself
            log.warning("log levels do not reach the workers: %s", error)


def _not_set(name: str, levels: Collection[str]) -> ConfigError:
    """The error for a logger that is to have its old level, and has no other."""
    names = [*map(repr, sorted(levels)[:_MOST_NAMED])]
    if len(levels) > _MOST_NAMED:
        names.append(f"{len(levels) - _MOST_NAMED} more")
    fix = f"these have one: {', '.join(names)}" if names else "leave it out: no logger has one"
    return ConfigError(f"logger {name!r:.60} has no level of its own", "set-log-level -r", fix)


def _is_over(each: _Set, now: float) -> bool:
    return each.until is not None and each.until <= now


def _wanted(name: str, given: Mapping[str, Any], now: float) -> _Set:
    level, secs = given["level"].upper(), given["secs"]
    level_number(level)
    if not name.isprintable():
        raise ConfigError(f"a logger is called {name!r:.60}", "set-log-level", "name a logger, or ROOT")
    if secs is None:
        return _Set(level, None, None)
    if not 0 < secs <= MOST_SECS:
        raise ConfigError(
            f"a level is set for {secs:g} seconds", f"logger {name!r}", "give more than 0, and a week at most"
        )
    return _Set(level, secs, now + secs)
