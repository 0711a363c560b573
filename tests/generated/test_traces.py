"""On any topology, the trees that are recorded are the trees that a tracker of objects builds."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings

from acktree.traces.store import TraceStore
from tests.drawn import drawn
from tests.generated.running import run_locally
from tests.generated.strategies import topologies
from tests.generated.test_agreement import configs
from tests.generated.trees import differences


def noted(patched):
    """What is stored of each micro-batch from now on."""
    facts_seen, add = [], TraceStore.add_facts

    def noting(store, *parts):
        facts_seen.append(deepcopy(parts))
        add(store, *parts)

    patched.setattr(TraceStore, "add_facts", noting)
    return facts_seen


def stored(store):
    return [store.select(f"SELECT * FROM {table}") for table in ("messages", "packs", "later")]


@settings(max_examples=drawn(60))
@given(topologies(), configs)
def test_at_rate_1_every_recorded_tree_is_the_tree_that_there_was(drawn, config):
    looked, facts = [], []

    def look(running):
        looked.append(True)
        assert not differences(drawn, running.traces)
        store, facts_seen = running._recorded.store, facts.pop()
        before = stored(store)
        for parts in list(facts_seen):  # a second run of every micro-batch
            store.add_facts(*parts)
        assert stored(store) == before
        assert not differences(drawn, running.traces)

    with pytest.MonkeyPatch.context() as patched:
        facts.append(noted(patched))
        run_locally(drawn, replace(config, trace_sample_rate=1), look)
    assert looked


@settings(max_examples=drawn(30))
@given(topologies(), configs)
def test_the_tree_of_a_watched_message_is_the_tree_that_there_was_at_a_rate_of_0(drawn, config):
    looked = []

    def begin(running):
        running.traces.watch([*range(len(drawn.messages))] or ["none"], secs=86_400)

    def look(running):
        looked.append(True)
        assert not differences(drawn, running.traces)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("acktree.tasks.spouts.watched_ids.MOST_WATCHED", 10_000)
        run_locally(drawn, replace(config, trace_sample_rate=0), look, begin)
    assert looked
