"""A file becomes the topology that the same calls of the builder make, or an error with its line."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("yaml")

from acktree import Config, TopologyBuilder, flux
from acktree.cli.main import main
from acktree.flux import FluxError
from acktree.flux.storm_classes import LogInfoBolt
from acktree.testing import LocalCluster, complete_topology
from tests.unit.flux import components

HERE = "tests.unit.flux.components"
WORDS = f"""
name: words
config: {{topology.message.timeout.secs: 7, topology.workers: 2, my.key: 1}}
components:
- {{id: longest, className: "builtins:int", constructorArgs: [6]}}
spouts:
- id: lines
  className: {HERE}.Lines
  factory: of
  factoryArgs: ["a b", "bad a", "longest word"]
  config: {{topology.max.spout.pending: 10}}
bolts:
- {{id: split, className: "{HERE}:Split", constructorArgs: {{longest: {{ref: longest}}}}, parallelism: 2}}
- {{id: measure, className: "{HERE}:measure", numTasks: 3, parallelism: 1}}
- {{id: log, className: org.apache.storm.flux.wrappers.bolts.LogInfoBolt}}
streams:
- {{from: lines, to: split, grouping: {{type: SHUFFLE}}}}
- {{from: split, to: measure, grouping: {{type: FIELDS, args: [word]}}}}
- {{from: split, to: log, grouping: {{type: ALL, streamId: long}}}}
"""


@pytest.fixture
def load(tmp_path):
    def load_text(text, **arguments):
        (tmp_path / "x.yaml").write_text(text)
        return flux.load(tmp_path / "x.yaml", **arguments)

    return load_text


def words_in_python():
    builder = TopologyBuilder("words")
    builder.set_spout("lines", components.lines("a b", "bad a", "longest word"), max_spout_pending=10)
    builder.set_bolt("split", components.Split(6), parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("measure", components.measure, parallelism=3).fields_grouping("split", ["word"])
    builder.set_bolt("log", LogInfoBolt()).all_grouping("split", stream="long")
    return builder.create_topology()


def outcome(topology):
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        cluster.advance(0)
        total = running.stats()["lines"].total
        return (
            sorted(cluster.tuples("measure")), cluster.tuples("split", "long"),
            (total.emitted, total.acked, total.failed, total.timed_out),
        )  # fmt: skip


def test_a_file_has_the_description_and_the_verdicts_of_the_same_topology_in_python(load):
    loaded = load(WORDS)
    assert loaded.describe() == words_in_python().describe()
    assert loaded.topology.spouts[0].max_spout_pending == 10
    assert outcome(loaded.topology) == outcome(words_in_python())
    assert outcome(loaded.topology)[2][1:3] == (2, 1)
    assert loaded.config == Config(message_timeout_secs=7)
    assert loaded.ignored.keys() == {"topology.workers", "my.key"}


def test_the_words_of_storms_own_example_are_counted(load):
    loaded = load("""
name: ${topology.name}
spouts: [{id: spout, className: org.apache.storm.testing.TestWordSpout}]
bolts:
- {id: count, className: org.apache.storm.testing.TestWordCounter, parallelism: 2}
streams:
- from: spout
  to: count
  grouping: {type: CUSTOM, customClass: {className: org.apache.storm.testing.NGrouping, constructorArgs: [1]}}
""", properties={"topology.name": "yaml-topology"})  # fmt: skip
    assert loaded.name == "yaml-topology"
    done = complete_topology(loaded.topology, {"spout": [["mike"], ["mike"], ["golda"]]})
    assert done.tuples("count") == [["mike", 1], ["mike", 2], ["golda", 1]]


def recorder(load, keys):
    """What a bean of the class Recorder becomes."""
    source = f"""
components:
- {{id: one, className: "{HERE}:Recorder", constructorArgs: [1]}}
- id: two
  className: {HERE}.Recorder
{keys}
topologySource: {{className: "{HERE}:Keep", constructorArgs: [{{ref: one}}, {{ref: two}}]}}
"""
    kept = []

    class Keep(components.Source):
        def __init__(self, *given):
            kept.extend(given)
            super().__init__()

    load(source.replace(f"{HERE}:Keep", "java.Keep"), classes={"java.Keep": Keep})
    return kept


def test_the_parts_of_a_bean_are_called_in_their_order(load):
    one, two = recorder(load, """
  factory: of
  factoryArgs: [{reflist: [one]}, {nested: {ref: one}}]
  properties: [{name: size, value: 3}, {name: factor, ref: one}]
  configMethods: [{name: withPair, args: [1, {ref: one}]}, {name: with_pair, args: {first: a, second: b}}]
""")  # fmt: skip
    assert two.args == ("made", [one], {"nested": {"ref": "one"}})
    assert two.calls == [("size", 3), (1, one), ("a", "b")]
    assert two.factor is one


def bolt_of(class_name, keys=""):
    return f"""
name: x
spouts: [{{id: lines, className: "{HERE}:Lines", factory: of}}]
bolts:
- id: b
  className: "{class_name}"
  {keys}
streams: [{{from: lines, to: b, grouping: {{type: SHUFFLE}}}}]
"""


WRONG = {
    "no class": (bolt_of(f"{HERE}:Splitt"), 6, "no class"),
    "no module": (bolt_of("no.such.Thing"), 6, "no module"),
    "a Java class": (bolt_of("com.example.Thing"), 6, "--class com.example.Thing=module:Class"),
    "Kafka": (bolt_of("org.apache.storm.kafka.spout.KafkaSpout"), 6, "acktree.connectors.kafka"),
    "no bolt": (bolt_of(f"{HERE}:Recorder"), 5, "Recorder"),
    "it raises": (bolt_of(f"{HERE}:Raising"), 5, "ValueError: two lines"),
    "arguments": (bolt_of(f"{HERE}:Split", "constructorArgs: [1, 2]"), 7, "Split(longest=99)"),
    "a keyword": (bolt_of(f"{HERE}:Split", "constructorArgs: {longst: 1}"), 7, "longst"),
    "an enum": (bolt_of(f"{HERE}:Painted", "constructorArgs: [REDD]"), 7, "did you mean 'RED'?"),
    "a ref": (bolt_of(f"{HERE}:Split", "constructorArgs: [{ref: linse}]"), 7, "did you mean 'lines'?"),
    "a property": (bolt_of(f"{HERE}:Split", "properties: [{name: longst, value: 1}]"), 7, "longest"),
    "a private property": (bolt_of(f"{HERE}:Split", "properties: [{name: _a, value: 1}]"), 7, "has neither"),
    "a property of both": (bolt_of(f"{HERE}:Split", "properties: [{name: a, value: 1, ref: b}]"), 7, "or"),
    "a method": (bolt_of(f"{HERE}:Split", "configMethods: [{name: __init__}]"), 7, "no method"),
    "a key": (bolt_of(f"{HERE}:Split", "paralelism: 1"), 7, "did you mean 'parallelism'?"),
    "parallelism": (bolt_of(f"{HERE}:Split", "parallelism: 0"), 7, "at least 1"),
    "a number in words": (bolt_of(f"{HERE}:Split", "parallelism: two"), 7, "whole number"),
    "no boolean": (bolt_of(f"{HERE}:Split", "config: {topology.debug: maybe}"), 7, "True or False"),
    "no ticks": (bolt_of(f"{HERE}:measure", "config: {topology.tick.tuple.freq.secs: -1}"), None, ""),
    "two ways to make it": (bolt_of(f"{HERE}:Recorder", "constructorArgs: [1]\n  factory: of"), 8, "both"),
    "no stream to it": (bolt_of(f"{HERE}:Split").partition("streams")[0], 5, "reads no stream"),
    "no source": (bolt_of(f"{HERE}:Split").replace("from: lines", "from: linse"), 8, "did you mean 'lines'?"),
    "no target": (bolt_of(f"{HERE}:Split").replace("to: b", "to: bb"), 8, "no bolt"),
    "no output": (bolt_of(f"{HERE}:Split").replace("type: SHUFFLE", "type: SHUFFLE, streamId: x"), 8, "'x'"),
    "a grouping": (bolt_of(f"{HERE}:Split").replace("SHUFFLE", "SHUFLE"), 8, "did you mean 'SHUFFLE'?"),
    "fields": (bolt_of(f"{HERE}:Split").replace("SHUFFLE", "FIELDS"), 8, "names no fields"),
    "an unknown field": (bolt_of(f"{HERE}:Split").replace("SHUFFLE", "FIELDS, args: [lin]"), 8, "'line'?"),
    "no custom class": (bolt_of(f"{HERE}:Split").replace("SHUFFLE", "CUSTOM"), 8, "customClass"),
    "no name": (bolt_of(f"{HERE}:Split").replace("name: x", ""), 3, "no name"),
    "a setting": ("name: x\nconfig: {topology.message.timeout.secs: soon}\n", 2, "number"),
    "two sources": (bolt_of(f"{HERE}:Split") + "topologySource: {className: x}", 3, "beside spouts"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_mistake_is_one_line_with_the_line_of_the_file(kind, load, tmp_path):
    text, line, words = WRONG[kind]
    with pytest.raises(FluxError) as caught:
        load(text)
    error = caught.value
    assert str(error).isprintable()
    assert words in str(error)
    assert line in (None, error.line), str(error)
    assert error.file == str(tmp_path / "x.yaml")


def test_an_enum_takes_a_name_and_ticks_come_from_the_config(load):
    loaded = load(bolt_of(f"{HERE}:Ticking", "config: {topology.tick.tuple.freq.secs: 2}"))
    assert loaded.topology.bolts[0].tick_secs == 2
    made = []
    painted = bolt_of("java.Painted", "constructorArgs: [RED]")

    def paint(colour: components.Colour):
        made.append(colour)

    class Painted(components.Split):
        def __init__(self, colour: components.Colour):
            super().__init__()
            paint(colour)

    Painted.__init__.__annotations__["colour"] = components.Colour
    load(painted, classes={"java.Painted": Painted})
    assert made == [components.Colour.RED]


@pytest.mark.parametrize("override", [False, True])
def test_an_include_adds_what_is_new_and_replaces_only_if_it_is_told_so(override, load, tmp_path, caplog):
    (tmp_path / "other.yaml").write_text(f"""
name: other
config: {{topology.message.timeout.secs: 9, topology.debug: true}}
bolts:
- {{id: b, className: "{HERE}:Split", parallelism: 5}}
- {{id: c, className: "{HERE}:measure"}}
streams: [{{from: b, to: c, grouping: {{type: SHUFFLE}}}}]
""")
    main_file = bolt_of(f"{HERE}:Split") + "config: {topology.message.timeout.secs: 7}\n"
    loaded = load(main_file + f"includes: [{{file: other.yaml, override: {str(override).lower()}}}]\n")
    assert loaded.name == ("other" if override else "x")
    assert loaded.config == Config(message_timeout_secs=9 if override else 7, debug=True)
    assert {each.id: each.parallelism for each in loaded.topology.bolts} == {
        "b": 5 if override else 1,
        "c": 1,
    }
    assert ("is kept" in caplog.text) is not override


def test_an_include_of_an_included_file_is_warned_about(load, tmp_path, caplog):
    (tmp_path / "a.yaml").write_text("includes: [{file: b.yaml}]\n")
    (tmp_path / "b.yaml").write_text("name: b\n")
    loaded = load(bolt_of(f"{HERE}:Split") + "includes: [{file: a.yaml, resource: true}]\n")
    assert loaded.name == "x"
    assert "a.yaml:1: an include of an included file" in caplog.text


@pytest.mark.parametrize("method", [None, "getTopology", "byConfig", "by_map"])
def test_a_topology_source_makes_the_topology(method, load):
    line = "" if method is None else f", methodName: {method}"
    loaded = load(
        "config: {topology.message.timeout.secs: 7}\n"
        f'topologySource: {{className: "{HERE}:Source", constructorArgs: [b]{line}}}\n'
    )
    assert (loaded.name, loaded.config.message_timeout_secs) == ("made", 7)


def test_a_topology_source_that_makes_none_is_refused(load):
    with pytest.raises(FluxError, match=r"x.yaml:1: none\(\) returns a int"):
        load(f'topologySource: {{className: "{HERE}:Source", methodName: none}}')


def test_worker_hooks_are_in_the_config(load):
    loaded = load(bolt_of(f"{HERE}:Split") + f'workerHooks: [{{className: "{HERE}:Hook"}}]\n')
    assert [type(each) for each in loaded.config.worker_hooks] == [components.Hook]
    with pytest.raises(FluxError, match="worker_hooks"):
        load(bolt_of(f"{HERE}:Split") + f'workerHooks: [{{className: "{HERE}:Split"}}]\n')


def test_a_properties_file_is_read_and_what_has_no_value_is_warned_about(load, tmp_path, caplog):
    (tmp_path / "x.properties").write_text('words = ["a", "b"]\n')
    text = bolt_of(f"{HERE}:Split", "constructorArgs: ['${words[1]} ${none}']")
    bolt = load(text, properties=tmp_path / "x.properties").topology.bolts[0].user_object
    assert bolt.longest == "b ${none}"
    assert "x.yaml:7: ${none} has no value" in caplog.text


def test_importing_flux_imports_no_yaml_and_without_it_the_extra_is_named(tmp_path):
    (tmp_path / "x.yaml").write_text("name: x\n")
    program = f"""
import sys
import textwrap
from acktree import flux
assert not {{"yaml", "pyspark", "pyarrow"}} & sys.modules.keys()
sys.modules["yaml"] = None
try:
    flux.load({str(tmp_path / "x.yaml")!r})
except ModuleNotFoundError as error:
    assert "acktree[flux]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_the_command_checks_a_file(load, tmp_path, capsys):
    file = tmp_path / "x.yaml"
    file.write_text(bolt_of("java.Thing"))
    assert main(["flux", "check", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"acktree: {file}:6: ")
    replaced = ["--class", f"java.Thing={HERE}:Split"]
    for command in (["flux", "check", "--no-detail"], ["run", "--dry-run"]):
        assert main([*command, str(file), *replaced]) == 0
        assert "bolt b (Split)" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["flux", "run", str(file), "--inactive"])
    assert "acktree deactivate" in capsys.readouterr().err


def test_a_shell_component_of_storm_is_a_child_process(load):
    source = f"""
        name: shells
        spouts:
        - {{id: lines, className: {HERE}.Lines, factory: of, factoryArgs: ["a b", "c"]}}
        bolts:
        - id: split
          className: org.apache.storm.flux.wrappers.bolts.FluxShellBolt
          constructorArgs: [["{sys.executable}", "examples/multilang/split.py"]]
          configMethods:
          - {{name: setDefaultStream, args: [[word, sentences]]}}
          - {{name: addComponentConfig, args: ["my.key", 3]}}
        streams:
        - {{from: lines, to: split, grouping: {{type: SHUFFLE}}}}
        """
    loaded = load(textwrap.dedent(source))
    with LocalCluster() as cluster:
        cluster.submit(loaded.topology)
        cluster.advance(0)
        assert cluster.tuples("split") == [["a", 1], ["b", 1], ["c", 2]]
    assert loaded.topology.components["split"].user_object.settings == {"my.key": 3}


INCLUDING = """
name: x
includes: [{file: other.yaml}]
components:
- {id: own, className: "builtins:list", constructorArgs: [[{ref: theirs}]]}
"""


def test_a_reference_to_a_component_of_an_included_file_says_that_those_come_later(load, tmp_path):
    (tmp_path / "other.yaml").write_text(
        'components:\n- {id: theirs, className: "builtins:int", constructorArgs: [1]}\n'
    )
    text = INCLUDING.replace("[[{ref: theirs}]]", "{iterable: {ref: theirs}}")
    with pytest.raises(FluxError, match="is of an included file") as refused:
        load(text)
    assert "come after the file's own" in refused.value.what
    assert "other.yaml:2" in refused.value.what
    assert "spouts and bolts may refer to it" in refused.value.fix
    below = text.replace("includes: [{file: other.yaml}]\n", "")
    with pytest.raises(FluxError, match="'theirs' is defined below, in line 5"):
        load(below + '- {id: theirs, className: "builtins:int", constructorArgs: [1]}\n')


@pytest.mark.parametrize("is_set", [True, False])
def test_check_says_what_has_no_effect_and_fails_for_a_value_that_is_a_placeholder_alone(
    is_set, tmp_path, capsys, caplog
):
    text = WORDS.replace("[6]", '["${longest}"]').replace('"a b"', '"a ${b}"')
    (tmp_path / "x.yaml").write_text(text.replace("builtins:int", "builtins:str"))
    (tmp_path / "x.properties").write_text("longest = 6\n" if is_set else "")
    code = main(["flux", "check", str(tmp_path / "x.yaml"), "--filter", str(tmp_path / "x.properties")])
    said = capsys.readouterr().out
    assert code == (0 if is_set else 1)
    assert ("x.yaml:5: ${longest} has no value" in said) is not is_set
    assert "${b}" not in said, "it is a part of a text, which may be meant so"
    assert "topology.workers has no effect: " in said
    assert "my.key has no effect: components are not given it" in said
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(line.startswith("my.key has no effect") for line in warned)
