"""What a worker does after another one was lost, without Spark."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from acktree.spark.worker.isolation import Isolation
from acktree.tasks.bolts.level import run_level
from acktree.testing import local_levels


@pytest.fixture
def each_level_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LocalCluster's levels run as on Spark when a worker was lost."""
    batches = count()

    def isolated(
        plan: Any, index: int, partition: int, rows: Any, store: Any, read_chunk: Any, observe: Any, **_: Any
    ):
        alone = Isolation(tmp_path, next(batches), index, partition, 1, plan.config.execute_timeout_secs)
        return alone.run(
            lambda monitor, its: run_level(plan, index, partition, rows, its, read_chunk, observe, monitor),
            store,
        )

    monkeypatch.setattr(local_levels, "run_level", isolated)
