"""On any topology with gates, what is left is what a model says that replays nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from acktree import Config
from acktree.testing import LocalCluster
from tests.generated.gated import BATCHES, DUMP, Gated, Left, Model, build, feed, found, topology


def run_locally(drawn: Gated, folder: Path, config: Config) -> Left:
    topology, spouts = build(drawn, folder)
    with LocalCluster() as cluster:
        running = cluster.submit(topology, config=config)
        for batch in range(BATCHES):
            feed(drawn, spouts, batch)
            cluster.advance()
        assert running.await_idle(600), running.stats().table()
        spouts[DUMP].feed([DUMP, "a"], message_id=0)
        for spout in spouts.values():
            spout.end()
        assert running.await_termination(600), running.stats().table()
        assert spouts[DUMP].acked == [0]
    return found(drawn, folder, spouts)


@pytest.mark.parametrize("seed", range(60))
def test_each_acked_message_is_remembered_and_written_once_and_no_other(tmp_path: Path, seed: int) -> None:
    drawn = topology(seed)
    config = Config(partitions=(None, 2, 3)[seed % 3], run_salt=seed)
    assert not Model(drawn).left.differences(run_locally(drawn, tmp_path, config)), drawn
