"""The engines that every scenario is run on."""

from __future__ import annotations

import pytest

from tests.scenarios.runner import LocalRunner, Runner


@pytest.fixture(params=["local", "local on 3 partitions"])
def engine(request: pytest.FixtureRequest) -> Runner:
    """Something that runs scenarios. To add Spark: a name here, and a :class:`Runner` for it."""
    return {"local": LocalRunner(), "local on 3 partitions": LocalRunner(3)}[request.param]


@pytest.fixture
def run(engine: Runner):
    """``run(build, steps, ...)`` on each engine."""
    return engine.run
