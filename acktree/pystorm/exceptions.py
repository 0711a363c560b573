"""What components raise of themselves: pystorm's exception, and mistakes with acktree's three parts."""

from __future__ import annotations

from acktree import MisuseError

__all__ = ["ComponentTypeError", "ComponentValueError", "StormWentAwayError", "UnsentMessageError"]


class StormWentAwayError(Exception):
    """The parent's end of the pipe is closed: the component ends with exit code 2."""

    def __init__(self) -> None:
        super().__init__("Got EOF while reading from Storm")


class ComponentTypeError(MisuseError, TypeError):
    """A component was given a value of the wrong type. A TypeError, as pystorm's."""


class ComponentValueError(MisuseError, ValueError):
    """A component was given a value that it cannot have. A ValueError, as pystorm's."""


class UnsentMessageError(MisuseError):
    """A message cannot be written in the serializer's format, so its tuple fails.

    pystorm logs it, and acks the tuple whose emit is lost.
    """
