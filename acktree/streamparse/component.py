"""The base class of components, under the name of a module that programs import from."""

from acktree.streamparse.storm.component import Component, StormHandler, Tuple

__all__ = ["Component", "StormHandler", "Tuple"]
