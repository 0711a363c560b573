"""What a sentence costs through a program of Storm's: a class of pystorm in this process, and children.

    python -m benchmarks children --rounds 10

In each round the same sentences of six words are split by each kind of bolt in a ``LocalCluster``, in an
order that turns, so that a busy neighbour disturbs all alike. Measured is the CPU time of this process alone,
not of the child; ratios are by the function bolt of the same round. The children are the examples in
``examples/multilang``, and a class of pystorm in JSON and in msgpack.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any, Final, TypeAlias

import acktree
from acktree import AnyBolt, TopologyBuilder, Tuple, bolt
from acktree.multilang import ShellBolt
from acktree.streamparse import Bolt, Spout, Topology, load
from acktree.testing import FeederSpout, LocalCluster
from benchmarks import work
from benchmarks.report import Report, add_keep_argument, print_line

EXAMPLES: Final = Path(__file__).parents[1] / "examples" / "multilang"
_MICRO_BATCH: Final = 1_000
Build: TypeAlias = Callable[[FeederSpout], acktree.Topology]
_RUN: Final = "from acktree.pystorm.run import main; main()"


@bolt(outputs=["word"])
def split(tup: Tuple) -> Iterator[list[str]]:
    """The words of a sentence."""
    for word in tup["sentence"].split():
        yield [word]


class Sentences(Spout):
    """Is replaced by a feeder."""

    outputs = ["sentence"]


class Split(Bolt):
    """The same as a class of pystorm."""

    outputs = ["word"]

    def process(self, tup: Any) -> None:  # noqa: ANN401  # as a user writes it
        """Emit the words."""
        for word in tup.values[0].split():
            self.emit([word])


class Splitting(Topology):
    """A topology with it."""

    sentences = Sentences.spec()
    split = Split.spec(inputs=[sentences])


def _of_bolt(given: AnyBolt) -> Build:
    def build(feeder: FeederSpout) -> acktree.Topology:
        builder = TopologyBuilder("split")
        builder.set_spout("sentences", feeder)
        builder.set_bolt("split", given).shuffle_grouping("sentences")
        return builder.create_topology()

    return build


def _kinds() -> dict[str, Build]:
    """How a topology is made of each kind of bolt that can run here."""
    kinds: dict[str, Build] = {
        "function": _of_bolt(split),
        "pystorm": lambda feeder: load(Splitting, replace={"sentences": feeder}).topology,
    }
    for name, command in (("node", ["node", "split.js"]), ("perl", ["perl", "split.pl"])):
        if shutil.which(command[0]) is not None:
            kinds[name] = _of_bolt(ShellBolt(command, ["word", "sentences"], resources=EXAMPLES))
    for serializer in ("json", *(["msgpack"] if find_spec("msgpack") else [])):
        command = [sys.executable, "-c", _RUN, "-s", serializer, "benchmarks.children.Split"]
        kinds[f"pystorm child, {serializer}"] = _of_bolt(ShellBolt(command, ["word"], serializer=serializer))
    return kinds


def cpu_us(build: Build, sentences: Sequence[str]) -> float:
    """CPU microseconds of this process for a sentence. The first micro-batch starts the child."""
    feeder = FeederSpout(["sentence"])
    with LocalCluster() as cluster:
        running = cluster.submit(build(feeder))
        feeder.feed([sentences[0]], message_id=-1)
        cluster.advance(0)
        began = process_time()
        for first in range(0, len(sentences), _MICRO_BATCH):
            for at, sentence in enumerate(sentences[first : first + _MICRO_BATCH], first):
                feeder.feed([sentence], message_id=at)
            cluster.advance(0)
        spent = process_time() - began
        acked = running.stats()["sentences"].total.acked
        if acked != len(sentences) + 1:
            raise RuntimeError(f"{acked} of {len(sentences) + 1} sentences were acked")
    return spent / len(sentences) * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks children",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10, help="how often each kind is measured")
    parser.add_argument("--sentences", type=int, default=5_000, help="in one measurement")
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    report = Report("children", {"rounds": args.rounds, "sentences": args.sentences})
    kinds, sentences = _kinds(), work.sentences(args.sentences, seed=7)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(args.rounds + 1):
        for name in [*kinds] if number % 2 else reversed([*kinds]):
            spent = cpu_us(kinds[name], sentences[:500] if number == 0 else sentences)
            if number:  # the first round warms up
                times[name].append(spent)
    found: dict[str, Any] = {}
    for name, costs in times.items():
        ratios = sorted(each / plain for each, plain in zip(costs, times["function"], strict=True))
        found[name] = {
            "cpu_us": round(statistics.median(costs), 1),
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(ratios[0], 2), round(ratios[-1], 2)],
        }
    print_line(report.line({"kinds": found}), keep=args.keep)


if __name__ == "__main__":
    main()
