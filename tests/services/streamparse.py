"""streamparse as it is on PyPI, in a virtual environment of its own, and its command ``sparse stats``.

It asks for an old Fabric and an old setuptools, so it is not in ours. ``python -m
tests.services.streamparse`` fills the user's cache (``XDG_CACHE_HOME``) once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

from tests.services.cache import fetched

VERSION = "5.0.1"
_PACKAGES = [f"streamparse=={VERSION}", "setuptools<81"]  # it imports pkg_resources
_FETCH_SECS = 300


def fetch() -> Path:
    """The folder of the environment. OSError where the packages cannot be had."""
    name = f"streamparse-{VERSION}-python{sys.version_info[0]}.{sys.version_info[1]}"
    return fetched(name, _install, lambda folder: (folder / "complete").exists())


def _install(folder: Path) -> None:
    venv.create(folder, clear=True, with_pip=True)
    command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *_PACKAGES], check=False, capture_output=True, text=True, timeout=_FETCH_SECS
    )
    if done.returncode:
        shutil.rmtree(folder)
        raise OSError(f"streamparse {VERSION} cannot be installed: {done.stderr[-2000:]}")
    (folder / "complete").touch()


@cache
def missing() -> str:
    """Why it cannot run; empty when it can."""
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def project(folder: Path, port: int, token: str) -> Path:
    """Make a project whose Storm has its UI on this port of loopback.

    The token is in a file of passwords, which the library reads that streamparse asks with (requests). Of
    ``lein``, Clojure's build tool, streamparse wants Storm's version only: a script answers.
    """
    storm = {"nimbus": "127.0.0.1", "ui.port": port, "use_ssh_for_nimbus": False, "workers": []}
    (folder / "config.json").write_text(json.dumps({"envs": {"prod": storm}}))
    (folder / "netrc").write_text(f"machine 127.0.0.1 login streamparse password {token}\n")
    lein = folder / "lein"
    lein.write_text("#!/bin/sh\necho '[org.apache.storm/storm-core \"1.2.4\"]'\n")
    lein.chmod(0o755)
    return folder


def stats(folder: Path, *options: str) -> str:
    """What ``sparse stats`` prints in a project."""
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "LEIN_ROOT": "1"}
    environment["NETRC"] = str(folder / "netrc")
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [fetch() / "bin/sparse", "stats", *options],
        cwd=folder, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    fetch()
