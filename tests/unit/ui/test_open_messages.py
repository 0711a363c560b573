"""Where an open message is, as the driver's door, ``acktree open`` and the page's stream say it."""

from __future__ import annotations

import json
import re
import time

import pytest

from acktree import Bolt, Config, Spout, TopologyBuilder
from acktree.cli.main import main
from acktree.ui.client import find
from tests.unit.ui.driver_without_spark import started

MESSAGES = 500
ODD = 321


class Counts(Spout):
    outputs = ["n"]
    redelivers = True

    def open(self, config, context, collector):
        self.collector, self.next = collector, 0

    def next_tuple(self):
        if self.next < MESSAGES:
            self.collector.emit([self.next], message_id=f"message {self.next}", label=f"order-{self.next}")
            self.next += 1


class Pass(Bolt):
    outputs = ["n"]

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        self.collector.emit([tup["n"]], anchors=tup)
        self.collector.ack(tup)


class Keeps(Bolt):
    """Keeps one of many tuples for good, and acks the others."""

    outputs = []
    remembers = ["kept"]

    def prepare(self, config, context, collector):
        self.collector, self.kept = collector, []

    def execute(self, tup):
        if tup["n"] == ODD:
            self.kept.append(tup)
        else:
            self.collector.ack(tup)


class Forgets(Bolt):
    """Neither keeps nor acks one of many tuples."""

    outputs = []

    def prepare(self, config, context, collector):
        self.collector = collector

    def execute(self, tup):
        if tup["n"] != ODD:
            self.collector.ack(tup)


def topology_with(last):
    builder = TopologyBuilder("odd")
    builder.set_spout("source", Counts())
    builder.set_bolt("pass", Pass(), parallelism=2).shuffle_grouping("source")
    builder.set_bolt("last", last, parallelism=4).fields_grouping("pass", ["n"])
    return builder.create_topology()


@pytest.fixture
def run(tmp_path):
    """Start a topology and run until one message alone is open."""
    runs = []

    def begin(last):
        run = started(tmp_path, "odd", Config(max_spout_pending=64), topology_with(last))
        topology = run.__enter__()
        runs.append(run)
        end = time.monotonic() + 60
        while (source := topology.handle.stats()["source"]).total.acked < MESSAGES - 1 or source.open != 1:
            assert time.monotonic() < end
            topology.run_inbox()
            time.sleep(0.01)
        return topology

    yield begin
    for each in runs:
        each.__exit__(None, None, None)


def opened():
    (message,) = find("odd").door.get("open")["open"]
    assert (message["message_id"], message["label"]) == (f"'message {ODD}'", f"order-{ODD}")
    return message


def test_the_task_that_keeps_one_of_many_messages_is_named_and_for_how_long(run, capsys):
    topology = run(Keeps())
    message = opened()
    ((task_id, held),) = [
        (task, each.held) for task, each in topology.handle.stats()["last"].tasks.items() if each.held
    ]
    assert held == 1
    (holder,) = message["held_by"]
    assert (holder["component"], holder["task_id"]) == ("last", task_id)
    assert 0 <= holder["held_secs"] <= message["age_secs"] < 600
    assert message["forgotten_by"] is None
    assert main(["open", "odd", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["open"]
    assert (told["held_by"][0]["component"], told["held_by"][0]["task_id"]) == ("last", task_id)
    assert main(["open", "odd"]) == 0
    assert re.search(rf" order-{ODD} 'message {ODD}'.* last task {task_id} for \d+", capsys.readouterr().out)


def test_the_bolt_that_forgets_one_of_many_messages_is_named(run, capsys):
    run(Forgets())
    message = opened()
    assert (message["held_by"], message["forgotten_by"]) == ([], "last")
    assert main(["open", "odd"]) == 0
    assert "forgotten by last" in capsys.readouterr().out


def test_where_nothing_is_known_nothing_is_named(running, capsys):
    running.fill()  # and no micro-batch runs
    messages = find("numbers").door.get("open")["open"]
    assert len(messages) == 10
    assert all((each["held_by"], each["forgotten_by"]) == ([], None) for each in messages)
    assert main(["open", "numbers"]) == 0
    assert "forgotten" not in capsys.readouterr().out


def test_a_driver_of_an_earlier_release_does_not_say_where_messages_are(running, monkeypatch, capsys):
    running.fill()
    answer = find("numbers").door.get("open")
    for message in answer["open"]:
        del message["held_by"], message["forgotten_by"]
    monkeypatch.setattr("acktree.ui.client.DoorClient.get", lambda *_: answer)
    assert main(["open", "numbers"]) == 0
    assert "10 of" not in capsys.readouterr().out
