"""Mistakes of a topology class: acktree's three parts, with the Python types that streamparse raises."""

from __future__ import annotations

from acktree import TopologyError

__all__ = ["SpecKeyError", "SpecTypeError", "SpecValueError"]


class SpecTypeError(TopologyError, TypeError):
    """A value has the wrong type."""


class SpecValueError(TopologyError, ValueError):
    """A value is out of range, missing, or does not fit the others."""


class SpecKeyError(TopologyError, KeyError):
    """A component or stream that is named does not exist."""
