"""Labels and keys: what people call a message, such as ``order-17``, and what its source calls it.

Rules of this file
------------------
1. A message with a label or a key has a :class:`Labelled` in the place of its id, from the collector to its
   verdict. So the inbox keeps both where it keeps the id, and a queue that delivers a message again gives
   both again. A message without them has none of this, and costs nothing.
2. User code is given ids alone: :func:`id_of`.
3. A label is one printable line of at most ``MOST_LABEL`` characters, whatever its queue has sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from acktree.errors import MisuseError
from acktree.texts import MOST_REASON, bounded, kept_label


class HasLabel:
    """An id of ours, with the label of its message; "" for none."""

    __slots__ = ()
    label: str


@dataclass(frozen=True)
class Labelled(HasLabel):
    """A message id as the spout gave it, with the label of its message, and the digest of its key."""

    message_id: object
    label: str
    key: bytes = b""

    def __reduce__(self) -> tuple[type[Labelled], tuple[object, ...]]:
        """What the inbox keeps of it: no attribute's name."""
        return Labelled, (self.message_id, self.label, *([self.key] if self.key else []))


def id_of(message_id: object) -> object:
    """The message id as the spout gave it."""
    return message_id.message_id if isinstance(message_id, Labelled) else message_id


def shown_id(message_id: object) -> str:
    """The bounded ``repr`` of the message id that the spout gave. Never raises: it is user code."""
    own_id = id_of(message_id)
    try:
        return bounded(repr(own_id), MOST_REASON)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # user code
        return f"<{type(own_id).__name__}, whose repr raises {type(error).__name__}>"


def label_of(message_id: object) -> str | None:
    """The label of a message; None for none."""
    return message_id.label or None if isinstance(message_id, HasLabel) else None


def checked_label(label: object, where: str) -> str:
    """A label as it is kept: see ``kept_label``.

    Raises:
        MisuseError: It is no text.
    """
    if not isinstance(label, str):
        raise MisuseError(
            f"the label {shown_id(label):.60} is {type(label).__name__}, and no text",
            where,
            "give str(...) of it",
        )
    return kept_label(label)
