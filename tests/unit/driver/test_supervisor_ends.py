"""A topology has ended when every message has its verdict, and not because a spout is broken."""

from __future__ import annotations

from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from acktree.driver.supervisor import Supervisor
from acktree.errors import SpoutError


def thread(*, gated: str | None = None, has_ended: bool = True, broken: SpoutError | None = None) -> Any:
    return SimpleNamespace(
        task=SimpleNamespace(component=SimpleNamespace(gated=gated)), has_ended=has_ended, broken=broken
    )


def ended(*threads: Any, is_idle: bool = True) -> tuple[bool, int]:
    """Whether the supervisor of these spouts sees an end, and how often it marked the checkpoint."""
    marks: list[None] = []
    run = SimpleNamespace(
        name="numbers",
        is_idle=is_idle,
        threads=SimpleNamespace(by_task=dict(enumerate(threads)), redriving=Lock()),
        checkpoint=SimpleNamespace(mark_ended=lambda: marks.append(None)),
    )
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.run = run  # type: ignore[assignment]
    return supervisor._has_ended(), len(marks)


BROKEN = SpoutError("what", "where", "fix")


@pytest.mark.parametrize(
    ("threads", "is_idle", "expected"),
    [
        ([thread(), thread(gated="gate", has_ended=False)], True, (True, 1)),
        ([thread()], False, (False, 0)),
        ([thread(has_ended=False), thread()], True, (False, 0)),
        ([thread(), thread(has_ended=False, broken=BROKEN)], True, (False, 0)),
        ([thread(), thread(gated="gate", has_ended=False, broken=BROKEN)], True, (False, 0)),
        ([], True, (False, 0)),
    ],
)
def test_a_checkpoint_is_marked_only_where_each_spout_has_ended_and_none_is_broken(
    threads, is_idle, expected
) -> None:
    """A broken spout, or the host of a gate, is at rest: nothing else tells that its messages are open."""
    assert ended(*threads, is_idle=is_idle) == expected
