"""Topology classes beyond streamparse's own tests: inheritance, mistakes, what can be built."""

from __future__ import annotations

import pytest

from acktree import AcktreeError, CustomGrouping, TopologyError, bolt
from acktree.streamparse import (
    BatchingBolt,
    Bolt,
    Grouping,
    JavaBolt,
    ShellBolt,
    Spout,
    Stream,
    TicklessBatchingBolt,
    Topology,
    load,
)
from acktree.streamparse.thrift import GlobalStreamId
from acktree.testing import FeederSpout


class Words(Spout):
    outputs = ["word"]


class Count(Bolt):
    outputs = ["word", "count"]

    def process(self, tup):
        self.emit([tup.values.word, 1])


class WordCount(Topology):
    words = Words.spec()
    count = Count.spec(inputs={words: Grouping.fields("word")}, par=2)


class Extended(WordCount):
    more = Count.spec(inputs=[WordCount.words])
    last = Count.spec(inputs=[GlobalStreamId("more")])


def described(topology, **more):
    return load(topology, **more).describe().data["components"]


def test_a_topology_inherits_the_specs_of_its_base():
    assert sorted(described(Extended)) == ["count", "last", "more", "words"]
    assert [spec.name for spec in WordCount.specs] == ["words", "count"]


def test_inputs_that_are_given_are_not_changed():
    given = {WordCount.words: Grouping.ALL}
    Count.spec(inputs=given)
    assert given == {WordCount.words: Grouping.ALL}


def test_a_field_may_be_named_by_a_tuple():
    assert Grouping.fields(("word",)) == Grouping.fields(["word"]) == Grouping.fields("word")
    assert repr(Grouping.fields("word")) == "fields(['word'])"
    assert repr(Grouping.LOCAL_OR_SHUFFLE) == "LOCAL_OR_SHUFFLE"


def test_a_python_class_may_have_other_outputs_in_each_place():
    class Twice(Topology):
        words = Words.spec(outputs=["left", "right"])
        count = Count.spec(inputs={words: Grouping.fields("right")}, outputs=[Stream(["x"], name="late")])

    assert Twice.words.outputs["default"].output_fields == ["left", "right"]
    assert list(Twice.count.outputs) == ["late"]


NOBODY = GlobalStreamId("nobody")
MISTAKES = {
    "par=True": (TypeError, lambda: Words.spec(par=True)),
    "par=0": (ValueError, lambda: Words.spec(par=0)),
    "config": (TypeError, lambda: Words.spec(config="{}")),
    "outputs": (TypeError, lambda: Words.spec(outputs=[1])),
    "inputs": (TypeError, lambda: Count.spec(inputs=[1])),
    "grouping": (TypeError, lambda: Count.spec(inputs={WordCount.words: "word"})),
    "no field": (ValueError, Grouping.fields),
    "serialized": (TypeError, lambda: Grouping.custom_serialized("text")),
    "stream": (KeyError, lambda: WordCount.words["wrod"]),
    "write": (TypeError, lambda: WordCount.write("file")),
    "no spout": (ValueError, lambda: type(Topology)("None", (Topology,), {})),
    "component": (KeyError, lambda: type(Topology)("None", (Topology,), {"x": Count.spec(inputs=[NOBODY])})),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_the_type_that_streamparse_raises_and_three_parts(name):
    kind, mistake = MISTAKES[name]
    with pytest.raises(kind) as raised:
        mistake()
    assert isinstance(raised.value, TopologyError)
    assert str(raised.value).count("\n") == 2


# --- what is built -----------------------------------------------------------------------------------------


class Foreign(Topology):
    words = Words.spec()
    java = JavaBolt.spec(full_class_name="com.example.Bolt", args_list=[1], inputs=[words], outputs=["word"])
    perl = ShellBolt.spec(command="perl", script="count.pl", inputs=[words], outputs=["word"])


def test_what_cannot_run_here_is_refused_when_it_is_built_and_may_be_replaced():
    with pytest.raises(TopologyError, match=r"Java class com\.example\.Bolt") as refused:
        load(Foreign)
    assert "replace=" in refused.value.fix
    assert sorted(described(Foreign, replace={"java": copied, "perl": copied})) == ["java", "perl", "words"]


@bolt(outputs=["word"])
def copied(tup):
    yield [tup["word"]]


def test_a_component_to_replace_must_be_there():
    with pytest.raises(TopologyError, match="no component 'wrods'") as refused:
        load(WordCount, replace={"wrods": FeederSpout(["word"])})
    assert refused.value.fix == "did you mean 'words'?"


def test_a_grouping_written_in_java_is_refused_and_one_in_python_is_used():
    class Lowest(CustomGrouping):
        def prepare(self, context, stream, target_task_ids):
            self.task = min(target_task_ids)

        def choose_tasks(self, task_id, values):
            return [self.task]

    class Grouped(Topology):
        words = Words.spec()
        count = Count.spec(inputs={words: Grouping.custom(Lowest())}, par=2)

    class Java(Topology):
        words = Words.spec()
        count = Count.spec(inputs={words: Grouping.custom_object("com.example.Grouping", [1])})

    assert described(Grouped)["count"]
    with pytest.raises(AcktreeError, match="written in Java"):
        load(Java)


def test_the_number_of_tasks_may_depend_on_the_environment():
    class Sized(Topology):
        words = Words.spec(par={"prod": 3, "beta": 1})
        count = Count.spec(inputs=[words])

    assert len(load(Sized, environment="prod").topology.tasks["words"]) == 3
    for environment in (None, "prdo"):
        with pytest.raises(ValueError, match="par of 'words'"):
            load(Sized, environment=environment)


def test_batches_that_no_tick_reaches_are_refused():
    class Batches(BatchingBolt):
        outputs = ["word"]

        def process_batch(self, key, tups):
            pass

    class Timed(TicklessBatchingBolt, Batches):
        outputs = ["word"]

    class Silent(Topology):
        words = Words.spec()
        timed = Timed.spec(inputs=[words])
        batches = Batches.spec(inputs=[words])

    with pytest.raises(TopologyError, match="no tick reaches the BatchingBolt 'batches'"):
        load(Silent)
    assert described(Silent, options={"topology.tick.tuple.freq.secs": 1})


def test_settings_of_storm_that_mean_nothing_here_are_ignored_with_the_reason_and_others_count():
    class Configured(WordCount):
        config = {
            "topology.workers": 2,
            "supervisor.worker.timeout.secs": 600,
            "topology.environment": {"MODE": "test"},
            "virtualenv_flags": "-p python3",
            "my.key": 1,
            "topology.message.timeout.secs": 60,
        }

    loaded = load(Configured, options={"topology.max.spout.pending": 7})
    assert (loaded.config.message_timeout_secs, loaded.config.max_spout_pending) == (60, 7)
    assert loaded.ignored == {
        "topology.workers": "Spark decides how many workers run; "
        "set partitions, or the cores of the SparkSession",
        "topology.environment": "components have the environment of the process that starts the topology; "
        "export the variables there; for executors on other machines set spark.executorEnv.NAME",
        "supervisor.worker.timeout.secs": "it is for a daemon of Storm; leave it out; "
        "Spark is set up in the SparkSession",
    }
    with pytest.raises(AcktreeError, match="message_timeout_secs"):
        load(Configured, options={"topology.message.timeout.secs": "soon"})


def test_limits_and_ticks_of_one_component_are_its_own():
    class Own(Topology):
        words = Words.spec(config={"topology.max.spout.pending": 3, "topology.message.timeout.secs": 9})
        count = Count.spec(inputs=[words], config={"topology.tick.tuple.freq.secs": 2})

    components = load(Own).topology.components
    assert components["words"].max_spout_pending == 3
    assert components["words"].message_timeout_secs == 9
    assert components["count"].tick_secs == 2


def test_a_bolt_that_does_nothing_with_a_tuple_is_refused_with_what_was_meant():
    class Misspelled(Bolt):
        outputs = ["word"]

        def proces(self, tup):
            pass

    class Batchless(BatchingBolt):
        outputs = ["word"]

    class OfItsOwn(BatchingBolt):
        outputs = ["word"]

        def process(self, tup):
            pass

    def topology(kind, **config):
        class Made(Topology):
            words = Words.spec()
            count = kind.spec(inputs=[words], config=config)

        return Made

    with pytest.raises(TopologyError, match=r"class Misspelled has no process\(\)") as refused:
        load(topology(Misspelled))
    assert "did you mean that by 'proces'?" in refused.value.fix
    ticks = {"topology.tick.tuple.freq.secs": 1}
    with pytest.raises(TopologyError, match=r"class Batchless has no process_batch\(\)"):
        load(topology(Batchless, **ticks))
    load(topology(OfItsOwn, **ticks))


class Remembering(Count):
    remembers = ["total"]


class AtOnce(Bolt):
    outputs = ["word"]

    async def process(self, tup):
        raise AssertionError


class InChild(Count):
    config = {"acktree.process": True}


class Kinds(WordCount):
    remembering = Remembering.spec(inputs=[WordCount.words])
    at_once = AtOnce.spec(inputs=[WordCount.words])
    in_child = InChild.spec(inputs=[WordCount.words])
    shell = ShellBolt.spec(command="perl", script="a.pl", inputs=[WordCount.words], outputs=["word"])


def test_a_description_has_the_names_of_the_program_and_none_of_acktrees_own():
    about = described(Kinds)
    assert {name: (each["class"], each["remembers"]) for name, each in about.items()} == {
        "words": ("Words", []),
        "count": ("Count", ["its attributes"]),
        "remembering": ("Remembering", ["total"]),
        "at_once": ("AtOnce", ["its attributes"]),
        "in_child": ("InChild", ["open tuples"]),
        "shell": ("ShellBolt", ["open tuples"]),
    }
    text = str(load(Kinds).describe())
    assert "bolt count (Count), tasks 2-3, remembers its attributes" in text
    assert "_held" not in text
    assert "Hosted" not in text
