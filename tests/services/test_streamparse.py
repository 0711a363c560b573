"""pystorm's and streamparse's own tests, as they are on PyPI, run on acktree's classes by ``install()``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
