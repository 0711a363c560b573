"""A component as a child process: the handshake, messages over its pipes, ``print``, exit codes."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acktree.pystorm import Bolt, Spout

ROOT = Path(__file__).parents[3]
PROGRAM = """
import logging
from acktree.pystorm import Bolt, Spout, TicklessBatchingBolt

class Split(Bolt):
    def process(self, tup):
        print("a debugging line")
        for word in tup.values.line.split():
            self.emit([word], need_task_ids=word == "ask")
        if "object" in tup.values.line:
            self.emit([object()])
        if "raise" in tup.values.line:
            raise ValueError("no such line")

class After(Split):
    def _run(self):
        super()._run()
        raise OSError("after the tuple")

class Own(Split):
    _closed = _take = _leave = _report = _printed = _take_process = _log_handler = None

class Lenient(Split):
    exit_on_exception = False

class Timed(TicklessBatchingBolt):
    secs_between_batches = 0.01
    exit_on_exception = False
    def process_batch(self, key, tups):
        if tups[0].values.line == "raise":
            raise ValueError("bad batch")
        self.emit([len(tups)])
"""
CONTEXT = {"taskid": 1, "componentid": "split", "source->stream->fields": {"lines": {"default": ["line"]}}}


class Child:
    def __init__(self, folder: Path, name: str) -> None:
        (folder / "program.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "acktree.pystorm.run", f"program.{name} --serializer=json"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=folder, text=True, env=environment, **pipes)
        self.said: list[dict[str, object]] = []
        self.send({"conf": {}, "pidDir": str(folder), "context": CONTEXT})
        assert self.read() == {"pid": self.process.pid}
        assert (folder / str(self.process.pid)).exists()

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(message)}\nend\n")
        self.process.stdin.flush()

    def execute(self, name: str, line: str) -> None:
        self.send({"id": name, "comp": "lines", "stream": "default", "task": 2, "tuple": [line]})

    def read(self) -> dict[str, object]:
        assert self.process.stdout is not None
        lines: list[str] = []
        while (line := self.process.stdout.readline()) != "end\n":
            assert line, self.end()
            lines.append(line)
        return json.loads("".join(lines))

    def read_until(self, command: str) -> list[dict[str, object]]:
        """Its messages up to the first of this command, without its log."""
        said: list[dict[str, object]] = []
        while not said or said[-1]["command"] != command:
            said += [message for message in [self.read()] if message["command"] != "log"]
        return said

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def child(tmp_path: Path, request: pytest.FixtureRequest):
    started = Child(tmp_path, getattr(request, "param", "Split"))
    yield started
    started.process.kill()
    started.process.wait()
    for pipe in (started.process.stdin, started.process.stdout, started.process.stderr):
        assert pipe is not None
        pipe.close()


def test_a_child_splits_a_line_and_what_it_prints_does_not_break_its_messages(child):
    child.execute("7", "dog Käfer")
    emit = {"command": "emit", "anchors": ["7"], "need_task_ids": False}
    assert child.read_until("ack") == [
        {**emit, "tuple": ["dog"]},
        {**emit, "tuple": ["Käfer"]},
        {"command": "ack", "id": "7"},
    ]
    code, errors = child.end()
    assert code == 2  # its parent went away
    assert "a debugging line" in errors


def test_a_list_of_task_ids_overtakes_tuples_that_wait(child):
    child.execute("1", "ask")
    child.execute("2", "next")
    child.send([4, 5])
    assert [message.get("id") for message in child.read_until("ack")] == [None, "1"]
    assert [message.get("id") for message in child.read_until("ack")] == [None, "2"]


def test_an_exception_is_reported_fails_its_tuple_and_ends_the_child(child):
    child.execute("1", "raise")
    said = child.read_until("fail")
    assert [message["command"] for message in said] == ["emit", "error", "sync", "fail"]
    assert 'raise ValueError("no such line")' in str(said[1]["msg"])
    assert child.end()[0] == 1


@pytest.mark.parametrize("child", ["Lenient"], indirect=True)
def test_a_value_that_the_format_does_not_have_fails_its_tuple_instead_of_being_lost(child):
    child.execute("1", "object")
    assert child.read_until("fail")[-1] == {"command": "fail", "id": "1"}
    child.execute("2", "goes on")
    assert child.read_until("ack")[-1] == {"command": "ack", "id": "2"}


@pytest.mark.parametrize("child", ["After"], indirect=True)
def test_an_exception_while_no_tuple_is_current_is_reported_too(child):
    child.execute("1", "dog")
    said = child.read_until("sync")
    assert [message["command"] for message in said] == ["emit", "ack", "error", "sync"]
    assert "after the tuple" in str(said[2]["msg"])
    assert child.end()[0] == 1


@pytest.mark.parametrize("child", ["Own"], indirect=True)
def test_a_child_may_have_any_names_of_its_own(child):
    child.execute("1", "dog")
    assert [message["command"] for message in child.read_until("ack")] == ["emit", "ack"]
    assert child.end()[0] == 2


@pytest.mark.parametrize("child", ["Timed"], indirect=True)
def test_a_tickless_bolt_goes_on_after_a_batch_that_raised(child):
    child.execute("1", "raise")
    assert child.read_until("fail")[-1] == {"command": "fail", "id": "1"}
    child.execute("2", "fine")
    assert child.read_until("ack")[-1] == {"command": "ack", "id": "2"}


@pytest.mark.parametrize("child", ["Split"], indirect=True)
def test_a_heartbeat_is_answered_with_a_sync(child):
    child.send({"id": "1", "comp": None, "stream": "__heartbeat", "task": -1, "tuple": []})
    assert child.read_until("sync") == [{"command": "sync"}]


@pytest.mark.parametrize("kind", [Bolt, Spout])
def test_a_component_that_is_collected_leaves_its_streams_open(kind):
    """They may be the stdin and stdout of a program that makes components for a topology or a test."""
    given, taken = (io.TextIOWrapper(io.BytesIO(), encoding="latin-1") for _ in range(2))
    component = kind(given, taken)
    component.log("naïve")
    del component
    gc.collect()
    assert not given.buffer.closed
    taken.write("printed")
    taken.flush()
    text = taken.buffer.getvalue().decode()
    assert json.loads(text.partition("\nend\n")[0])["msg"] == "naïve"
    assert text.endswith("printed")
