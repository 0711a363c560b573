"""A driver that dies at a step: ``python -m tests.spark.dying_driver SPOUT FOLDER COUNT STEP [epochs]``.

``SINK`` after a sink has returned that decided something, before the commit is logged; ``TOLD`` when its
spout has the verdicts of a third of the messages.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from acktree import Config, submit
from acktree.spark import submit as putting_together
from acktree.spark.query.sink import QuerySink
from tests.spark.driver import topology_over


class DiesAfterwards(QuerySink):
    """Dies when it has returned, once it has left verdicts for somebody."""

    def take(self, batch_id, results):
        super().take(batch_id, results)
        if any(self.dispatch.__self__._held.get(batch_id, {})):
            os._exit(9)


if __name__ == "__main__":
    name, place, numbers, step, *epochs = sys.argv[1:]
    folder = Path(place)
    if step == "SINK":
        putting_together.QuerySink = DiesAfterwards
    topology = topology_over(name, folder, int(numbers))
    if step == "TOLD":
        spout = type(topology.components["numbers"].user_object)
        ack = spout.ack

        def ack_and_die(self, message_id):
            ack(self, message_id)
            if (folder / "noted").read_text().count("acked") > int(numbers) // 3:
                os._exit(9)

        spout.ack = ack_and_die
    config = Config(max_spout_pending=100, real_time=bool(epochs))
    with submit(topology, checkpoint=folder / "checkpoint", config=config) as running:
        running.await_termination()
