"""A driver whose bolt is a child process, to be killed: ``python -m tests.spark.shell_driver FOLDER``.

It counts on until there is a file ``enough``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from acktree import Config, EndOfStream, Retry, TopologyBuilder, submit
from acktree.multilang import ShellBolt
from tests.spark.topologies import NotingIterableSpout

CHILD = Path(__file__).parent / "noting_child.py"


class UntilEnough(NotingIterableSpout):
    def next_tuple(self):
        if (self.noted.parent / "enough").exists():
            raise EndOfStream
        super().next_tuple()


def main(folder: Path) -> None:
    builder = TopologyBuilder("killed")
    numbers = UntilEnough(range(10_000_000), ["n"], folder / "noted")
    builder.set_spout("numbers", numbers, retry=Retry(1_000, backoff_secs=(0.05, 0.05)))
    shell = ShellBolt([sys.executable, "-I", "-S", str(CHILD), str(folder)])
    builder.set_bolt("shell", shell, parallelism=2).shuffle_grouping("numbers")
    config = Config(partitions=2, max_spout_pending=200, message_timeout_secs=600)
    with submit(builder.create_topology(), checkpoint=folder / "checkpoint", config=config) as running:
        running.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
