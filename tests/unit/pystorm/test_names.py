"""The names of a program's own: any that pystorm's classes do not have."""

from __future__ import annotations

import io

import pytest

from acktree import ConfigError, pystorm, streamparse
from acktree.pystorm.hosted import Calls
from acktree.streamparse.testing import run_bolt
from tests.unit.pystorm.one_task import Checkpoint

COMPONENT = {
    "_exit", "_handle_run_exception", "_run", "_setup_component", "emit", "exit_on_exception", "initialize",
    "is_heartbeat", "log", "raise_exception", "read_command", "read_handshake", "read_message",
    "read_task_ids", "report_metric", "run", "send_message",
    "_pending_commands", "_pending_task_ids", "_reader_lock", "_writer_lock", "component_name", "context",
    "debug", "logger", "pid", "serializer", "storm_conf", "task_id", "topology_name",
}  # fmt: skip
BOLT = COMPONENT | {
    "_current_tups", "_source_tuple_types", "ack", "auto_ack", "auto_anchor", "auto_fail", "fail", "is_tick",
    "process", "process_tick", "read_tuple",
}  # fmt: skip
BATCHING = BOLT | {
    "_batches", "_current_key", "_tick_counter", "group_key", "process_batch", "process_batches",
    "ticks_between_batches",
}  # fmt: skip
TICKLESS = BATCHING | {
    "_batch_entry", "_batch_entry_run", "_batch_lock", "_batcher", "_handle_worker_exception", "exc_info",
    "secs_between_batches",
}  # fmt: skip
SPOUT = COMPONENT | {"ack", "activate", "deactivate", "fail", "next_tuple"}
NAMES = {
    "Component": COMPONENT,
    "Bolt": BOLT,
    "BatchingBolt": BATCHING,
    "TicklessBatchingBolt": TICKLESS,
    "Spout": SPOUT,
    "ReliableSpout": SPOUT | {"failed_tuples", "max_fails", "unacked_tuples"},
}
"""What pystorm 3.1.4 has: ``dir()`` of its classes, and the attributes of their objects."""
DOCUMENTED = {"remembers", "tuples_between_batches"}
"""Ours that a program may use: ``docs/from-streamparse.md`` names them."""
OF_SPECS = {"config", "outputs", "par", "spec"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("room", [pystorm, streamparse])
def test_a_class_has_pystorms_names_and_no_others_that_a_program_could_use(name, room):
    if (room, name) == (streamparse, "Component"):
        room = streamparse.storm
    kind = getattr(room, name)
    made = kind(serializer=Calls()), kind(io.BytesIO(), io.BytesIO())
    names = {each for one in made for each in dir(one)}
    others = names - NAMES[name] - set(dir(type("Empty", (), {})())) - DOCUMENTED
    if room is not pystorm:
        others -= OF_SPECS
    assert {each for each in others if not each.startswith(("_acktree_", "__"))} == set()


OURS = ("_closed", "_close", "_take", "_process_any", "_ack_unclosed", "_report", "_leave", "_take_process",
        "_log_handler", "_printed", "_is_hosted", "_call_fail", "_rdb_signal")  # fmt: skip
"""Names that our classes once had."""


@pytest.mark.parametrize("name", OURS)
def test_a_program_may_have_a_method_or_an_attribute_of_any_other_name(name):
    def process(bolt, tup):
        setattr(bolt, f"{name}_at", tup.values[0])
        bolt.emit(list(tup.values))

    for own in (lambda *_: None, False, [1]):
        kind = type("Own", (streamparse.Bolt,), {"outputs": ["word"], "process": process, name: own})
        ran = run_bolt(kind, [["a"], ["b"]])
        assert (ran.emitted, ran.acked, ran.errors) == ([["a"], ["b"]], [["a"], ["b"]], [])

    def initialize(bolt, conf, context):
        setattr(bolt, name, 5)

    body = {
        "__qualname__": "test.<locals>.Set",
        "outputs": ["word"],
        "process": process,
        "initialize": initialize,
    }
    checkpoint = Checkpoint()
    run = checkpoint.run(type("Set", (streamparse.Bolt,), body))
    run.batch("a")
    assert run.batch("b", moves=True).attributes[name] == 5
    assert run.acked == [["b"]]


# --- names that the set-up gives ---------------------------------------------------------------------------


class Own(streamparse.Bolt):
    outputs = ["word"]

    def initialize(self, storm_conf, context):
        context.clear()
        self.context = {"seen": []}
        self.debug = self.task_id = self.pid = self.topology_name = 0
        self.logger = self.component_name = None

    def process(self, tup):
        self.context["seen"].append(tup.values[0])
        self.debug += 1
        self.emit([tup.values[0]])


def test_what_a_component_assigns_to_a_name_of_the_set_up_is_data_and_nothing_else_reads_it():
    checkpoint = Checkpoint()
    run = checkpoint.run(Own)
    for word in "abc":
        run.batch(word, moves=word == "b")
        assert (run.acked, run.emitted, run.raised) == ([[word]], [[word]], [])
    assert (run.attributes["context"], run.attributes["debug"]) == ({"seen": ["a", "b", "c"]}, 3)
    assert checkpoint.run(Own).batch("d").attributes["context"] == {"seen": ["a", "b", "c", "d"]}


def test_a_name_of_the_set_up_that_the_component_gives_back_is_the_set_ups_in_each_process():
    class Back(streamparse.Bolt):
        outputs = ["word"]

        def initialize(self, storm_conf, context):
            self.debug = ["initialize"]

        def process(self, tup):
            if tup.values[0] != "idle":
                self.debug = [] if tup.values[0] == "own" else self.storm_conf.get("topology.debug", False)

    run = Checkpoint().run(Back).batch("own")
    assert run.attributes["debug"] == []
    assert run.batch("back", moves=True).attributes["debug"] is False
    assert run.batch("idle", moves=True).attributes["debug"] is False
    assert run.batch("own", moves=True).attributes["debug"] == []


# --- names that acktree documents --------------------------------------------------------------------------


def test_remembers_must_be_a_list_and_a_method_of_that_name_is_the_programs_own():
    class Text(streamparse.Bolt):
        remembers = "counter"

        def process(self, tup):
            pass

    with pytest.raises(ConfigError, match="no list of names") as refused:
        run_bolt(Text, [["a"]])
    assert "remembers = ['counter']" in refused.value.fix

    class Method(streamparse.Bolt):
        outputs = ["n"]

        def initialize(self, storm_conf, context):
            self.n = 0

        def remembers(self):
            return self.n

        def process(self, tup):
            self.n += 1
            self.emit([self.remembers()])

    run = Checkpoint().run(Method).batch("a")
    assert run.batch("b", moves=True).emitted == [[2]]
