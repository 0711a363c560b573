"""Converts a given-up record to a dead letter, and a dead letter to a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from acktree.core.data.values import batch_from_bytes, batch_to_bytes
from acktree.core.tracking.origins import Origins
from acktree.dead_letters.letter import DeadLetter
from acktree.errors import MisuseError, ProtocolError
from acktree.tasks.spouts.keys.labels import label_of, shown_id
from acktree.tasks.spouts.retries import GivenUpRecord, RedrivenLetter
from acktree.topology.model import Topology

_TARGET: Final = b"acktree.target"
"""Metadata key in the schema of a payload that was emitted with ``emit_direct``: the target task."""


def letter_of(
    record: GivenUpRecord, topology: Topology, letter_id: int | None = None, origins: Origins = ()
) -> DeadLetter:
    """The dead letter of a message that was given up; behind a gate, with its origins."""
    failure, attempt, values = record.failure, record.attempt, record.values
    assert values is not None, "its chunk is read before it is stored"
    if record.target is not None:
        metadata = {**(values.schema.metadata or {}), _TARGET: str(record.target).encode()}
        values = values.replace_schema_metadata(metadata)
    return DeadLetter(
        id=letter_id,
        topology=topology.name,
        spout=record.component,
        task_id=record.task,
        stream=attempt.stream,
        root=record.root,
        message_id_repr=shown_id(attempt.message_id),
        fields=topology.components[record.component].streams[attempt.stream].fields,
        payload=batch_to_bytes(values),
        reason=failure.reason,
        kind=failure.kind,
        cause=failure.cause,
        component=failure.component,
        exception_type=failure.exception_types[0] if failure.exception_types else None,
        traceback=failure.traceback,
        attempts=attempt.attempt,
        first_emitted_ms=attempt.first_emitted_ms,
        dead_ms=record.dead_ms,
        label=label_of(attempt.message_id)
        or next((origin.label for origin in origins if origin.label), None),
        origins=origins,
    )


def refuse_foreign_letters(letters: Sequence[DeadLetter], topology: Topology, *, is_running: bool) -> None:
    """Check, before any letter is sent, that this topology is running and accepts each of them.

    Raises:
        MisuseError: The topology is not running, or a letter does not fit it; names the letter.
    """
    if not is_running:
        raise MisuseError(
            "the topology is not running, so nothing can be sent into it",
            f"redrive() of dead letters, topology {topology.name!r}",
            "order it for the next run: acktree dead-letters redrive CHECKPOINT ID ...",
        )
    for letter in letters:
        spout = topology.components.get(letter.spout)
        stream = spout.streams.get(letter.stream) if spout is not None else None
        if spout is None or letter.task_id not in spout.task_ids or stream is None:
            misfit = "and this topology has no such task"
        elif tuple(stream.fields) != letter.fields:
            misfit = f"which has the fields {list(stream.fields)} now and had {list(letter.fields)}"
        else:
            continue
        raise MisuseError(
            f"dead letter {letter.id} belongs to task {letter.task_id} of spout {letter.spout!r}, stream "
            f"{letter.stream!r}, {misfit}",
            f"redrive() of dead letters, topology {topology.name!r}",
            "redrive it in the topology that gave it up, with its spouts unchanged; no letter was sent",
        )


def redriven_letter(letter: DeadLetter) -> RedrivenLetter:
    """The message that the letter's spout task sends again. The letter must be stored."""
    if letter.id is None:
        what = f"the letter of message {letter.message_id_repr} was not stored, and cannot be tried again"
        raise ProtocolError(what, "dead_letters/conversion.py", "this is a bug in acktree: please report it")
    values = batch_from_bytes(letter.payload)
    metadata = dict(values.schema.metadata or {})
    target = metadata.pop(_TARGET, None)
    if target is not None:
        values = values.replace_schema_metadata(metadata or None)
    task = None if target is None else int(target)
    return RedrivenLetter(
        letter.id, letter.stream, values, target=task, label=letter.label or "", origins=letter.origins
    )
