"""An exception from outside may be raised between any two steps of the engine, and nothing shifts by it."""

from __future__ import annotations

from collections import Counter

import pytest

from acktree.core.data.fields import StreamDeclaration
from acktree.core.state.key_value_state import KeyValueState
from acktree.logs import log_lines
from acktree.tasks.bolts.outputs.outlets import Outlet, Unfit
from tests.chaos.faults import RAISED, Interrupter, LateError, Rig, SpoutRig, breaches, run_faults


@pytest.fixture(autouse=True)
def place():
    """Log lines of later tests have no place: an exception may come before a block has reset it."""
    before = log_lines._here.get()
    yield
    log_lines._here.set(before)


STEPS = 29, 5, 1
"""The step between the opcodes that are tried: in `make test`, in `.ci/run`, and all."""
PROGRAM = {
    "a": [("emit", -1, 1), ("other", -1, 2), ("emit", -1, 3), ("join", -1, 4), ("ack", -1, 0)],
    "b": [
        ("direct", -1, 6),
        ("ack", 0, 0),
        ("emit", -1, 7),
        ("fail", 0, 0),
        ("reset", -1, 0),
        ("ack", -1, 0),
    ],
}
MESSAGES = [
    *[("default", 1), ("default-plain", 2), ("direct", 3), ("default", 4), ("default-batch", 5)],
    *[("other", 6), ("default", 7), ("default-large", 8), ("direct-plain", 9)],
]


@pytest.mark.slow
@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.parametrize("kind", ["hand", "basic", "arrow"])
def test_an_exception_at_any_opcode_of_a_collector_shifts_nothing(kind, catches, sized):
    rig, found = Rig(kind, keys=3), Counter()
    rig.traces_save = False
    interrupter, at = Interrupter(1), 1
    while at == 1 or interrupter.has_raised:
        interrupter = Interrupter(at, RAISED[at % len(RAISED)])
        rig.try_one(PROGRAM, interrupter, found, catches=catches)
        assert not breaches(found), (at, breaches(found))
        at += sized(*STEPS)
    assert at > 100


@pytest.mark.slow
@pytest.mark.parametrize("is_tracking", [True, False])
def test_an_exception_at_any_opcode_of_a_spouts_collector_shifts_nothing(is_tracking, sized):
    rig, found = SpoutRig(is_tracking=is_tracking), Counter()
    interrupter, at = Interrupter(1), 1
    while at == 1 or interrupter.has_raised:
        interrupter = Interrupter(at, RAISED[at % len(RAISED)])
        rig.try_one(MESSAGES, interrupter, found)
        assert not breaches(found), (at, breaches(found))
        at += sized(*STEPS)
    assert at > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hand", "basic", "arrow", "spout"])
def test_programs_that_are_drawn_and_their_saves_are_interrupted_and_agree_with_the_model(kind, thorough):
    count = 150 if thorough else 50
    runs, found = run_faults(count, 7, points=30, kinds=(kind,))
    assert runs[kind] >= count
    assert breaches(found) == {}


class _Store:
    """A store of buckets in a dict."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.get = self.blobs.get
        self.put = self.blobs.__setitem__
        self.delete = self.blobs.__delitem__


def test_a_state_that_is_interrupted_at_any_opcode_of_a_read_has_every_key_and_its_length():
    import pickle  # noqa: PLC0415  # what a task binds a state with

    store = _Store()
    saved = KeyValueState({key: key for key in range(600)})
    saved.bind(store, pickle.dumps, pickle.loads)
    saved.save()
    at = 0
    while True:
        at += 1
        state: KeyValueState[int, int] = KeyValueState()
        state.bind(store, pickle.dumps, pickle.loads)
        interrupter = Interrupter(at)
        try:
            with interrupter:
                state.get(7)
        except LateError:
            pass
        state[8] = -8
        del state[9]
        assert (state.get(7), state[8], state.get(9), len(state)) == (7, -8, None, 599)
        assert dict(state) == {key: key for key in range(600) if key != 9} | {8: -8}
        if not interrupter.has_raised:
            break
    assert at > 50


def test_what_was_emitted_fails_where_it_is_not_known_any_more_which_values_belong_together():
    outlet = Outlet(StreamDeclaration("default", ("a", "b")), "it")
    outlet.write([1, 2], 0)
    outlet.cells.append("left by an interrupted emit that was interrupted while it took this back")
    outlet.write([3, 4], 1)
    unfit: list[Unfit] = []
    assert outlet.emissions(unfit) == []
    assert [each.parent for each in unfit] == [0, 1]
    assert "interrupted again" in str(unfit[0].error)
