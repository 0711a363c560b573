"""Files in the shape of those that come with Storm: what they load to, what ``--dry-run`` says, and a run."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from acktree import Config, flux
from acktree.cli.main import main
from acktree.flux import FluxError
from acktree.testing import LocalCluster, complete_topology

EXAMPLES = Path(__file__).parents[3] / "examples" / "multilang"
HERE = "tests.unit.flux.components"
FIRST = """
# a comment, and then a document separator
---
name: "yaml-topology"
config:
  topology.workers: 1
  # ...
spouts:
  - id: "spout-1"
    className: "org.apache.storm.testing.TestWordSpout"
    parallelism: 1
    numTasks: 5
    onHeapMemoryLoad: 100
    offHeapMemoryLoad: 100
    cpuLoad: 100
bolts:
  - id: "bolt-1"
    className: "org.apache.storm.testing.TestWordCounter"
    parallelism: 1
    numTasks: 100
    onHeapMemoryLoad: 100
    cpuLoad: 100
  - id: "bolt-2"
    className: "org.apache.storm.flux.wrappers.bolts.LogInfoBolt"
    parallelism: 1
streams:
  - name: "spout-1 --> bolt-1" # the name is not used
    from: "spout-1"
    to: "bolt-1"
    grouping: {type: FIELDS, args: ["word"]}
  - name: "bolt-1 --> bolt2"
    from: "bolt-1"
    to: "bolt-2"
    grouping:
      type: CUSTOM
      customClass: {className: "org.apache.storm.testing.NGrouping", constructorArgs: [1]}
"""
DIAMOND = f"""
name: "diamond-topology"
config: {{topology.workers: 1}}
spouts: [{{id: "1", className: org.apache.storm.testing.TestWordSpout, parallelism: 1}}]
bolts:
  - {{id: A, className: "{HERE}:measure"}}
  - {{id: B, className: "{HERE}:measure"}}
  - {{id: C, className: org.apache.storm.flux.wrappers.bolts.LogInfoBolt}}
streams:
  - {{from: "1", to: A, grouping: {{type: SHUFFLE}}}}
  - {{from: "1", to: B, grouping: {{type: SHUFFLE}}}}
  - {{from: A, to: C, grouping: {{type: SHUFFLE}}}}
  - {{from: B, to: C, grouping: {{type: SHUFFLE}}}}
"""
SHELL = f"""
name: "shell-topology"
config: {{topology.workers: 1}}
spouts:
  - id: "sentence-spout"
    className: "org.apache.storm.flux.wrappers.spouts.FluxShellSpout"
    constructorArgs:
      - ["node", "sentences.js"]
      - ["word"]
    parallelism: 1
bolts:
  - id: "splitsentence"
    className: "org.apache.storm.flux.wrappers.bolts.FluxShellBolt"
    constructorArgs:
      - ["{sys.executable}", "split.py"]
      - ["word", "sentences"]
    parallelism: 1
  - {{id: "log", className: "org.apache.storm.flux.wrappers.bolts.LogInfoBolt", parallelism: 1}}
  - {{id: "count", className: "org.apache.storm.testing.TestWordCounter", parallelism: 1}}
streams:
  - {{from: "sentence-spout", to: "splitsentence", grouping: {{type: SHUFFLE}}}}
  - {{from: "splitsentence", to: "count", grouping: {{type: FIELDS, args: ["word"]}}}}
  - {{from: "count", to: "log", grouping: {{type: SHUFFLE}}}}
"""


@pytest.fixture
def file(tmp_path):
    def written(text):
        (tmp_path / "x.yaml").write_text(text)
        return tmp_path / "x.yaml"

    return written


def test_the_first_file_of_storm_has_its_tasks_groupings_and_counts(file, capsys):
    path = file(FIRST)
    loaded = flux.load(path)
    assert {each.id: each.parallelism for each in loaded.topology.components.values()} == {
        "spout-1": 5,
        "bolt-1": 100,
        "bolt-2": 1,
    }
    assert {key.rpartition(" ")[2] for key in loaded.ignored} == {
        "topology.workers", "onHeapMemoryLoad", "offHeapMemoryLoad", "cpuLoad",
    }  # fmt: skip
    done = complete_topology(loaded.topology, {"spout-1": [["mike"], ["golda"], ["mike"]]})
    assert sorted(done.tuples("bolt-1")) == [["golda", 1], ["mike", 1], ["mike", 2]]
    assert main(["flux", "run", str(path), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "yaml-topology" in shown
    assert "<- spout-1 by fields" in shown
    assert "<- bolt-1 by custom" in shown


def test_both_arms_of_a_diamond_reach_its_end(file, caplog):
    with caplog.at_level("INFO"):
        done = complete_topology(flux.load(file(DIAMOND)).topology, {"1": [["mike"]]})
    assert done.tuples("A") == done.tuples("B") == [["mike", 4]]
    assert [line for line in caplog.messages if line.endswith(": ('mike', 4)")] == [
        "A: ('mike', 4)",
        "B: ('mike', 4)",
    ]


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside the tests")
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_shell_components_of_two_languages_count_words(file, tmp_path, monkeypatch):
    (tmp_path / "resources").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    loaded = flux.load(file(SHELL))
    with LocalCluster() as cluster:
        running = cluster.submit(loaded.topology)
        cluster.advance(0)
        assert running.stats()["sentence-spout"].total.acked == 4
        assert ["apple", 1] in cluster.tuples("count")


def with_config(text):
    return f"""
name: x
spouts: [{{id: lines, className: "{HERE}:Lines", factory: of}}]
bolts: [{{id: b, className: "{HERE}:Ticking", config: {text}}}]
streams: [{{from: lines, to: b, grouping: {{type: SHUFFLE}}}}]
config: {{topology.tick.tuple.freq.secs: 9}}
"""


@pytest.mark.parametrize(
    ("text", "secs"),
    [("{topology.tick.tuple.freq.secs: 2}", 2), ("{}", 9), ("{my.key: 1}", 9)],
    ids=["the component's", "the topology's", "an unknown key"],
)
def test_the_setting_of_a_component_wins_over_the_topologys_and_an_unknown_key_is_no_error(text, secs, file):
    loaded = flux.load(file(with_config(text)))
    assert isinstance(loaded.config, Config)
    bolt = loaded.topology.bolts[0]
    assert (bolt.tick_secs or loaded.config.tick_tuple_freq_secs) == secs


def test_the_serializer_of_a_shell_component_is_a_setting(file):
    pytest.importorskip("msgpack")
    settings = '[{name: addComponentConfig, args: ["topology.multilang.serializer", "NAME"]}]'
    source = textwrap.dedent(f"""
        name: x
        spouts: [{{id: lines, className: "{HERE}:Lines", factory: of}}]
        bolts:
        - id: b
          className: org.apache.storm.flux.wrappers.bolts.FluxShellBolt
          constructorArgs: [[cat]]
          configMethods: {settings}
        streams: [{{from: lines, to: b, grouping: {{type: SHUFFLE}}}}]
        """)
    loaded = flux.load(file(source.replace("NAME", "org.example.MsgpackSerializer")))
    assert loaded.topology.bolts[0].user_object._program.serializer == "msgpack"
    with pytest.raises(FluxError, match=r"there is no serializer 'org.example.Kryo'"):
        flux.load(file(source.replace("NAME", "org.example.Kryo")))
