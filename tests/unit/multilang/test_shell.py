"""Child processes: framing, hostile children, and spouts in Node and Perl."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import BasicBolt, ConfigError, TopologyBuilder
from acktree.multilang.child import Child, SubprocessError
from acktree.multilang.framing import Frames, FramingError, framed
from acktree.multilang.shell import ShellSpout
from acktree.system.processes import is_alive
from acktree.testing import LocalCluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "multilang"
VALUES = st.none() | st.integers() | st.text() | st.lists(st.text(max_size=3), max_size=3)
MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3) | st.lists(VALUES, max_size=3))
PRINTED = st.lists(st.builds("{}printed {}".format, st.sampled_from(["", "[", "{"]), st.integers(0, 9)))
PID = r"""printf '{"pid": 1}\nend\n'"""
SEEN: Counter[str] = Counter()


def child(script: str, timeout_secs: float = 60, **more: object) -> Child:
    return Child(["sh", "-c", script], "component 'words', task 3", timeout_secs, **more)


@given(MESSAGES, PRINTED, st.lists(st.integers(1, 40), min_size=1))
def test_messages_are_the_same_however_they_are_cut_and_printed_lines_are_no_mistake(
    messages, printed, sizes
):
    frames, received = Frames(), []
    data = b"".join("".join(f"{line}\n" for line in printed).encode() + framed(each) for each in messages)
    while data:
        size = sizes[len(data) % len(sizes)]
        received += frames.feed(data[:size])
        data = data[size:]
    assert [message for message, _ in received] == messages
    assert all(lines == printed for _, lines in received)


def test_a_message_may_have_many_lines_and_its_size_is_bounded():
    (received,) = Frames().feed(json.dumps({"a": [1, 2]}, indent=1).encode() + b"\r\n\nend\r\n")
    assert received.message == {"a": [1, 2]}
    assert [message for message, _ in Frames(20).feed(framed([1, 2]) * 100)] == [[1, 2]] * 100
    for text in (b"x" * 21, b"[\n" * 15):
        with pytest.raises(FramingError, match="more than 20 bytes"):
            list(Frames(20).feed(text))


def test_numbers_of_other_types_are_numbers_and_what_json_has_not_is_refused():
    assert framed([Decimal(2), Decimal("0.5"), np.int64(3), (1, 2)]) == b"[2, 0.5, 3, [1, 2]]\nend\n"
    for value in (b"bytes", float("nan"), {1, 2}, object()):
        with pytest.raises((TypeError, ValueError)):
            framed([value])


HOSTILE = {
    "exits": (
        "echo the reason >&2; exit 3",
        "ended with exit code 3; the last lines of its stderr:\nthe reason",
    ),
    "is killed": ("kill -9 $$", "ended by signal SIGKILL; it wrote nothing to stderr"),
    "is silent": ("sleep 1000", "sent no message for 0.5 s"),
    "is stopped": ("kill -STOP $$", "sent no message for 0.5 s"),
    "writes half a message": (
        """printf '{"pid"'""",
        """ended with exit code 0; unfinished output: '{"pid"'""",
    ),
    "writes without end": ("cat /dev/zero", "more than 16,777,216 bytes without a line 'end'"),
    "writes no JSON": ("echo hello; echo end; sleep 1000", "wrote what is not JSON: 'hello'"),
    "closes its output": ("exec >&-; sleep 1000", "closed its output"),
}


@pytest.mark.parametrize(("script", "text"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_child_is_one_error_and_gone(script, text):
    hostile = child(script, 0.5 if "0.5" in text else 60)
    with pytest.raises(SubprocessError) as caught:
        hostile.receive()
    assert text in caught.value.what
    assert caught.value.where == "component 'words', task 3"
    assert not is_alive(hostile.pid, of_others=False)
    with pytest.raises(SubprocessError, match="child process"):
        hostile.receive()


def test_a_fork_that_keeps_the_pipe_hides_no_death_and_ends_with_the_child():
    forked = child(f"sleep 1000 & echo $! >&2; {PID}; exit 4")
    assert forked.receive() == {"pid": 1}
    with pytest.raises(SubprocessError, match="exit code 4") as caught:
        forked.receive()
    assert caught.value.returncode == 4
    while is_alive(int(caught.value.stderr), of_others=False):
        pass


def test_what_is_printed_and_a_flood_on_stderr_hold_nothing_up():
    printed: list[str] = []
    loud = child(f"yes | head -c 1000000 >&2; echo a debugging line; {PID}; cat", printed=printed.append)
    assert loud.receive() == {"pid": 1}
    assert printed == ["a debugging line"]
    loud.close()
    assert not is_alive(loud.pid, of_others=False)


def test_reading_and_writing_do_not_wait_for_each_other():
    echo = child("cat")
    sent = [[n, "x" * 50_000] for n in range(100)]
    for message in sent:
        echo.write(message)
    assert [echo.receive() for _ in sent] == sent
    echo.close()


class FailFirst(BasicBolt):
    outputs = ["sentence"]

    def execute(self, tup, collector):
        SEEN[tup["sentence"]] += 1
        if "apple" in tup["sentence"] and SEEN[tup["sentence"]] == 1:
            raise ValueError("the first time")
        collector.emit([tup["sentence"]])


def topology_of(spout: ShellSpout):
    builder = TopologyBuilder("sentences")
    builder.set_spout("sentences", spout)
    builder.set_bolt("echo", FailFirst()).shuffle_grouping("sentences")
    return builder.create_topology()


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside the tests")
@pytest.mark.parametrize("program", ["node sentences.js", "perl sentences.pl"])
def test_a_spout_in_another_language_hears_every_verdict(program):
    command = program.split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    SEEN.clear()
    with LocalCluster() as cluster:
        running = cluster.submit(topology_of(ShellSpout(command, ["sentence"], resources=EXAMPLES)))
        cluster.advance(0)
        total = running.stats()["sentences"].total
        assert (total.acked, total.failed, total.emitted) == (4, 1, 5)
        assert ["naïve café"] in cluster.tuples("echo")


def answers(*commands: str, first: str = "") -> str:
    """A spout in sh: its answer to each command, then none."""
    said = "".join(f"m; printf '%s\\nend\\n' {each}; " for each in commands)
    return f'm() {{ while read -r l; do [ "$l" = end ] && return; done; exit 9; }}; m; {first} {PID}; {said}'


SYNC = """'{"command": "sync"}'"""


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("""'{"command": "ack", "id": "7"}'""", "sent the command 'ack'"),
        ("""'{"command": "emit"}'""", "an emit without values"),
        ("""'{"command": "metrics", "name": 3, "params": "x"}'""", "broke the protocol"),
        ("""'{"command": "emit", "tuple": ["a"], "stream": "other"}'""", "does not declare"),
        ("""'{"command": "emit", "tuple": ["a", "b"]}'""", "broke the protocol"),
        ("""'{"command": "emit", "tuple": ["a"], "task": "x"}'""", "broke the protocol"),
    ],
)
def test_a_child_that_breaks_the_protocol_is_ended_and_started_again(said, text, tmp_path, caplog):
    once = f"[ -e done ] || {{ touch done; {answers(SYNC, said)} exit 0; }}; "
    good = f"{answers(SYNC, SYNC)} while m; do printf '%s\\nend\\n' {SYNC}; done"
    spout = ShellSpout(["sh", "-c", once + good], ["sentence"], resources=tmp_path)
    with LocalCluster() as cluster:
        running = cluster.submit(topology_of(spout))
        cluster.advance(5)
        assert text in caplog.text
        assert running.is_running


def test_a_message_id_may_be_any_json_and_comes_back_as_it_was(tmp_path):
    emit = """'{"command": "emit", "tuple": ["a"], "id": [1, {"b": 2}]}\nend\n{"command": "sync"}\nend\n'"""
    rest = f"while read -r l; do echo $l >> got; [ $l != end ] || printf '%s\\nend\\n' {SYNC}; done 2>&-"
    spout = ShellSpout(
        ["sh", "-c", f"{answers(SYNC)} m; printf {emit}; {rest}"], ["sentence"], resources=tmp_path
    )
    with LocalCluster() as cluster:
        cluster.submit(topology_of(spout))
        cluster.advance(0)
        assert '{"command": "ack", "id": [1, {"b": 2}]}' in (tmp_path / "got").read_text()


def test_a_command_that_cannot_run_is_refused(tmp_path):
    for command in ([], "node sentences.js", ["node", 3]):
        with pytest.raises(ConfigError, match="is not a command"):
            ShellSpout(command, ["sentence"])
    with pytest.raises(ConfigError, match="no folder"):
        ShellSpout(["node"], ["sentence"], resources=tmp_path / "none")
    with pytest.raises(SubprocessError, match="cannot be started"):
        Child([str(tmp_path / "none")], "component 'words', task 3", 1)
