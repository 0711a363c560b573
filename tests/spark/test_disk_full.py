"""No space left on the checkpoint's disk: reported as such, and the topology continues once there is room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acktree import BasicBolt, Config, KeyValueState, Retry, TopologyBuilder, submit
from acktree.errors import CheckpointError
from tests.chaos.environment import Disk
from tests.spark.test_running import wait_until
from tests.spark.topologies import FileQueueSpout, NotingIterableSpout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acktree import Topology
    from acktree.driver.handle import SubmittedTopology

MB = 1 << 20
SMALL, LARGE = 20, 5
"""The messages that fit in any case, and those that come once the disk is full."""
RETRY = Retry(max_attempts=1)
SPOUTS = "positions", "queued"
"""Where each spout notes its verdicts."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 16 MB, for the checkpoint alone."""
    disk = Disk(tmp_path / "disk", megabytes=16)
    if not disk.can_be_full:
        pytest.skip("a small disk can only be mounted by root, in a container with CAP_SYS_ADMIN")
    try:
        yield disk
    finally:
        disk.close()


class Gated(NotingIterableSpout):
    """The first messages at once, the large ones when a file is there; acktree brings back what is open."""

    def __init__(self, noted: Path, gate: Path, large: int):
        super().__init__(lambda: ([n, os.urandom(large if n >= SMALL else 8)] for n in range(SMALL + LARGE)),
                         ["n", "payload"], noted)  # fmt: skip
        self.gate = gate

    def next_tuple(self):
        if self.position < SMALL or self.gate.exists():
            super().next_tuple()


class GatedQueue(FileQueueSpout):
    """The same from a queue, which brings back what is open by itself."""

    outputs = ["n", "payload"]

    def __init__(self, queue: Path, noted: Path, gate: Path, large: int):
        super().__init__(queue, noted)
        self.gate, self.large = gate, large

    def next_tuple(self):
        if self.ready and (int(self.ready[-1].name) < SMALL or self.gate.exists()):
            number = int(self.ready.pop().name)
            payload = os.urandom(self.large if number >= SMALL else 8)
            self.collector.emit([number, payload], message_id=number)


class Remembers(BasicBolt):
    """Remembers some bytes of each of the later messages; raises on them if the test asks for it."""

    outputs = []
    remembers = ["seen"]

    def __init__(self, size: int, *, raises: bool = False):
        self.size, self.raises = size, raises

    def prepare(self, config, context):
        self.seen = KeyValueState()

    def execute(self, tup, collector):
        if tup["n"] >= SMALL:
            if self.raises:
                raise ValueError(f"{tup['n']} is poison")
            self.seen[tup.values[0]] = os.urandom(self.size)


def gated(folder: Path, *, large: int = 8, remembered: int = 8) -> Topology:
    """Both kinds of spout, and a bolt that remembers."""
    queue = folder / "queue"
    if not queue.exists():
        queue.mkdir()
        for number in range(SMALL + LARGE):
            (queue / str(number)).touch()
    builder = TopologyBuilder("gated")
    builder.set_spout("positions", Gated(folder / "positions", folder / "gate", large))
    builder.set_spout("queue", GatedQueue(queue, folder / "queued", folder / "gate", large))
    bolt = builder.set_bolt("remembers", Remembers(remembered), parallelism=2)
    bolt.fields_grouping("positions", ["n"]).fields_grouping("queue", ["n"])
    return builder.create_topology()


def acked(folder: Path, spout: str) -> list[int]:
    file = folder / spout
    return sorted(int(line.split()[1]) for line in file.read_text().splitlines()) if file.exists() else []


def until(running: SubmittedTopology, done: Callable[[], bool]) -> None:
    """Wait; whatever stopped the topology meanwhile is raised."""
    wait_until(lambda: done() or running.await_termination(0))


@pytest.mark.parametrize(
    ("large", "remembered", "where", "says"),
    [
        (MB, 8, "/inbox (", "no space left on a disk"),
        # Spark does not pass the reason on; another file of the checkpoint may be the first without room.
        (8, MB, "/checkpoint (", "is full or nearly so|no space left on a disk"),
    ],
    ids=["while spouts hand over to the inbox", "while state is committed"],
)
def test_a_full_disk_stops_the_topology_with_its_name_and_every_message_has_one_verdict_once_there_is_room(
    spark: SparkSession, disk: Disk, tmp_path: Path, large: int, remembered: int, where: str, says: str
) -> None:
    topology = gated(tmp_path, large=large, remembered=remembered)
    place, config = disk.folder / "checkpoint", Config(max_spout_pending=300)
    with submit(topology, checkpoint=place, spark=spark, config=config) as running:
        until(running, lambda: all(len(acked(tmp_path, spout)) == SMALL for spout in SPOUTS))
        assert running.await_idle(60)
        disk.fill(leave=MB // 2)
        (tmp_path / "gate").touch()
        with pytest.raises(CheckpointError, match=says) as stopped:
            running.await_termination(timeout_secs=120)
    assert where in stopped.value.where
    assert "submit again on the same checkpoint" in stopped.value.fix
    assert [len(acked(tmp_path, spout)) for spout in SPOUTS] == [SMALL, SMALL]
    disk.fill()
    with pytest.raises(CheckpointError, match="no space left on a disk"):
        submit(topology, checkpoint=place, spark=spark, config=config)
    disk.free()
    with submit(topology, checkpoint=place, spark=spark, config=config) as running:
        until(running, lambda: all(len(acked(tmp_path, spout)) >= SMALL + LARGE for spout in SPOUTS))
        assert running.await_idle(60)
    for spout in SPOUTS:
        assert acked(tmp_path, spout) == list(range(SMALL + LARGE))


def test_a_dead_letter_that_finds_no_room_waits_and_so_does_its_verdict(
    spark: SparkSession, disk: Disk, tmp_path: Path
) -> None:
    builder = TopologyBuilder("poisoned")
    builder.set_spout("positions", Gated(tmp_path / "noted", tmp_path / "gate", MB), retry=RETRY)
    builder.set_bolt("raises", Remembers(8, raises=True)).fields_grouping("positions", ["n"])
    topology = builder.create_topology()
    config = Config(max_spout_pending=1)  # one large message at a time
    with submit(topology, checkpoint=disk.folder / "checkpoint", spark=spark, config=config) as running:
        until(running, lambda: len(acked(tmp_path, "noted")) == SMALL)
        disk.fill(leave=3 * MB // 2)
        (tmp_path / "gate").touch()
        until(running, lambda: any("full" in error.reason for error in running.stats().errors))
        assert (len(running.dead_letters), running.stats()["positions"].open) == (0, 1)
        assert running.is_running
        disk.free()
        assert running.await_termination(120)
        assert [letter.values[0] for letter in running.dead_letters] == list(range(SMALL, SMALL + LARGE))
    noted = sorted(line.split() for line in (tmp_path / "noted").read_text().splitlines())
    assert noted == sorted(["failed" if n >= SMALL else "acked", str(n)] for n in range(SMALL + LARGE))
