"""A driver to be killed: ``python -m tests.spark.driver SPOUT FOLDER COUNT`` counts COUNT numbers."""

from __future__ import annotations

import sys
from pathlib import Path

from acktree import AcktreeError, Config, Topology, submit
from tests.spark.topologies import FileQueueSpout, NotingIterableSpout, counted, held_up


def topology_over(spout: str, folder: Path, count: int) -> Topology:
    """numbers -> keys -> counts, over a queue or a range; or numbers of a queue that are held up."""
    noted, notebook = folder / "noted", folder / "notes"
    notebook.mkdir(exist_ok=True)
    if spout in {"queue", "held up"}:
        queue = folder / "queue"
        if not queue.exists():
            queue.mkdir()
            for number in range(count):
                (queue / str(number)).touch()
        if spout == "held up":
            return held_up(FileQueueSpout(queue, noted), folder / "stuck")
        return counted(FileQueueSpout(queue, noted), notebook)
    return counted(NotingIterableSpout(range(count), ["n"], noted), notebook)


def run(topology: Topology, folder: Path) -> None:
    """Submit it, and wait for its end."""
    config = Config(max_spout_pending=300, message_timeout_secs=300)
    with submit(topology, checkpoint=folder / "checkpoint", config=config) as running:
        running.await_termination()


if __name__ == "__main__":
    name, place, numbers = sys.argv[1:]
    try:
        run(topology_over(name, Path(place), int(numbers)), Path(place))
    except AcktreeError as error:
        if "Java process" in error.what:  # as a program that tries again
            try:
                run(topology_over(name, Path(place), int(numbers)), Path(place))
            except AcktreeError as again:
                sys.stdout.write(f"again: {again.what}\n")
        raise
