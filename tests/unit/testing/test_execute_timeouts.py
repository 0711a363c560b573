"""Which execute timeouts LocalCluster keeps, and that it says which it does not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from acktree import BasicBolt, Config, TopologyBuilder
from acktree.testing import FeederSpout, LocalCluster


class Plain(BasicBolt):
    def execute(self, tup, collector):
        pass


class Waits(BasicBolt):
    async def execute(self, tup, collector):
        await asyncio.sleep(3600)


def run(caplog, config=None, **bolts):
    """The warnings, and why messages failed, of a topology with these bolts and their timeouts."""
    feeder, builder = FeederSpout(["n"]), TopologyBuilder("t")
    builder.set_spout("numbers", feeder)
    for name, (bolt, secs) in bolts.items():
        declared = builder.set_bolt(name, bolt).shuffle_grouping("numbers")
        if secs is not None:
            declared.set_execute_timeout_secs(secs)
    with caplog.at_level(logging.WARNING), LocalCluster() as cluster:
        cluster.submit(builder.create_topology(), config=config)
        feeder.feed([1], message_id=1)
        cluster.advance()
    warnings = [each.getMessage() for each in caplog.records if each.module == "local_cluster"]
    return warnings, [failure.reason for _, failure in feeder.failed]


def test_a_coroutine_is_cancelled_after_its_timeout(caplog):
    warnings, [reason] = run(caplog, waits=(Waits(), 0.05))
    assert "execute took longer than execute_timeout_secs=0.05" in reason
    assert warnings == []


@pytest.mark.parametrize(
    "config", [None, Config(execute_timeout_secs=None), Config(execute_timeout_secs=300)]
)
def test_without_a_timeout_of_ones_own_nothing_is_said(caplog, config):
    assert run(caplog, config, plain=(Plain(), None)) == ([], [])


@pytest.mark.parametrize(
    ("config", "secs"),
    [(None, 5), (Config(execute_timeout_secs=7), None), (Config(execute_timeout_secs=7), 5)],
)
def test_one_line_names_the_plain_bolts_whose_timeout_is_not_kept(caplog, config, secs):
    [said], _ = run(caplog, config, slow=(Plain(), secs), waits=(Waits(), 0.05))
    assert said.startswith("topology=t the execute timeout is not kept in LocalCluster")
    assert "of slow:" in said
