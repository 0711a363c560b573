"""What create_topology refuses, one by one, and what it makes of the rest."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from acktree import sink as sinks
from acktree.bolt import BasicBolt
from acktree.core.data import groupings
from acktree.core.spouts.retry import Retry
from acktree.dataframe_spout import DataFrameSpout
from acktree.function_bolt import FunctionBolt, bolt
from acktree.iterable_spout import IterableSpout
from acktree.topology import TopologyBuilder
from tests.unit.topology.drawings import (
    ByLength,
    Fast,
    Join,
    Lines,
    Sink,
    Split,
    changed,
    lines,
    refused,
    with_bolt,
    with_spout,
)

# --- what is made of a drawing without a mistake


def test_a_topology_is_made_of_all_kinds_of_bolts_and_every_grouping():
    builder = lines(2)
    builder.set_bolt("fast", Fast()).shuffle_grouping("lines")
    builder.set_bolt("join", Join(), 3).fields_grouping("lines", ["line"]).all_grouping("fast")
    builder.set_bolt("split", Split()).none_grouping("lines").direct_grouping("lines", stream="errors")
    builder.set_bolt("function", bolt()(lambda tup: None)).local_or_shuffle_grouping("split")
    builder.set_bolt("sink", Sink()).global_grouping("join").partial_key_grouping("split", ["word"])
    builder.set_bolt("custom", Sink()).custom_grouping("lines", ByLength())
    topology = builder.create_topology()
    kinds = {(s.subscriber, s.source, s.stream): type(s.grouping) for s in topology.subscriptions}
    assert kinds == {
        ("fast", "lines", "default"): groupings.Shuffle,
        ("join", "lines", "default"): groupings.Fields,
        ("join", "fast", "default"): groupings.All,
        ("split", "lines", "default"): groupings.NoneGrouping,
        ("split", "lines", "errors"): groupings.Direct,
        ("function", "split", "default"): groupings.LocalOrShuffle,
        ("sink", "join", "default"): groupings.Global,
        ("sink", "split", "default"): groupings.PartialKey,
        ("custom", "lines", "default"): groupings.Custom,
    }
    assert topology.components["join"].inputs[0].grouping == groupings.Fields(("line",))


def test_tasks_are_numbered_from_one_by_id_as_plain_strings_without_the_ackers():
    builder = TopologyBuilder("numbers")
    builder.set_spout("b", Lines(), 2)
    builder.set_bolt("_", Sink()).shuffle_grouping("b")
    builder.set_bolt("Z", Sink(), 3).shuffle_grouping("b")
    builder.set_bolt("a", Sink()).shuffle_grouping("b")
    topology = builder.create_topology()
    assert topology.tasks == {"Z": (1, 2, 3), "_": (4,), "a": (5,), "b": (6, 7)}
    assert list(topology.components) == ["Z", "_", "a", "b"]


def test_a_component_keeps_what_was_said_of_it():
    counting = changed(Split, remembers=["counts"], tick_secs=5, tick=lambda self, tup, collector: None)
    builder = TopologyBuilder("words")
    spout, retry = Lines(), Retry(max_attempts=3)
    builder.set_spout("lines", spout, retry=retry)
    builder.set_bolt("count", counting, parallelism=2).fields_grouping("lines", ["line"])
    topology = builder.create_topology()
    declared, counted = topology.components["lines"], topology.components["count"]
    assert declared.user_object is spout
    assert (declared.kind, declared.retry, list(declared.streams)) == ("spout", retry, ["default", "errors"])
    assert (counted.kind, counted.parallelism, counted.remembers) == ("bolt", 2, ("counts",))
    assert counted.tick_secs == 5
    assert counted.streams["default"].fields == ("word", "length")


def test_components_may_be_written_in_any_order():
    builder = TopologyBuilder("words")
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_spout("lines", Lines())
    assert [b.id for b in builder.create_topology().bolts] == ["split"]


def test_a_topology_does_not_change_when_the_builder_is_used_again():
    builder = with_bolt(Split())
    before = builder.create_topology()
    builder.set_bolt("sink", Sink()).shuffle_grouping("split")
    assert list(before.components) == ["lines", "split"]
    assert list(builder.create_topology().components) == ["lines", "sink", "split"]


def test_a_bolt_may_read_two_streams_of_one_source_and_emit_nothing():
    builder = lines()
    builder.set_bolt("sink", Sink()).shuffle_grouping("lines").shuffle_grouping("lines", "errors")
    assert len(builder.create_topology().subscribers("lines", "errors")) == 1


# --- names


@pytest.mark.parametrize("name", ["", " ", None, 5, "a\nb"], ids=repr)
def test_a_topology_without_a_name_is_refused(name):
    refused(TopologyBuilder(name), "the topology is called", "give it a name")


@pytest.mark.parametrize("wrong", ["", " ", None, 5, "a\nb", "\ud800"], ids=ascii)
def test_an_id_that_cannot_be_printed_is_refused(wrong):
    builder = lines()
    builder.set_bolt(wrong, Split()).shuffle_grouping("lines")
    refused(builder, "a bolt is called", "give it an id")


def test_an_id_of_ours_is_refused():
    builder = TopologyBuilder("words")
    builder.set_spout("__acker", Lines())
    refused(builder, "spout '__acker'", "call it 'acker'")


def test_an_id_with_a_colon_is_refused():
    builder = TopologyBuilder("words")
    builder.set_spout("a:b", Lines())
    refused(builder, "an id with a colon", "call it 'a-b'")


def test_an_id_given_twice_is_refused_and_names_the_other_call():
    builder = with_bolt(Split())
    builder.set_bolt("split", Sink(), parallelism=2)
    text = refused(builder, "bolt 'split' has the id of another component")
    assert "where: set_bolt('split', Sink(...), parallelism=2)" in text
    assert "the other is set_bolt('split', Split(...))" in text


# --- what was given


def test_a_class_instead_of_an_instance_is_refused():
    refused(with_bolt(Split), "is the class Split", "make one: set_bolt('split', Split(), ...)")
    refused(with_spout(Lines), "is the class Lines", "make one: set_spout('lines', Lines(), ...)")


def test_a_spout_given_as_a_bolt_and_a_bolt_given_as_a_spout_are_refused():
    refused(with_bolt(Lines()), "bolt 'split' (Lines) is a spout", "set_spout('split', ...)")
    refused(with_spout(Split()), "spout 'lines' (Split) is a bolt", "set_bolt('lines', ...)")


def test_a_function_without_the_decorator_is_refused():
    def plain(tup):
        return []

    refused(with_bolt(plain), "is a plain function", "put @bolt(outputs=")
    refused(with_spout(plain), "is a plain function", "use IterableSpout")


@pytest.mark.parametrize("wrong", [None, "Split", object(), 5, {}])
def test_what_is_no_component_is_refused(wrong):
    refused(with_bolt(wrong), "which is no bolt", "Bolt, BasicBolt or ArrowBolt")
    refused(with_spout(wrong), "which is no spout", "derived from Spout")


@pytest.mark.parametrize("wrong", [0, -1, 1.0, "2", None, True, Retry(2)], ids=str)
def test_a_parallelism_that_is_no_number_of_tasks_is_refused(wrong):
    refused(with_bolt(Split(), wrong), "bolt 'split' (Split) has parallelism", "at least 1")
    refused(with_spout(Lines(), wrong), "spout 'lines' (Lines) has parallelism", "at least 1")


def test_more_spout_tasks_than_a_root_id_can_name_are_refused():
    refused(with_spout(Lines(), 70_000), "would have task 70000", "lower the parallelism")


def test_a_bolt_without_messages_of_its_own_has_no_retry():
    refused(with_bolt(Split(), retry=Retry(3)), "no messages of its own", "exactly_once=True")


def test_what_cannot_be_exactly_once_is_refused():
    refused(with_bolt(Split(), exactly_once="yes"), "exactly_once of bolt", "give True or False")
    refused(with_bolt(Join(), exactly_once=True), "acks when it likes", "BasicBolt or ArrowBolt")
    builder = lines()
    builder.set_bolt("split", Split(), exactly_once=True).all_grouping("lines")
    refused(builder, "not by a grouping to one task", "one fate for each reader")


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("shuffle_grouping", ()),
        ("local_or_shuffle_grouping", ()),
        ("none_grouping", ()),
        ("global_grouping", ()),
        ("all_grouping", ()),
        ("direct_grouping", ()),
        ("fields_grouping", (["line"],)),
        ("partial_key_grouping", (["line"],)),
        ("custom_grouping", (ByLength(),)),
    ],
)
def test_an_input_of_an_exactly_once_bolt_may_have_no_gate_by_any_grouping(method, argument):
    builder = lines()
    getattr(builder.set_bolt("ask", Split(), exactly_once=True), method)("lines", *argument, gate=False)
    topology = builder.create_topology()
    assert [spout.id for spout in topology.spouts] == ["lines"]
    builder = lines()
    getattr(builder.set_bolt("split", Split()), method)("lines", *argument, gate=False)
    refused(builder, "is not exactly-once", "leave gate out", "gate=False")


def test_what_an_exactly_once_bolt_emits_passes_a_gate_in_front_of_questions_too():
    builder = lines()
    builder.set_bolt("first", Split(), exactly_once=True).shuffle_grouping("lines")
    builder.set_bolt("ask", Split(), exactly_once=True).all_grouping("first", gate=False)
    refused(
        builder,
        "reads 'first' through a gate",
        "fields, partial key or global",
        "all_grouping('first', gate=False)",
    )


def test_a_gate_that_cannot_be_chosen_is_refused():
    builder = lines()
    builder.set_bolt("split", Split()).shuffle_grouping("lines", gate=True)
    refused(builder, "gate=True, and is not exactly-once", "set_bolt(..., exactly_once=True)")
    builder = lines()
    builder.set_bolt("split", Split(), exactly_once=True).shuffle_grouping("lines", gate=0)
    refused(builder, "gate of bolt 'split' (Split) is 0", "give True or False")
    builder = lines()
    builder.set_sink("rows", Rows()).shuffle_grouping("lines", gate=False)
    refused(builder, "a sink writes each tuple once", "leave gate out")


def test_answers_go_to_each_reader_beside_its_gate_if_that_is_not_exactly_once():
    builder = lines()
    builder.set_spout("questions", Lines())
    ask = builder.set_bolt("ask", Split(), exactly_once=True)
    ask.shuffle_grouping("lines").shuffle_grouping("questions", gate=False)
    builder.set_bolt("plain", Split()).shuffle_grouping("ask")
    builder.set_bolt("exact", Split(), exactly_once=True).shuffle_grouping("ask")
    builder.set_bolt("asked", Split(), exactly_once=True).shuffle_grouping("ask", gate=False)
    topology = builder.create_topology()
    sources = {bolt.id: [edge.source for edge in bolt.inputs] for bolt in topology.bolts}
    assert sources == {
        "ask": ["__gate/ask/lines/default", "questions"],
        "asked": ["__gate/asked/ask/default", "ask"],
        "exact": ["__gate/exact/ask/default"],
        "plain": ["__gate/plain/ask/default", "ask"],
    }
    gates = [f"__gate/{reader}/ask/default" for reader in ("asked", "exact", "plain")]
    assert topology.gates("ask", "default") == tuple(gates)
    assert topology.gates_of_answers("ask", "default") == ("__gate/exact/ask/default",)


def test_each_input_and_each_output_of_an_exactly_once_bolt_has_a_gate_of_its_own():
    builder = lines()
    for name in ("a", "a/lines", "a%2Flines"):
        builder.set_bolt(name, Split(), exactly_once=True).shuffle_grouping("lines")
    builder.set_bolt("reader", Split()).shuffle_grouping("a")
    topology = builder.create_topology()
    gates = {spout.id: spout.gated for spout in topology.spouts if spout.gated is not None}
    assert gates == {
        "__gate/a/lines/default": "lines", "__gate/a%2Flines/lines/default": "lines",
        "__gate/a%252Flines/lines/default": "lines", "__gate/reader/a/default": "a",
    }  # fmt: skip
    tasks = [task for component in topology.components.values() for task in component.task_ids]
    assert len(set(tasks)) == len(tasks)
    assert min(topology.tasks["__gate/reader/a/default"]) > max(topology.tasks["reader"])


def test_a_retry_that_is_no_policy_is_refused():
    refused(with_spout(Lines(), retry=5), "retry of spout 'lines' (Lines) is 5", "Retry(max_attempts=5)")
    refused(with_spout(Lines(), retry=Retry), "is Retry", "Retry(max_attempts=5)")


def test_a_data_frame_spout_in_parallel_is_refused():
    frame = SimpleNamespace(columns=["a"], isStreaming=True)
    refused(with_spout(DataFrameSpout(frame), 2), "Spark reads its rows", "leave parallelism out")


def test_redelivers_is_yes_or_no():
    refused(with_spout(changed(Lines, redelivers="queue")), "redelivers of spout", "True: the queue")


@pytest.mark.parametrize("secs", [0, -1, True, "10", float("inf")])
def test_keep_alive_secs_are_seconds(secs):
    refused(with_spout(changed(Lines, keep_alive_secs=secs)), "keep_alive_secs of spout", "None for never")


def test_keep_alive_secs_without_a_keep_alive_are_refused():
    refused(with_spout(changed(Lines, keep_alive_secs=5)), "no keep_alive", "leave keep_alive_secs out")


@pytest.mark.parametrize("most", [-1, True, 1.5, "10"])
def test_a_limit_of_open_messages_is_a_whole_number(most):
    refused(with_spout(Lines(), max_spout_pending=most), "max_spout_pending of spout", "0 for any number")


@pytest.mark.parametrize("secs", [0, -1, True, "10", float("nan")])
def test_a_message_timeout_of_a_spouts_own_is_seconds(secs):
    refused(with_spout(Lines(), message_timeout_secs=secs), "message_timeout_secs of spout", "more than 0")


# --- outputs


def test_a_spout_without_output_is_refused():
    refused(with_spout(changed(Lines, outputs=[])), "declares no output", 'Lines.outputs = ["field"]')


def test_outputs_that_are_wrong_are_refused_with_the_component_named():
    refused(with_bolt(changed(Split, outputs="word")), "`outputs` of bolt 'split' (Split)")


def test_a_function_that_declares_no_default_stream_is_refused():
    refused(with_bolt(FunctionBolt(lambda tup: None, {"late": ["x"]})), "no default stream", "BasicBolt")


# --- hooks


@pytest.mark.parametrize(
    ("base", "hook"),
    [
        (Split, {"execute": lambda self, tup: None}),
        (Split, {"prepare": lambda self, config, context, collector: None}),
        (Split, {"tick": lambda self, tup: None}),
        (Split, {"cleanup": lambda self, now: None}),
        (Join, {"execute": lambda self, tup, collector: None}),
        (Join, {"prepare": lambda self, config, context: None}),
        (Join, {"tick": lambda self: None}),
        (Fast, {"execute_batch": lambda self, batch: None}),
    ],
)
def test_a_hook_that_would_be_called_with_other_arguments_is_refused(base, hook):
    (name,) = hook
    refused(with_bolt(changed(base, **hook)), f"{name} of bolt 'split'", f"write def {name}(self")


def test_a_spouts_hook_that_would_be_called_with_other_arguments_is_refused():
    wrong = changed(Lines, fail=lambda self, message_id: None)
    refused(with_spout(wrong), "fail of spout 'lines'", "def fail(self, message_id, failure)")


def test_a_hook_may_take_what_comes_or_more_with_defaults():
    flexible = changed(Split, execute=lambda self, *args: None, prepare=lambda self, c, t, extra=1: None)
    with_bolt(flexible).create_topology()


def test_a_hook_that_yields_is_refused_for_it_would_run_nothing():
    def execute(self, tup, collector):
        yield ["word"]

    refused(with_bolt(changed(Split, execute=execute)), "has a yield", "collector.emit", "@bolt")


def test_a_spout_that_yields_is_not_sent_to_a_bolts_decorator():
    def next_tuple(self):
        yield ["line"]

    text = refused(with_spout(changed(Lines, next_tuple=next_tuple)), "has a yield", "collector.emit")
    assert "@bolt" not in text


def test_a_hook_without_a_signature_is_accepted():
    with_bolt(holding(Split, cleanup=iter)).create_topology()


def test_an_async_hook_is_refused():
    async def next_tuple(self):
        pass

    refused(with_spout(changed(Lines, next_tuple=next_tuple)), "is never awaited", "without `async`")


def test_an_attribute_in_the_place_of_a_hook_is_refused():
    refused(with_bolt(changed(Split, cleanup=True)), "cleanup of bolt", "is True, not a method")


# --- memory and ticks


@pytest.mark.parametrize(
    ("remembers", "says"),
    [
        ("counts", "remembers = ['counts']"),
        (5, "no list of attribute names"),
        ({"counts"}, "no list of attribute names"),
        (["my counts"], "no name of an attribute"),
        ([5], "no name of an attribute"),
        (["class"], "no name of an attribute"),
        (["__counts"], "call it '_counts'"),
        (["counts", "counts"], "twice"),
        (["execute"], "a part of the contract"),
        (["outputs"], "a part of the contract"),
        (["helper"], "a part of the contract"),
    ],
)
def test_memory_that_names_no_attribute_is_refused(remembers, says):
    wrong = changed(Split, remembers=remembers, helper=lambda self: None)
    refused(with_bolt(wrong), "bolt 'split' (Split)", says)


def test_a_spouts_memory_is_checked_too():
    refused(with_spout(changed(Lines, remembers="position")), "remembers = ['position']")


@pytest.mark.parametrize("secs", [0, -1, "5", True, float("nan"), float("inf")], ids=repr)
def test_a_tick_interval_that_is_no_time_is_refused(secs):
    wrong = changed(Split, tick_secs=secs, tick=lambda self, tup, collector: None)
    refused(with_bolt(wrong), "tick_secs of bolt 'split'", "more than 0")


@pytest.mark.parametrize("secs", [0, -1, None, "5", True, float("nan"), float("inf")], ids=repr)
def test_an_execute_timeout_that_is_no_time_is_refused_with_the_call_that_set_it(secs):
    builder = lines()
    builder.set_bolt("split", Split()).set_execute_timeout_secs(secs).shuffle_grouping("lines")
    refused(
        builder,
        "execute timeout of bolt 'split' (Split)",
        "more than 0",
        f".set_execute_timeout_secs({secs!r})",
    )


def test_a_bolt_has_the_last_execute_timeout_that_was_set_and_none_unless_one_was():
    builder = lines()
    builder.set_bolt("a", Split()).shuffle_grouping("lines").set_execute_timeout_secs(9)
    twice = builder.set_bolt("b", Fast()).set_execute_timeout_secs(9).shuffle_grouping("lines")
    twice.set_execute_timeout_secs(0.5)
    builder.set_bolt("c", Split()).shuffle_grouping("lines")
    components = builder.create_topology().components
    assert [components[name].execute_timeout_secs for name in "abc"] == [9, 0.5, None]


def test_ticks_without_a_tick_are_refused():
    refused(with_bolt(changed(Split, tick_secs=5)), "no tick", "def tick(self, tup, collector)")
    refused(with_bolt(changed(Join, tick_secs=5)), "no tick", "def tick(self, tup)`")


def test_a_tick_without_ticks_is_left_to_the_config():
    with_bolt(changed(Split, tick=lambda self, tup, collector: None)).create_topology()


def test_an_arrow_bolt_that_waits_for_ticks_is_refused():
    refused(with_bolt(changed(Fast, tick_secs=5)), "has tick_secs", "never ticked")
    refused(with_bolt(changed(Fast, tick=lambda self, tup: None)), "has tick", "never ticked")


# --- how it travels


def holding(base, **attributes):
    user_object = base()
    vars(user_object).update(attributes)
    return user_object


def test_a_bolt_that_cannot_be_pickled_is_refused_and_the_attribute_named():
    wrong = holding(Split, table={}, lock=threading.Lock())
    refused(with_bolt(wrong), "cannot be pickled because of its attribute 'lock' (lock)", "in prepare()")


def test_a_function_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()

    @bolt()
    def locked(tup):
        with lock:
            pass

    refused(with_bolt(locked), "its attribute 'function'", "make it inside the function")


def test_an_object_that_refuses_by_itself_is_refused_in_one_line():
    def refuse(self):
        raise RuntimeError("no\nway " + "x" * 999)

    refused(with_bolt(changed(Split, __reduce__=refuse)), "(Split) cannot be pickled: no", "in prepare()")


def test_a_spout_that_cannot_be_copied_is_refused_and_the_attribute_named():
    refused(with_spout(holding(Lines, lock=threading.Lock())), "cannot be copied", "'lock'", "in open()")


def test_a_spout_need_not_be_pickled_and_a_data_frame_spout_not_even_copied():
    frame = SimpleNamespace(columns=["a"], isStreaming=True, jvm=threading.Lock())
    with_spout(DataFrameSpout(frame)).create_topology()
    with_spout(holding(Lines, module=threading), 2)


def test_a_custom_grouping_that_cannot_be_pickled_is_refused():
    builder = lines()
    grouping = holding(ByLength, lock=threading.Lock())
    builder.set_bolt("split", Split()).custom_grouping("lines", grouping)
    text = refused(builder, "the custom grouping of bolt 'split' cannot be pickled", "'lock'")
    assert ".custom_grouping('lines', ByLength(...))" in text


def test_the_ready_made_spout_passes():
    with_spout(IterableSpout(range(3), outputs=["n"]), 2).create_topology()


class Rows(sinks.Sink):
    """A sink that writes nothing."""

    def open(self, config, context): ...

    def last_mark(self): ...

    def write(self, batch, mark): ...


def test_what_is_not_a_sink_and_a_sink_as_a_bolt_are_refused():
    def with_sink(sink, **kwargs):
        builder = lines()
        declarer = builder.set_sink("rows", sink, **kwargs).shuffle_grouping("lines")
        return builder, declarer

    refused(with_sink(Split())[0], "sink 'rows' (Split) is not a Sink", "with set_bolt('rows', ...)")
    refused(with_sink(Rows)[0], "is the class Rows")
    refused(with_bolt(Rows()), "bolt 'split' (Rows) is a sink", "set_sink('split', ...)")
    refused(with_sink(Rows(), retry=5)[0], "retry of sink 'rows' (Rows) is 5")
    builder, declarer = with_sink(Rows())
    declarer.set_execute_timeout_secs(5)
    refused(builder, "has an execute timeout", "timeout of the sink's client")
    builder, declarer = with_sink(Rows())
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    declarer.shuffle_grouping("split")
    refused(builder, "streams with other fields", "a sink of its own")


class AnySink(Join, Rows):
    """A sink that may be a bolt too, as those of the connectors."""


def test_a_sink_in_set_bolt_that_wants_what_only_set_sink_has_is_told_of_set_sink():
    fix = "add it with set_sink('split', ...), which writes each row once"
    refused(with_bolt(AnySink(), exactly_once=True), "acks when it likes", fix)
    refused(with_bolt(AnySink(), retry=Retry(3)), "no messages of its own", "or add it with set_sink('split'")


def test_a_description_says_what_each_component_promises():
    builder = lines()
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("once", Split(), exactly_once=True, retry=Retry(2)).shuffle_grouping("split")
    builder.set_bolt("again", Remembers()).shuffle_grouping("once")
    builder.set_sink("rows", Rows()).shuffle_grouping("once")
    described = builder.create_topology().describe(1)
    text = str(described)
    assert (
        "gate __gate/once/split/default, task 7, retries up to 2 attempts\n      <- split once ACKED" in text
    )
    assert "bolt once (Split), task 3, exactly once" in text
    assert "it may remember a tuple twice, add exactly_once=True" in text
    assert "bolt rows (Rows), task 4, exactly once" in text
    assert described.mermaid().count('-.->|"once ACKED"|') == 3
    plain = lines()
    plain.set_bolt("split", Split()).shuffle_grouping("lines")
    assert "once" not in str(plain.create_topology().describe(1))


class Remembers(BasicBolt):
    """A bolt with memory."""

    remembers = ["n"]
    n = 0

    def execute(self, tup, collector): ...
