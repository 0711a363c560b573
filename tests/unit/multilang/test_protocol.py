"""The laws of the multilang protocol, on drawn conversations, beside a model that keeps every id for ever."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.multilang.protocol import (
    Ack,
    BoltProtocol,
    Broken,
    Emit,
    Fail,
    Ignored,
    Log,
    Metric,
    Ready,
    Report,
    SpoutProtocol,
    State,
    Synced,
    Write,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=3,
)
IDS = st.integers(0, 12).map(str) | st.sampled_from(["", "01", "٣", "1e0", "-1", "9" * 40])
COMMANDS = st.sampled_from(["ack", "fail", "emit", "sync", "log", "error", "metrics", "next", "?"])
MESSAGES = JSON | st.fixed_dictionaries(
    {"command": COMMANDS},
    optional={
        "id": IDS | JSON,
        "tuple": st.lists(JSON, max_size=2) | JSON,
        "anchors": st.lists(IDS, max_size=3) | IDS | JSON,
        "task": st.none() | st.integers(0, 3),
        "need_task_ids": st.booleans(),
        "stream": st.text(max_size=3),
        "msg": JSON,
        "level": JSON,
    },
)
EXECUTE = "execute"
HEARTBEAT = "heartbeat"


def ready_bolt(unclosed=None, given_count=0):
    return BoltProtocol({} if unclosed is None else unclosed, given_count, State.READY)


def says(protocol, step):
    if step is EXECUTE:
        return protocol.execute(f"tuple {protocol.given + 1}", "words", "default", 3, ("dog",))
    return protocol.heartbeat() if step is HEARTBEAT else protocol.receive(step)


class Model:
    """What a bolt may say, with every id that it was ever given."""

    def __init__(self):
        self.open, self.closed, self.heartbeats, self.count, self.dead = {}, set(), 0, 0, False

    def says(self, step):
        if self.dead:
            return []
        if step in (EXECUTE, HEARTBEAT):
            self.count += 1
            if step == HEARTBEAT:
                self.heartbeats += 1
                self.closed.add(str(self.count))
            else:
                self.open[str(self.count)] = f"tuple {self.count}"
            return [Write]
        kinds = self.kinds(step)
        self.dead = kinds == [Broken]
        return kinds

    def kinds(self, message):
        command = message.get("command") if isinstance(message, dict) else None
        if command in ("log", "error", "metrics"):
            return [{"log": Log, "error": Report, "metrics": Metric}[command]]
        if command == "emit":
            anchors = message.get("anchors") or []
            anchors = anchors if isinstance(anchors, list) else [anchors]
            are_open = all(isinstance(each, str) and each in self.open for each in anchors)
            return [Emit] if are_open and isinstance(message.get("tuple"), list) else [Broken]
        if command in ("ack", "fail"):
            return [self.close(command, message.get("id"))]
        if command == "sync":
            self.heartbeats, before = max(0, self.heartbeats - 1), self.heartbeats
            return [Synced] if before else []
        return [Ignored] if isinstance(message, dict) and "command" in message else [Broken]

    def close(self, command, name):
        if not isinstance(name, str) or name not in self.open.keys() | self.closed:
            return Broken
        if self.open.pop(name, None) is None:
            return Ignored
        self.closed.add(name)
        return Ack if command == "ack" else Fail


STEPS = st.lists(st.sampled_from([EXECUTE, HEARTBEAT]) | MESSAGES, max_size=10)
FEW = st.integers(1, 4).map(str)
CLOSE = st.fixed_dictionaries({"command": st.sampled_from(["ack", "fail"]), "id": FEW})
ANCHORED = st.fixed_dictionaries(
    {"command": st.just("emit"), "tuple": st.just([1]), "anchors": st.lists(FEW, max_size=2)}
)
SYNC = {"command": "sync"}
USUAL = st.sampled_from([EXECUTE, EXECUTE, HEARTBEAT, SYNC]) | CLOSE | ANCHORED
SENSIBLE = st.lists(USUAL, min_size=4, max_size=20).map(lambda steps: [*[EXECUTE] * 4, *steps])
"""Four tuples, then what is mostly about them: most of these conversations are long."""


@given(SENSIBLE, STEPS)
def test_a_bolt_is_understood_as_by_a_model_that_forgets_no_id(sensible, hostile):
    unclosed: dict[str, str] = {}
    protocol, model = ready_bolt(unclosed), Model()
    for step in [*sensible, *hostile]:
        assert [type(said) for said in says(protocol, step)] == model.says(step)
        assert unclosed == model.open
        assert (protocol.state is State.DEAD) == model.dead


@given(SENSIBLE)
def test_each_tuple_is_acked_or_failed_at_most_once_and_is_open_until_then(steps):
    unclosed: dict[str, str] = {}
    protocol = ready_bolt(unclosed)
    said = [each for step in steps for each in says(protocol, step)]
    written = [
        f"tuple {each.message['id']}" for each in said if isinstance(each, Write) and each.message["comp"]
    ]
    closed = [each.tup for each in said if isinstance(each, Ack | Fail)]
    assert sorted([*closed, *unclosed.values()]) == sorted(written)


@given(STEPS)
def test_a_pipe_and_a_function_call_give_the_same_instructions(steps):
    called, piped = ready_bolt(), ready_bolt()
    for step in steps:
        sent = step if step in (EXECUTE, HEARTBEAT) else json.loads(json.dumps(step))
        assert says(called, step) == says(piped, sent)


@given(st.lists(MESSAGES, max_size=8), STEPS)
def test_a_dead_component_takes_nothing_and_instructs_nothing(before, after):
    for protocol in (ready_bolt(), SpoutProtocol()):
        for message in before:
            protocol.receive(message)
        protocol.end("it ended with exit code 3")
        assert protocol.end("again") == ()
        assert all(protocol.receive(message) == () for message in after)


@given(SENSIBLE, st.integers(0, 40))
def test_a_conversation_goes_on_in_another_process_with_its_open_tuples_and_its_count(steps, at):
    unclosed, moved = {}, {}
    whole, first = ready_bolt(unclosed), ready_bolt(moved)
    for step in steps[:at]:
        says(whole, step)
        says(first, step)
    if whole.state is State.DEAD:
        return
    second = ready_bolt(dict(moved), first.given)
    for step in steps[at:]:
        if step in (HEARTBEAT, SYNC):  # a heartbeat is answered where it was asked
            continue
        assert [*map(str, says(whole, step))] == [*map(str, says(second, step))]


EMIT = {"command": "emit", "tuple": [1]}


@given(st.lists(st.sampled_from(["next", "ack", "fail", EMIT, EMIT, SYNC]) | MESSAGES, max_size=30))
def test_a_spout_is_asked_one_command_at_a_time_and_loses_no_emit(steps):
    protocol = SpoutProtocol()
    protocol.state = State.READY
    emitted, sent = 0, 0
    for step in steps:
        if protocol.state is State.DEAD:
            break
        if isinstance(step, str) and step in ("next", "ack", "fail"):
            if protocol.state is State.WAITING:
                continue
            said = protocol.command(step)
            assert said[0] == Write({"command": step, "id": ""})
        else:
            said = protocol.receive(step)
            is_emit = isinstance(step, dict) and step.get("command") == "emit"
            sent += is_emit and isinstance(step.get("tuple"), list)
        emitted += sum(isinstance(each, Emit) for each in said)
    if protocol.state is State.READY:
        emitted += sum(isinstance(each, Emit) for each in protocol.command("next"))
    if protocol.state is not State.DEAD:
        assert emitted == sent


@pytest.mark.parametrize(
    ("message", "wants"),
    [
        ({"tuple": [1]}, True),
        ({"tuple": [1], "need_task_ids": True, "task": 0}, True),
        ({"tuple": [1], "need_task_ids": None}, True),
        ({"tuple": [1], "need_task_ids": False}, False),
        ({"tuple": [1], "task": 4}, False),
    ],
)
def test_an_emit_is_answered_by_one_list_unless_it_is_direct_or_declines(message, wants):
    (emit,) = ready_bolt().receive({"command": "emit", **message})
    assert emit.wants_tasks is wants


def test_the_set_up_is_answered_with_the_pid_or_the_component_is_dead():
    for answer, expected in (({"pid": 7}, Ready(7)), ({"command": "log"}, Broken), ([1], Broken)):
        protocol = BoltProtocol({})
        assert protocol.begin({"conf": {}}) == (Write({"conf": {}}),)
        (said,) = protocol.receive(answer)
        assert said == expected or isinstance(said, expected)  # type: ignore[arg-type]
        assert (protocol.state is State.DEAD) == isinstance(said, Broken)


def test_the_reason_says_which_id_and_whether_it_was_ever_given():
    protocol = ready_bolt()
    says(protocol, EXECUTE)
    protocol.receive({"command": "ack", "id": "1"})
    (ignored,) = protocol.receive({"command": "fail", "id": "1"})
    assert ignored.text == "fail of id 1, which was acked or failed before"
    (broken,) = protocol.receive({"command": "ack", "id": "2"})
    assert broken.reason == "ack of id '2', which was never given to it"


def test_the_sync_that_pystorm_sends_behind_an_error_answers_no_heartbeat():
    protocol = ready_bolt({})
    error = {
        "command": "error",
        "msg": "Python ValueError raised while processing Tuple Tuple(id='1')\nTrace",
    }
    protocol.heartbeat()
    assert [type(said) for said in protocol.receive(error)] == [Report]
    assert [*protocol.receive(SYNC)] == []
    assert [*protocol.receive(SYNC)] == [Synced()]
    protocol.heartbeat()
    protocol.receive({"command": "error", "msg": "Traceback (most recent call last):"})
    assert [*protocol.receive(SYNC)] == [Synced()]
