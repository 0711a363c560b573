"""README and pages: Python blocks run unchanged, and each `make` recipe that is named exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_of(page: str) -> list[object]:
    """The Python blocks of a page, by their lines."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        pytest.param(match[1], id=f"{Path(page).stem}-line-{text.count(chr(10), 0, match.start()) + 2}")
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("block", blocks_of("README.md"))
def test_each_python_block_of_the_readme_runs_as_it_stands(block, tmp_path):
    run_alone(block, tmp_path)


PAGES = ["docs/from-streamparse.md", "docs/waiting.md", "docs/metrics.md", "docs/operators.md"]


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks_of(page)])
def test_each_python_block_of_a_page_without_spark_runs_as_it_stands(block, tmp_path):
    run_alone(block, tmp_path)


FIRST = ROOT / "examples" / "first_service"
"""Its tests run the code that the page shows."""


@pytest.mark.parametrize("block", blocks_of("docs/first-service.md"))
def test_the_page_of_the_first_service_shows_the_files_of_the_example(block):
    assert any(block in file.read_text(encoding="utf-8") for file in FIRST.glob("*.py"))


def run_alone(block: str, tmp_path: Path) -> None:
    """Run a block as a program of its own."""
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
