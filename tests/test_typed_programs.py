"""The programs of README and cookbook are typed: `mypy --strict` accepts each of them, as a user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/cookbook.md", "docs/first-service.md")
PROGRAM = re.compile(r"^```python\n((?:(?!^```).)*?^(?:from|import) .*?)^```", re.MULTILINE | re.DOTALL)
WAITING = """
from acktree import BasicBolt, BasicOutputCollector, Config, TaskContext, Tuple

class Waiting(BasicBolt):
    outputs = ["n"]
    max_concurrency = 8

    async def prepare(self, config: Config, context: TaskContext) -> None:
        pass

    async def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tup["n"]])
"""
STREAMPARSE = """
from acktree.pystorm import Tuple
from acktree.streamparse import BatchingBolt, Bolt, Grouping, Spout, Topology
from acktree.streamparse.testing import run_bolt

class Lines(Spout):
    outputs = ["line"]

class Lookup(Bolt):
    outputs = ["answer"]
    max_concurrency = 8

    async def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0]])

    async def process_tick(self, tup: Tuple) -> None:
        self.emit(["tick"])

class Plain(Bolt):
    outputs = ["answer"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0]])

    def process_tick(self, tup: Tuple) -> None:
        self.emit(["tick"])

class Batches(BatchingBolt):
    outputs = ["size"]

    def process_batch(self, key: object, tups: list[Tuple]) -> None:
        self.emit([len(tups)])

class Lookups(Topology):
    lines = Lines.spec()
    lookup = Lookup.spec(inputs=[lines])
    batches = Batches.spec(inputs={lookup: Grouping.fields("answer")})

print(run_bolt(Lookup, [["a"]]).emitted)
"""
MISTAKE = """
from acktree import BasicBolt, BasicOutputCollector, Tuple

class Wrong(BasicBolt):
    outputs = ["n"]
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emmit([tup["n"]])
"""


def checked(folder: Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What mypy says of programs in a folder, with acktree as an installed package with types."""
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program, encoding="utf-8")
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-pyarrow.*]\nignore_missing_imports = true\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache"]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    return subprocess.run(
        [*command, *(f"{name}.py" for name in programs)], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_mypy_accepts_every_program_of_readme_and_cookbook_and_sees_a_mistake(tmp_path: Path) -> None:
    programs = {
        f"{Path(page).stem.replace('-', '_')}_{number}": program
        for page in PAGES
        for number, program in enumerate(PROGRAM.findall((ROOT / page).read_text(encoding="utf-8")))
    }
    assert len(programs) >= 12
    said = checked(tmp_path, programs | {"waiting": WAITING, "of_streamparse": STREAMPARSE})
    assert said.returncode == 0, said.stdout
    assert '"emmit"' in checked(tmp_path, {"mistake": MISTAKE}).stdout
