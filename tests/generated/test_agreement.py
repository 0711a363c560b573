"""On any topology, the engine agrees with trees of objects: every verdict, every tuple, every count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree import Config
from acktree.tasks.plan import COMBINED_FROM
from tests.drawn import drawn
from tests.generated.at_random import topology
from tests.generated.running import run_locally
from tests.generated.scripted import Drawn
from tests.generated.strategies import topologies
from tests.generated.tracker import Tracker

configs = st.builds(
    Config,
    partitions=st.sampled_from([None, 2, 3, COMBINED_FROM]),
    acker_executors=st.sampled_from([None, 1, 3]),
    run_salt=st.integers(0, 2**64 - 1),
)


@settings(max_examples=drawn(100))
@given(topologies(), configs)
def test_every_message_gets_the_verdict_that_its_tree_deserves(drawn, config):
    assert not Tracker(drawn).outcome().differences(run_locally(drawn, config))


@settings(max_examples=drawn(30))
@given(topologies(kinds=("basic", "hand", "arrow")), st.integers(1, 3))
def test_a_limit_on_what_is_open_changes_no_verdict_where_nothing_waits_for_another_message(drawn, limit):
    assert not Tracker(drawn).outcome().differences(run_locally(drawn, Config(max_spout_pending=limit)))


@pytest.mark.parametrize("seed", range(40))
def test_large_topologies_agree_too(seed):
    drawn = topology(seed)
    config = Config(partitions=(None, 2, 3)[seed % 3], acker_executors=(None, 1, 4)[seed // 3 % 3])
    assert not Tracker(drawn).outcome().differences(run_locally(drawn, config))


@settings(max_examples=drawn(20))
@given(topologies())
def test_a_drawn_topology_can_be_kept_as_text(drawn):
    assert Drawn.from_json(drawn.to_json()) == drawn
