"""Groupings are declarations: values that say what crosses partitions, without pyarrow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from acktree.core.data.groupings import Fields, Grouping, NoneGrouping, Shuffle

ROOT = Path(__file__).parents[4]


def test_declarations_are_values_with_storms_names_and_say_what_crosses():
    assert Fields(("a",)) == Fields(("a",)) != Fields(("b",))
    assert Shuffle() == Shuffle() != NoneGrouping()
    assert {kind.name: kind.crosses for kind in Grouping.__subclasses__()} == {
        "shuffle": False, "local_or_shuffle": False, "none": False, "fields": True, "partial_key": True,
        "global": True, "all": True, "direct": True, "custom": True,
    }  # fmt: skip


@pytest.mark.slow
def test_declaring_groupings_imports_no_arrow():
    program = "import acktree.core.data.groupings, sys; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
