"""Where a checkpoint may be, who holds it, and the errors where there can be none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.location import hadoop_path, location_of
from acktree.errors import CheckpointError, ConfigError
from acktree.spark.session.settings import SETTINGS, lent_settings, no_retries_hint, other_python_hint
from acktree.spark.worker import process as worker
from acktree.system.private_files import make_all_private


@pytest.mark.parametrize(
    "name",
    ["sp ace", "ü☃", "per%20cent", "per%", "hash#x", "quest?x", "new\nline", "a:b", "back\\slash", "+"],
)
def test_a_path_and_its_url_name_the_same_folder_and_spark_gets_it_unchanged(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    assert location_of(str(folder)) == location_of(folder.as_uri()) == folder
    assert hadoop_path(folder) == f"file://{folder}"


@pytest.mark.parametrize(
    "url", ["file:///a?b", "file:///a#b", "file:///a%b", "file:///a%00b", "file:///a\nb", "", "a\0b"]
)
def test_text_that_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        location_of(url)


@pytest.mark.parametrize("given", [None, 5, b"folder", ["folder"]])
def test_what_is_no_path_is_refused_with_a_path_as_the_fix(given: Any) -> None:
    with pytest.raises(ConfigError, match="a checkpoint is a folder, and this names none") as refused:
        location_of(given)
    assert f"checkpoint={given!r}" in refused.value.where
    assert "'checkpoints/orders'" in refused.value.fix


def test_a_parent_is_the_one_behind_the_link_and_other_links_stay(tmp_path: Path) -> None:
    (tmp_path / "far" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "real")
    assert location_of(tmp_path / "link" / ".." / "x") == (tmp_path / "far" / "x").resolve()
    assert location_of(tmp_path / "link" / "x") == tmp_path / "link" / "x"


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_as_checkpoint_is_refused_in_three_parts(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="a checkpoint is a folder") as refused:
        Checkpoint(tmp_path / name)
    assert str(tmp_path / name) in refused.value.where


def test_the_error_of_a_second_driver_says_who_holds_the_checkpoint_and_since_when(tmp_path: Path) -> None:
    with closing(Checkpoint(tmp_path / "held")), pytest.raises(CheckpointError) as refused:
        Checkpoint(tmp_path / "held")
    assert re.search(rf"held by process {os.getpid()} on \S+, since \d{{4}}-\d\d-\d\dT", refused.value.where)


def test_a_checkpoint_on_which_nothing_began_is_not_left_behind(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "new").close()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    Checkpoint(tmp_path / "old").close()
    assert (tmp_path / "old").exists()


def test_without_java_one_error_says_so_and_no_checkpoint_is_left(tmp_path: Path) -> None:
    code = """
from acktree import IterableSpout, TopologyBuilder, bolt, submit
builder = TopologyBuilder("t")
builder.set_spout("s", IterableSpout([], ["n"]))
builder.set_bolt("b", bolt(outputs=[])(lambda tup: None)).shuffle_grouping("s")
submit(builder.create_topology(), checkpoint="new")
"""
    world = {**os.environ, "JAVA_HOME": str(tmp_path / "nowhere")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=world, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "ConfigError: JAVA_HOME is wrong: there is no program" in done.stderr
    assert f"JAVA_HOME={tmp_path / 'nowhere'}" in done.stderr
    assert not (tmp_path / "new").exists()


def test_commands_for_stopped_checkpoints_need_no_pyspark(tmp_path: Path) -> None:
    command = "from acktree.cli.main import main; main(['reset-state', 'x'])"
    code = f"import sys; sys.modules['pyspark'] = None\n{command}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "there is no checkpoint" in done.stderr


def test_without_pyspark_it_is_said_what_to_install() -> None:
    code = "import sys; sys.modules['pyspark'] = None\nfrom acktree import submit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install '.[spark]' in a clone of acktree" in done.stderr


def test_what_another_program_wrote_below_is_made_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "spark" / "commits").mkdir(parents=True)
        (tmp_path / "spark" / "commits" / "0").touch()
    finally:
        os.umask(before)
    make_all_private(tmp_path / "spark")
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "spark").rglob("*")} == {
        "0o700",
        "0o600",
    }


class Conf:
    """A session's settings."""

    def __init__(self) -> None:
        self.values = {"spark.sql.shuffle.partitions": "7"}

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def unset(self, key: str) -> None:
        self.values.pop(key, None)


def test_two_queries_that_start_at_once_have_their_own_partitions_and_the_session_keeps_its_own() -> None:
    session: Any = SimpleNamespace(conf=Conf(), sparkContext=SimpleNamespace(environment={"MINE": "1"}))
    inside, seen = threading.Barrier(2, timeout=0.2), []

    def start(number: int) -> None:
        with lent_settings(session, number, {"mine": str(number)}):
            with suppress(threading.BrokenBarrierError):
                inside.wait()  # both are here at once only where nothing keeps them apart
            seen.append((number, session.conf.get("spark.sql.shuffle.partitions"), session.conf.get("mine")))
            with suppress(threading.BrokenBarrierError):
                inside.wait()

    both = [threading.Thread(target=start, args=(number,)) for number in (1, 5)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(seen) == [(1, "1", "1"), (5, "5", "5")]
    assert session.conf.values == {"spark.sql.shuffle.partitions": "7"}
    assert session.sparkContext.environment == {"MINE": "1"}


@pytest.mark.parametrize(
    ("master", "mend"),
    [("local", "local[1,4]"), ("local[3]", "local[3,4]"), ("local[*]", "local[*,4]"),
     ("local[2,1]", "local[2,4]"),
     ("local[2,4]", None), ("spark://x:7077", None), ("local-cluster[1,1,512]", None)],
)  # fmt: skip
def test_a_local_session_without_retries_is_named_with_the_fix(master: str, mend: str | None) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    hint = no_retries_hint(session)
    assert hint is None if mend is None else f"master('{mend}')" in str(hint)


@pytest.mark.parametrize("master", ["local[2,4]", "spark://x:7077"])
def test_workers_of_another_python_than_the_programs_are_warned_of(master: str, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)

    def hint_for(python: str) -> str | None:
        context = SimpleNamespace(master=master, pythonExec=python)
        session: Any = SimpleNamespace(sparkContext=context)
        return other_python_hint(session)

    assert hint_for(sys.executable) is None
    assert hint_for("no-such-python") is None
    hint = hint_for(str(other))
    assert hint is None if master.startswith("spark") else f"PYSPARK_PYTHON={sys.executable}" in str(hint)


def test_the_page_lists_every_setting_that_is_made_on_a_session() -> None:
    page = (Path(__file__).parents[3] / "docs" / "running.md").read_text()
    assert [setting.key for setting in SETTINGS if setting.key not in page] == []


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/user.slice/x.service\n", "user.slice/x.service/memory.max"),
        ("0::/user.slice/x.service\n", "user.slice/memory.max"),
        ("4:cpu,memory:/docker/1\n", "memory/docker/1/memory.limit_in_bytes"),
        ("4:memory:/docker/1\n", "memory/memory.limit_in_bytes"),
        ("", "memory.max"),
    ],
)
def test_a_limit_of_any_control_group_of_this_process_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, groups: str, file: str
) -> None:
    (tmp_path / "self").write_text(groups)
    monkeypatch.setattr(worker, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(worker, "_MY_CGROUP", tmp_path / "self")
    (tmp_path / "groups" / file).parent.mkdir(parents=True, exist_ok=True)
    machine = worker._machine_bytes()
    (tmp_path / "groups" / file).write_text("max\n")
    assert worker._machine_bytes() == machine
    (tmp_path / "groups" / file).write_text("123456\n")
    assert worker._machine_bytes() == 123456
