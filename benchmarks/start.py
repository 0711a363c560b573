"""From ``submit`` to the first ack of a fresh process, in seconds and in CPU.

    python -m benchmarks start --stateful 1
    python -m benchmarks start --rounds 5       # with and without the archive of classes, in turn

A word count of two lines, with the given number of stateful bolts in a row. Compare two versions of acktree
in turn, each from its own folder; the CPU of all processes is easier to compare than seconds. With
``--rounds`` each run is a separate process, and the first one, which may write the archive, is left out. One
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from acktree import BasicBolt, IterableSpout, KeyValueState, Topology, TopologyBuilder, bolt, submit
from benchmarks import machine
from benchmarks.report import Report, add_keep_argument, print_line

_SWITCH: Final = "ACKTREE_CLASS_ARCHIVE"
_MEASURED: Final = ("submit_secs", "first_ack_secs", "cpu_secs")
_MOST_SECS: Final = 300.0
LINES = ("the cow jumped", "over the moon")


@bolt(outputs=["word"])
def split(tup: Any) -> Any:  # noqa: ANN401  # as users write it
    """The words of a line."""
    for word in tup["line"].split():
        yield [word]


class Count(BasicBolt):
    """Counts a word, and passes it on."""

    outputs = ("word",)
    remembers = ("counts",)

    def prepare(self, config: Any, context: Any) -> None:  # noqa: ANN401
        self.counts: KeyValueState[str, int] = KeyValueState()

    def execute(self, tup: Any, collector: Any) -> None:  # noqa: ANN401
        self.counts[tup["word"]] = self.counts.get(tup["word"], 0) + 1
        collector.emit([tup["word"]])


def topology_of(stateful: int) -> Topology:
    """The topology, with this number of stateful levels."""
    builder = TopologyBuilder("start")
    builder.set_spout("lines", IterableSpout(LINES, outputs=["line"]))
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("lines")
    above = "split"
    for number in range(stateful):
        builder.set_bolt(f"count-{number}", Count(), parallelism=2).fields_grouping(above, ["word"])
        above = f"count-{number}"
    return builder.create_topology()


def measure(stateful: int) -> dict[str, Any]:
    """Start a topology once."""
    report = Report("start", {"stateful": stateful})
    with tempfile.TemporaryDirectory(prefix="acktree-benchmark-") as folder:
        clock, began = machine.Clock(), time.monotonic()
        with submit(topology_of(stateful), checkpoint=Path(folder) / "checkpoint") as running:
            submitted = time.monotonic()
            while not running.stats()["lines"].total.acked:
                time.sleep(0.02)
            acked, cost = time.monotonic(), clock.cost()
    return report.line(
        {
            "submit_secs": round(submitted - began, 2),
            "first_ack_secs": round(acked - began, 2),
            "cpu_secs": round(cost.ours, 2),
        }
    )


def in_turn(stateful: int, rounds: int) -> dict[str, Any]:
    """Fresh processes with and without the archive of classes: medians, and ratios by round."""
    report, clock = Report("start", {"stateful": stateful, "rounds": rounds}), machine.Clock()
    environments = {"with": os.environ.copy(), "without": os.environ | {_SWITCH: "off"}}
    _in_process(stateful, environments["with"])
    _wait_for_java()
    found: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    for _ in range(rounds):
        for which, environment in environments.items():
            found[which].append(_in_process(stateful, environment))
            shown = {key: found[which][-1][key] for key in _MEASURED}
            print(f"  {which}: {shown}", file=sys.stderr, flush=True)
    medians = {
        which: {key: statistics.median(run[key] for run in runs) for key in _MEASURED}
        for which, runs in found.items()
    }
    pairs = list(zip(found["with"], found["without"], strict=True))
    ratios = {key: [round(mine[key] / other[key], 3) for mine, other in pairs] for key in _MEASURED}
    return report.line(medians | {"ratios": ratios, "others_cores": round(clock.cost().others, 2)})


def _in_process(stateful: int, environment: Mapping[str, str]) -> dict[str, Any]:
    program = [sys.executable, "-m", "benchmarks", "start", "--stateful", str(stateful)]
    done = subprocess.run(program, check=True, env=environment, capture_output=True, text=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _wait_for_java() -> None:
    """Wait until no JVM writes an archive: the first run's does so after its process has ended."""
    deadline = time.monotonic() + _MOST_SECS
    while any(b"ArchiveClassesAtExit" in command for command in map(_command, Path("/proc").iterdir())):
        if time.monotonic() > deadline:
            sys.exit("a JVM has been writing its archive for minutes")
        time.sleep(0.5)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes() if process.name.isdigit() else b""
    except OSError:
        return b""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure once."""
    parser = argparse.ArgumentParser("python -m benchmarks start", description=__doc__)
    parser.add_argument("--stateful", type=int, default=1, help="how many stateful levels")
    parser.add_argument("--rounds", type=int, help="with and without the archive of classes, so often")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    if given.keep and not given.rounds:
        parser.error("--keep needs --rounds: a single run compares nothing")
    line = in_turn(given.stateful, given.rounds) if given.rounds else measure(given.stateful)
    print_line(line, keep=given.keep)
