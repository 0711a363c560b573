"""A project's files and commands, and ``install()``: each in a process of its own, as a user runs them."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from acktree import ConfigError
from acktree.streamparse import project
from acktree.streamparse.bootstrap import quickstart
from acktree.streamparse.cli import common
from acktree.system.private_files import Disk, make_private_folder
from acktree.ui.places import POINTER, Entry, key_of, write_entry

ROOT = Path(__file__).parents[3]


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """The project that ``quickstart`` makes."""
    folder = tmp_path_factory.mktemp("projects")
    quickstart(str(folder / "words"))
    return folder / "words"


def test_quickstart_touches_no_folder_that_is_there(words):
    done = python(words.parent, "-m", "acktree", "sparse", "quickstart", "words")
    assert done.returncode == 1
    assert "give a name that is not taken" in done.stderr


COUNTS = """
from acktree.streamparse import load
from acktree.testing import LocalCluster

loaded = load("topologies/wordcount.py", options={"topology.max.spout.pending": 50})
with LocalCluster() as cluster:
    cluster.submit(loaded.topology, config=loaded.config)
    cluster.run(most_messages=400)
    counts = {}
    for word, count in cluster.tuples("count_bolt"):
        counts[word] = max(count, counts.get(word, 0))
assert counts == {"dog": 1000, "cat": 100, "zebra": 100, "elephant": 100}, counts
"""


def test_the_quickstart_counts_its_words_exactly(words):
    (words / "counts.py").write_text(COUNTS)
    done = python(words, "counts.py")
    assert done.returncode == 0, done.stderr


def test_acktree_run_takes_a_file_of_streamparse_and_its_class(words):
    file = "topologies/wordcount.py"
    done = python(
        words, "-m", "acktree", "run", f"{file}:WordCount", "--dry-run", "--name", "mine", "-o", "k=1"
    )
    assert done.returncode == 0, done.stderr
    assert "topology mine on 2 partitions" in done.stdout
    done = python(words, "-m", "acktree", "run", f"{file}:Nothing", "--dry-run")
    assert done.returncode == 1
    assert "has no topology class 'Nothing'" in done.stderr


COMMANDS = [
    (["jar"], 2, "there is no jar"),
    (["update_virtualenv"], 2, "virtualenvs"),
    ([], 1, ""),
    (["run", "-n", "wrodcount", "--local"], 1, "did you mean 'wordcount'?"),
    (["run", "-e", "beta", "--local"], 1, "no environment 'beta'"),
    (["submit"], 1, "there is no checkpoint"),
    (["tail"], 1, "there is no log of a driver"),
    (["run", "-o", "debug"], 2, "write key=value"),
    (["visualize"], 0, ""),
    (["help", "run"], 0, ""),
    (["--version"], 0, ""),
    (["run", "--local", "-t", "1", "-o", "my.key=[a, 1]", "-a", "1"], 0, "nothing is durable"),
    (["run", "--local", "-t", "1", "-w", "3"], 0, "setting topology.workers has no effect"),
]
QUIET = "setting topology.multilang.serializer"
"""A setting that every project of streamparse has: a run gives no warning for it."""
EACH = """
import contextlib, io, json, sys
from acktree.streamparse.cli import sparse

for arguments in json.loads(sys.argv[1]):
    errors, code = io.StringIO(), 0
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            sparse.main(arguments)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, errors.getvalue()]))
"""


def test_each_command_is_carried_out_or_says_why_not(words):
    done = python(words, "-c", EACH, json.dumps([arguments for arguments, _, _ in COMMANDS]))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in answers] == [code for _, code, _ in COMMANDS], done.stderr
    for (_, said), (_, _, expected) in zip(answers, COMMANDS, strict=True):
        assert expected in said
        assert not any(line.startswith(QUIET) for line in said.splitlines())


def test_options_are_read_as_in_yaml_and_the_last_one_wins():
    parser = argparse.ArgumentParser()
    common.add_options(parser)
    given = parser.parse_args(
        ["-o", "a=[x, 1]", "-w", "2", "-d", "-o", "b=x=y", "-o", "a=no", "--ackers", "0"]
    )
    assert given.options == {
        "a": False, "topology.workers": 2, "topology.debug": True, "b": "x=y", "topology.acker.executors": 0
    }  # fmt: skip


# --- install() ---------------------------------------------------------------------------------------------


def test_importing_it_imports_no_pyspark_pyarrow_yaml_or_msgpack(tmp_path):
    code = (
        "import sys, acktree.streamparse; print({'pyspark', 'pyarrow', 'yaml', 'msgpack'} & set(sys.modules))"
    )
    assert python(tmp_path, "-c", code).stdout == "set()\n"


def test_other_commands_import_no_programs_of_others(tmp_path):
    code = """
import sys, acktree.cli.main
print([name for name in ("flux", "streamparse", "pystorm", "multilang") if f"acktree.{name}" in sys.modules])
"""
    assert python(tmp_path, "-c", code).stdout == "[]\n"


def test_install_gives_the_same_modules_under_both_names(tmp_path):
    code = """
import acktree.streamparse, acktree.pystorm.component
acktree.streamparse.install()
acktree.streamparse.install()
import pystorm.component, streamparse.dsl.stream
from streamparse.bolt import Bolt
from streamparse.thrift import GlobalStreamId
assert pystorm.component is acktree.pystorm.component
assert Bolt is acktree.streamparse.Bolt
assert streamparse.Grouping is streamparse.dsl.stream.Grouping
try:
    import streamparse.nothing
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = python(tmp_path, "-c", code)
    assert done.stdout == "streamparse.nothing\n", done.stderr


def test_install_refuses_when_the_packages_themselves_are_imported(tmp_path):
    (tmp_path / "pystorm.py").write_text("")
    done = python(tmp_path, "-c", "import pystorm, acktree.streamparse as s; s.install()")
    assert "the package pystorm itself is imported already" in done.stderr


# --- config.json -------------------------------------------------------------------------------------------


def test_the_topology_is_the_one_that_the_file_defines(tmp_path):
    (tmp_path / "topologies").mkdir()
    file = tmp_path / "topologies" / "some_words.py"
    head = "from acktree.streamparse import Spout, Topology\nclass W(Spout):\n    outputs = ['w']\n"
    (tmp_path / "topologies" / "some_base.py").write_text(f"{head}class Base(Topology):\n    w = W.spec()\n")
    file.write_text("from some_base import Base\nclass Own(Base):\n    pass\n")
    code = f"""
from pathlib import Path
from acktree.streamparse.project import topology_in
file = Path({str(file)!r})
print(topology_in(file).__name__, topology_in(file, "Base").__name__)
"""
    done = python(tmp_path, "-c", code)
    assert done.stdout == "Own Base\n", done.stderr


def test_settings_are_put_together_in_this_order():
    environment = {
        "options": {"a": 1, "b": 1, "c": 1},
        "log": {"path": "logs", "max_bytes": "many", "level": "WARN"},
        "log_file": "x.log",
        "user": "me",
    }
    topology = type("Any", (), {"config": {"b": 2, "c": 2}})
    options = project.options_of({"c": 3}, environment, topology, "words")
    assert options == {
        "a": 1, "b": 2, "c": 3, "sudo_user": "me", "pystorm.log.path": "logs", "pystorm.log.file": "x.log",
        "pystorm.log.level": "warn",
    }  # fmt: skip
    assert project.options_of({"topology.debug": True}, {}, topology, "w")["pystorm.log.level"] == "debug"


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_configuration_that_cannot_be_read_is_one_error(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="the project's configuration"):
        project.read_config(folder=tmp_path)


def test_several_environments_and_topologies_must_be_named(tmp_path):
    config = {"envs": {"prod": {}, "beta": {}}}
    with pytest.raises(ConfigError, match="2 environments"):
        project.environment_of(config, None)
    assert project.environment_of(config, "beta") == ("beta", {})
    (tmp_path / "topologies").mkdir()
    for name in ("one", "two"):
        (tmp_path / "topologies" / f"{name}.py").touch()
    with pytest.raises(ConfigError, match="2 topologies"):
        project.topology_file(json.loads("{}"), None, tmp_path)
    assert project.topology_file({}, "one", tmp_path)[0] == "one"


# --- what a user's own code does ---------------------------------------------------------------------------


def project_of(folder: Path, parts: str, topology: str) -> Path:
    for name, text in (("src/parts.py", parts), ("topologies/own.py", topology)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    (folder / "config.json").write_text('{"envs": {"prod": {}}}')
    return folder


PARTS = """
import time
from streamparse import Bolt, Spout

class Words(Spout):
    outputs = ["word"]
    def initialize(self, conf, context):
        self.logger.info("begins")
    def next_tuple(self):
        self.emit(["a"], tup_id=1)

class Slow(Bolt):
    outputs = ["word"]
    def process(self, tup):
        try:
            while True:
                time.sleep(0.01)
        except Exception:
            pass

class Broken(Slow):
    def initialize(self, conf, context):
        raise NameError("Conter")
"""
PENDING = "topology.max.spout.pending"
TOPOLOGY = """
from streamparse import Topology
from parts import Broken, Slow, Words

class Own(Topology):
    words = Words.spec()
    count = BOLT.spec(inputs=[words])
"""


def test_the_time_ends_a_round_that_runs_and_lines_of_components_are_shown(tmp_path):
    folder = project_of(tmp_path, PARTS, TOPOLOGY.replace("BOLT", "Slow"))
    done = python(folder, "-m", "acktree", "sparse", "run", "--local", "-t", "3")
    assert done.returncode == 0, done.stderr
    assert "stopped after 3 s, within a round" in done.stderr
    assert "INFO pystorm.component.words" in done.stderr
    assert "begins" in done.stderr
    assert "words" in done.stdout


def test_an_initialize_that_raises_is_named_by_a_line_and_no_time_is_of_1970(tmp_path):
    folder = project_of(tmp_path, PARTS, TOPOLOGY.replace("BOLT", "Broken"))
    done = python(folder, "-m", "acktree", "sparse", "run", "--local", "-t", "8", "-o", f"{PENDING}=9")
    assert "component 'count', task 1 cannot begin, so its tuples fail: NameError: Conter" in done.stderr
    assert "error component=count" in done.stdout
    assert "1970-" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("parts", "shown"), [("import no_such_module\n", "No module named"), ("def f(:\n", "invalid syntax")]
)
def test_an_error_of_the_projects_code_shows_its_own_frames_and_what_to_do(tmp_path, parts, shown):
    folder = project_of(tmp_path, parts, TOPOLOGY)
    done = python(folder, "-m", "acktree", "sparse", "run", "--local")
    assert done.returncode == 1
    assert done.stderr.startswith("sparse: own.py cannot be imported:\n")
    assert shown in done.stderr
    assert 'topologies/own.py", line 3' in done.stderr
    assert "acktree/" not in done.stderr
    assert "fix:   correct what the traceback shows" in done.stderr


def test_kill_stats_and_tail_mean_the_topology_of_this_folder(tmp_path):
    home = tmp_path / "home"
    disk, folders = Disk(), [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        project_of(folder, PARTS, TOPOLOGY)
        place = folder / "cp"
        place.mkdir()
        (place / "acktree.json").write_text("{}")
        (place / "driver.log").write_text(f"this is {folder.name}\n")
        name, host = f"own-1-{number}", socket.gethostname()
        entry = Entry("own", name, str(place), str(folder / "socket"), 1, host, 1)
        make_private_folder(home / "acktree")
        for file in (place / POINTER, home / "acktree" / f"{key_of(str(place))}.json"):
            write_entry(entry, file, disk)
    for command in ("kill", "stats"):
        done = python(folders[0], "-m", "acktree", "sparse", command, XDG_STATE_HOME=str(home))
        assert str(folders[0] / "cp") in done.stderr
        assert "topologies are called" not in done.stderr
    done = python(folders[1], "-m", "acktree", "sparse", "tail", XDG_STATE_HOME=str(home))
    assert done.stdout == "this is two\n"
    done = python(tmp_path, "-m", "acktree", "sparse", "kill", "-n", "own", XDG_STATE_HOME=str(home))
    assert "2 topologies are called 'own'" in done.stderr, "both are below this folder"
    done = python(tmp_path, "-m", "acktree", "sparse", "tail", "-n", "own", XDG_STATE_HOME=str(home))
    assert "there is no log of a driver" in done.stderr, "it does not guess"
