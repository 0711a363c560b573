"""Ctrl-C while ``acktree`` loads its commands ends it with exit code 130, and without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "module": [sys.executable, "-m", "acktree"],
    "script": [str(Path(sys.executable).with_name("acktree"))],
}
INTERRUPTS = """
import signal, sys

def interrupt(event, details):
    if event == "import" and details[0] == {module!r}:
        signal.raise_signal(signal.SIGINT)

sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("module", ["acktree.cli", "acktree.cli.main", "acktree.cli.live"])
def test_ctrl_c_while_the_commands_are_loaded(program, module, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(module=module))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [*PROGRAMS[program], "version"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
