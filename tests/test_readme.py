"""The README keeps its word: its Python blocks run as they stand, and each `make` it names is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    pytest.param(match[1], id=f"line-{README.count(chr(10), 0, match.start()) + 2}")
    for match in re.finditer(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_each_python_block_of_the_readme_runs_as_it_stands(block, tmp_path):
    (tmp_path / "pasted.py").write_text(block, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "pasted.py"],
        cwd=tmp_path,  # an empty folder: a reader has nothing beside what he pasted
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_each_make_command_of_the_readme_is_a_recipe():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"^(?:\$ )?make ([a-z-]+)", README, re.MULTILINE))
    assert {"flights", "test"} <= named <= recipes
