"""What user code logs in workers and in the driver arrives on the driver's stderr with its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import json, logging, sys
from acktree import BasicBolt, Config, TopologyBuilder, submit
from acktree.testing import FeederSpout

log = logging.getLogger("shop")

class Orders(FeederSpout):
    def ack(self, message_id):
        log.warning("acked %s", message_id)

class Check(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        log.info("checks %s", tup["order"])
        print("prints", tup["order"])

if __name__ == "__main__":
    spout, builder = Orders(["order"]), TopologyBuilder("shop")
    builder.set_spout("orders", spout)
    builder.set_bolt("check", Check(), parallelism=2).shuffle_grouping("orders")
    for number in range(4):
        spout.feed([f"{number}\\n"], message_id=number)
    spout.end()
    config = Config(log_format="json", trace_sample_rate=1, partitions=2)
    with submit(builder.create_topology(), checkpoint=sys.argv[1], config=config) as running:
        assert running.await_termination(120)
        roots = {message.message_id: str(message.root) for message in running.traces.find()}
    print("ROOTS", json.dumps(roots))
"""


def test_as_json_each_line_of_user_code_names_its_place_and_the_root_of_its_tuple(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, program, tmp_path / "checkpoint"],
        capture_output=True, text=True, timeout=240, check=False, env=os.environ,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (said,) = [line for line in ran.stdout.splitlines() if line.startswith("ROOTS ")]
    roots = json.loads(said.removeprefix("ROOTS "))
    objects = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith('{"time"')]
    by_message = {each["message"]: each for each in objects}
    for number in range(4):
        logged, acked = by_message[f"checks {number}\n"], by_message[f"acked {number}"]
        printed = by_message[f"prints {number}"]
        assert (logged["logger"], printed["logger"], acked["logger"]) == ("shop", "stdout", "shop")
        for each in (logged, printed):
            assert (each["topology"], each["component"]) == ("shop", "check")
            assert each["root"] == roots[str(number)]
            assert each["micro_batch"] >= 0
        assert (acked["topology"], acked["component"]) == ("shop", "orders")
        assert "root" not in acked
    assert {by_message[f"checks {number}\n"]["task"] for number in range(4)} <= {1, 2, 3}
    assert any(each["message"].startswith("topology=shop is over") for each in objects)
    assert all(each["topology"] == "shop" for each in objects if each["message"].startswith("topology="))
