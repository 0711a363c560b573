"""The base class of components of a topology."""

from __future__ import annotations

from typing import Any, ClassVar

from acktree import pystorm
from acktree.pystorm import StormHandler, Tuple
from acktree.streamparse.errors import SpecTypeError

__all__ = ["Component", "StormHandler", "Tuple"]


class Component(pystorm.Component):
    """A component, with what a topology says of it unless its spec says otherwise.

    Attributes:
        outputs: Names of fields of the default stream, and ``Stream`` objects.
        par: The number of tasks.
        config: Settings of the component.
        remembers: Names of the attributes that are kept with the checkpoint. None: all that can be pickled.
            Not in streamparse.
    """

    outputs: ClassVar[Any] = None
    par: ClassVar[Any] = 1
    config: ClassVar[Any] = None
    remembers: ClassVar[Any] = None

    @classmethod
    def spec(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG003  # of subclasses
        """What a topology class says of the component. TypeError for a class that is no bolt and no spout."""
        raise SpecTypeError(
            f"{cls.__name__} is neither a bolt nor a spout",
            f"{cls.__name__}.spec()",
            "derive it from Bolt or Spout",
        )
