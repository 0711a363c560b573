"""The word count on a cluster that shares nothing: driver, workers and HDFS are on hosts of their own.

    python -m benchmarks hosts --bolts arrow --cores 4

The hosts are network and mount namespaces of this machine, as in ``shared_nothing``: each has a network and
folders of its own. There is a worker of one core for each of ``--cores``. The checkpoint is on HDFS.
``submit`` sends acktree and the bolts to the workers, which have neither. CPU is that of all hosts, HDFS
included. The other arguments are those of ``word_count``. Needs root and iproute2. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.places import MISSING
from benchmarks.report import add_keep_argument, print_line
from benchmarks.sessions import Place, session_on
from benchmarks.word_count import add_time_arguments, add_variant_arguments, measure, variant_of
from benchmarks.work import Variant
from tests.chaos.namespaces import missing, network
from tests.chaos.shared_nothing import hdfs
from tests.services.hdfs import minicluster
from tests.spark.standalone import SPARK_HOME, Host, Standalone, standalone

_ROOT: Final = Path(__file__).parent.parent
_NAMES: Final = "names"
_DRIVER: Final = "driver"


@dataclass(frozen=True)
class Hosts:
    """A running cluster.

    Attributes:
        driver: Where the driver shall run.
        files: The URL of HDFS.
        spark: Its master, and what workers run Python tasks with.
    """

    driver: Host
    files: str
    spark: Standalone


@contextmanager
def cluster(workers: int, delay_ms: float) -> Iterator[Hosts]:
    """A cluster, until the block is left.

    Args:
        workers: How many hosts there are with a worker of one core.
        delay_ms: How long a packet takes, where the kernel can delay it.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="acktree-hosts-")))
        jar = minicluster()
        installed = [Path(sys.prefix), Path(sys.base_prefix), SPARK_HOME.parent]
        names = [f"worker-{number}" for number in range(workers)]
        seen = {_NAMES: [_ROOT, *installed, jar.parent], _DRIVER: [_ROOT, folder, *installed]}
        seen |= {name: [folder, *installed] for name in names}
        hosts = running.enter_context(network(seen, delay_ms=delay_ms)).hosts
        files = running.enter_context(hdfs(hosts[_NAMES], folder / "hdfs.log", jar))
        places = [hosts[name] for name in (_DRIVER, *names)]
        yield Hosts(hosts[_DRIVER], files, running.enter_context(standalone(folder, workers, hosts=places)))


def run(hosts: Hosts, variant: Variant, warm_up_secs: float, secs: float) -> dict[str, Any]:
    """Run a word count, with its driver on the driver's host; its line.

    Raises:
        subprocess.CalledProcessError: It failed; what it printed to stderr was passed on.
    """
    order = {
        "variant": asdict(variant),
        "secs": (warm_up_secs, secs),
        "address": hosts.driver.address,
        "checkpoint": f"{hosts.files}/word-count",
        "below": os.getpid(),
    }
    environment = {
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": str(hosts.spark.python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": hosts.driver.address,
    }
    command = [*hosts.driver.enter, sys.executable, "-m", "benchmarks.hosts", json.dumps(order)]
    done = subprocess.run(  # noqa: S603  # a fixed command
        command, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | environment
    )
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def run_here(order: Mapping[str, Any]) -> dict[str, Any]:
    """On the driver's host: what :func:`run` orders."""
    variant = Variant(**order["variant"])
    assert variant.master is not None, "the cluster's"
    place = Place(session_on(variant.master, order["address"]), order["checkpoint"], order["below"])
    warm_up_secs, secs = order["secs"]
    return measure(variant, warm_up_secs, secs, place)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, print a line of JSON; exit code 3 where there can be no hosts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks hosts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--delay-ms", type=float, default=0.5, help="how long a packet takes, with netem")
    add_variant_arguments(parser)
    add_time_arguments(parser)
    add_keep_argument(parser)
    args = parser.parse_args(arguments)
    if why := missing():
        print(why, file=sys.stderr)
        sys.exit(MISSING)
    variant = variant_of(args)  # pins this process, and so all hosts
    with cluster(variant.cores, args.delay_ms) as hosts:
        line = run(hosts, replace(variant, master=hosts.spark.url), args.warm_up, args.secs)
    line |= {
        "benchmark": "hosts",
        "variant": line["variant"] | {"master": f"standalone[{variant.cores}]"},
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
    }
    print_line(line, keep=args.keep)


if __name__ == "__main__":
    print_line(run_here(json.loads(sys.argv[1])), keep=False)
