"""Levels of loggers that are set while a topology runs, in one process, and taken back later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from acktree.errors import ConfigError

FILE: Final = "log-levels.json"
"""In the checkpoint: name -> level, for workers. Written by the driver."""
_LEVELS: Final[Mapping[str, int]] = {
    "ALL": 1,
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 50,
}
"""Storm's levels and Python's."""


def level_number(level: str) -> int:
    """Python's number of a level. ConfigError for an unknown one.

    >>> level_number("warn"), level_number("DEBUG")
    (30, 10)
    """
    number = _LEVELS.get(level.upper())
    if number is None:
        known = ", ".join(_LEVELS)
        raise ConfigError(f"there is no log level {level!r:.40}", "set-log-level", f"one of {known}")
    return number


class LevelSetter:
    """Sets levels in this process; a logger that is not named any more has its old level again."""

    def __init__(self) -> None:
        """Set nothing yet."""
        self._before: dict[str, int] = {}

    def apply(self, levels: Mapping[str, str]) -> None:
        """Let these loggers, and no others, have these levels.

        Args:
            levels: Name -> level; ``ROOT`` is the root logger.
        """
        for name, level in levels.items():
            changed = _logger(name)
            self._before.setdefault(name, changed.level)
            changed.setLevel(level_number(level))
        for name in self._before.keys() - levels.keys():
            _logger(name).setLevel(self._before.pop(name))

    def before(self, name: str) -> str:
        """The name of the level that a logger has once its own is taken back."""
        return logging.getLevelName(self._before.get(name, _logger(name).level))


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name in {"", "ROOT"} else name)
