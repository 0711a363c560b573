"""Dead letters to test with."""

from __future__ import annotations

from dataclasses import replace

from acktree.core.data.values import batch_to_bytes, encode_rows
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.dead_letters import DeadLetter


class Unreadable:
    """A value whose class cannot be unpickled."""

    def __reduce__(self):
        return explode, ()


def explode():
    raise AssertionError("a dead letter was unpickled that nobody asked for")


def payload_of(*values):
    return batch_to_bytes(encode_rows([f"f{i}" for i in range(len(values))], [values]))


LETTER = DeadLetter(
    id=None,
    topology="flights",
    spout="departures",
    task_id=3,
    stream="default",
    root=-(2**63),
    message_id_repr="17",
    fields=("f0", "f1"),
    payload=payload_of("UA", (1, None)),
    reason="no departure time",
    kind=FailureKind.FAILED,
    cause=FailureCause.EXCEPTION,
    component="parse",
    exception_type="builtins.ValueError",
    traceback="Traceback ...",
    attempts=3,
    first_emitted_ms=1_000,
    dead_ms=2_000,
)


def letter(root, **parts):
    return replace(LETTER, root=root, **parts)
