"""pystorm's and streamparse's own tests, as they are on PyPI, run on acktree's classes by ``install()``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acktree import TopologyBuilder
from acktree.multilang import ShellBolt
from acktree.testing import FeederSpout, LocalCluster
from tests.services import streamparse
from tests.services.cache import fetched

ROOT = Path(__file__).parents[2]
SUITES = {"pystorm": ("3.1.4", 65), "streamparse": ("5.0.1", 57)}
PLUGIN = "from acktree.streamparse import install\ninstall()\n"


def sources() -> Path:
    """The folder with both source distributions, unpacked, and the libraries that their tests import."""
    return fetched("streamparse-suites", _download, lambda folder: (folder / "complete").exists())


def _download(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    named = [f"{name}=={version}" for name, (version, _) in SUITES.items()]
    try:
        _run(*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), *named)
        _run(*pip, "install", "--target", str(folder / "libraries"), "simplejson", "msgpack")
    except subprocess.CalledProcessError as error:
        raise OSError(f"the tests of streamparse cannot be fetched: {error.stderr[-2000:]}") from error
    for archive in folder.glob("*.tar.gz"):
        shutil.unpack_archive(archive, folder, filter="data")
    (folder / "complete").touch()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", SUITES)
def test_their_own_tests_pass_unmodified_on_our_classes(name, tmp_path):
    try:
        folder = sources()
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    version, count = SUITES[name]
    shutil.copytree(folder / f"{name}-{version}" / "test", tmp_path / "test")
    (tmp_path / "aliases.py").write_text(PLUGIN)
    path = os.pathsep.join(map(str, (tmp_path, ROOT, folder / "libraries")))
    options = ["-q", "-c", os.devnull, "--rootdir", ".", "-p", "aliases", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert re.search(rf"^{count} passed in ", done.stdout, re.MULTILINE), done.stdout + done.stderr


SPLIT = """
from pystorm.bolt import Bolt

class Split(Bolt):
    count = 0

    def process(self, tup):
        self.count += 1
        if not tup.values[0]:
            self.raise_exception(ValueError("an empty line"), tup)
            return
        for word in tup.values[0].split():
            self.emit([word, self.count], need_task_ids=True)

Split(serializer="SERIALIZER").run()
"""


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_a_bolt_of_pystorm_itself_is_a_child_in_both_of_its_formats(serializer, tmp_path):
    if serializer == "msgpack":
        pytest.importorskip("msgpack")
    try:
        python, libraries = streamparse.fetch() / "bin" / "python", sources() / "libraries"
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    (tmp_path / "split.py").write_text(SPLIT.replace("SERIALIZER", serializer))
    feeder, builder = FeederSpout(["line"]), TopologyBuilder("peer")
    builder.set_spout("source", feeder)
    bolt = ShellBolt(
        [str(python), "split.py"], ["word", "count"], resources=tmp_path, serializer=serializer,
        env={"PYTHONPATH": str(libraries)}, subprocess_timeout_secs=120,
    )  # fmt: skip
    builder.set_bolt("split", bolt).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for line in ("naïve café", "", "x" * 100_000):
            feeder.feed([line], message_id=line[:20])
            cluster.advance(0)
        assert running.tuples("split") == [["naïve", 1], ["café", 1], ["x" * 100_000, 3]]
        assert feeder.acked == ["naïve café", "", "x" * 20]
        assert "ValueError raised while processing" in running.errors[0].reason
