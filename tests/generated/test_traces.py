"""On any topology, the trees that are recorded are the trees that a tracker of objects builds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from tests.generated.running import run_locally
from tests.generated.strategies import topologies
from tests.generated.test_agreement import configs
from tests.generated.trees import differences


@settings(max_examples=60)
@given(topologies(), configs)
def test_at_rate_1_every_recorded_tree_is_the_tree_that_there_was(drawn, config):
    looked = []

    def look(running):
        looked.append(True)
        assert not differences(drawn, running.traces)

    run_locally(drawn, replace(config, trace_sample_rate=1), look)
    assert looked
