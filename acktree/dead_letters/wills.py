"""From what a spout task gives up to a letter, and from a letter back to a message."""

from __future__ import annotations

from acktree.core.values import batch_from_bytes
from acktree.dead_letters.letter import DeadLetter
from acktree.tasks.retries import LastWill, RedrivenLetter
from acktree.topology.model import Topology


def letter_of(will: LastWill, topology: Topology, letter_id: int | None = None) -> DeadLetter:
    """The dead letter of a message that was given up."""
    failure, place = will.failure, will.attempt
    return DeadLetter(
        id=letter_id,
        topology=topology.name,
        spout=will.component,
        task_id=will.task,
        stream=place.stream,
        root=will.root,
        message_id_repr=repr(place.message_id),
        fields=topology.components[will.component].streams[place.stream].fields,
        payload=will.payload,
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
    assert letter.id is not None, "only a stored letter can be tried again"
    return RedrivenLetter(letter.id, letter.stream, batch_from_bytes(letter.payload))
