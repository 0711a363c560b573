"""The engines that every scenario is run on."""

from __future__ import annotations

import pytest

from acktree.tasks.plan import COMBINED_FROM
from tests.scenarios.runner import LocalRunner, Runner

ENGINES = {
    "local": LocalRunner(),
    "local on 3 partitions": LocalRunner(3),
    "local with combining tasks": LocalRunner(COMBINED_FROM),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Runner:
    """Something that runs scenarios. To add Spark: a name here, and a :class:`Runner` for it."""
    return ENGINES[request.param]


@pytest.fixture
def run(engine: Runner):
    """``run(build, steps, ...)`` on each engine."""
    return engine.run
