"""From what a spout task gives up to a letter, and from a letter back to a message."""

from __future__ import annotations

from typing import Final

from acktree.core.values import batch_from_bytes, batch_to_bytes
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import ProtocolError
from acktree.tasks.retries import LastWill, RedrivenLetter
from acktree.topology.model import Topology

_TARGET: Final = b"acktree.target"
"""Beside the schema of a payload that was emitted directly: the task it was for."""


def letter_of(will: LastWill, topology: Topology, letter_id: int | None = None) -> DeadLetter:
    """The dead letter of a message that was given up."""
    failure, place, values = will.failure, will.attempt, will.values
    if will.target is not None:
        metadata = {**(values.schema.metadata or {}), _TARGET: str(will.target).encode()}
        values = values.replace_schema_metadata(metadata)
    return DeadLetter(
        id=letter_id,
        topology=topology.name,
        spout=will.component,
        task_id=will.task,
        stream=place.stream,
        root=will.root,
        message_id_repr=repr(place.message_id),
        fields=topology.components[will.component].streams[place.stream].fields,
        payload=batch_to_bytes(values),
        reason=failure.reason,
        kind=failure.kind,
        cause=failure.cause,
        component=failure.component,
        exception_type=failure.exception_types[0] if failure.exception_types else None,
        traceback=failure.traceback,
        attempts=place.attempt,
        first_emitted_ms=place.first_emitted_ms,
        dead_ms=will.dead_ms,
    )


def redriven_letter(letter: DeadLetter) -> RedrivenLetter:
    """What the spout task that gave it up needs to try it again. The letter must be stored."""
    if letter.id is None:
        what = f"the letter of message {letter.message_id_repr} was not stored, and cannot be tried again"
        raise ProtocolError(what, "dead_letters/wills.py", "this is a bug in acktree: please report it")
    values = batch_from_bytes(letter.payload)
    metadata = dict(values.schema.metadata or {})
    target = metadata.pop(_TARGET, None)
    if target is None:
        return RedrivenLetter(letter.id, letter.stream, values)
    values = values.replace_schema_metadata(metadata or None)
    return RedrivenLetter(letter.id, letter.stream, values, int(target))
