"""Connectors on Spark while drivers and servers are killed, leases are short, or connections are cut.

    python -m benchmarks brokers --broker rabbitmq --kills 10 --server-kills 5 --seed 1
    python -m benchmarks brokers --broker rabbitmq --mode leases
    python -m benchmarks brokers --broker rabbitmq --mode cuts

``kills`` puts messages at ``--rate``, kills the driver and the server (SIGKILL), and makes the account of
every message: none lost, none acknowledged without its effects, and each effect that happened again with its
cause. SQS's server keeps its messages in memory: there the way to it is what is taken away.

``leases``: heartbeat, lease or poll limit are 4 s, micro-batches take 30 s, and the topology is deactivated
for 60 s. No connection may be lost, and nothing may be delivered twice. Then the CPU at rest is measured.

``cuts``: two messages fail until a ``Retry`` gives them up, and the connection is cut at each moment. There
must be two dead letters: acktree's, or with ``--reject`` the broker's.

Each starts a server of its own. Exits with 1 if something is wrong; the folder is then kept. The code is in
``tests/brokers``. One line of JSON.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, add_keep_argument, print_line

BROKERS: Final = ("rabbitmq", "rabbitmq-quorum", "kafka", "kafka-native", "redis", "sqs")
_RATE: Final = 200.0
_RATES: Final = {"sqs": 20.0}  # moto takes no more


def kills(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill drivers and servers; the account."""
    runs = import_module("tests.brokers.kills")
    with _queue(given.broker) as queue:
        result = runs.perform(folder, queue, given.seed, given.kills, given.server_kills, given.rate, _say)
    for name, found in result.account.findings.items():
        _say(f"{name}: {len(found)}, such as {found[:3]}")
    planned = {"seed": given.seed, "kills": given.kills, "server_kills": given.server_kills}
    return {**planned, "rate": given.rate, **result.to_json()}


def leases(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Short leases, long micro-batches, and the CPU at rest."""
    runs = import_module("tests.brokers.leases")
    times = runs.Times(micro_batch=given.micro_batch_secs, deactivated=given.deactivated_secs)
    with _queue(given.broker, lease_secs=times.lease) as queue, _session() as session:
        found = runs.perform(folder, queue, session, times, _say)
    return {**found.to_json(), "times": asdict(times)}


def cuts(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A cut at each moment; the dead letters."""
    runs = import_module("tests.brokers.cuts")
    with _queue(given.broker, rejects=given.reject) as queue, _session() as session:
        found = [
            runs.perform(folder / moment.name.lower(), queue, session, moment, at * runs.MESSAGES, _say)
            for at, moment in enumerate(runs.Moment)
        ]
    return {"clean": all(each.is_clean for each in found), "moments": [each.to_json() for each in found]}


MODES: Final[Mapping[str, Callable[[argparse.Namespace, Path], dict[str, Any]]]] = {
    "kills": kills,
    "leases": leases,
    "cuts": cuts,
}


@contextmanager
def _queue(broker: str, **settings: Any) -> Iterator[Any]:  # noqa: ANN401  # of the queue's class
    """The queue, on a server that is gone in the end."""
    queue = import_module("tests.brokers.queues").QUEUES[broker](**settings)
    try:
        yield queue
    finally:
        queue.remove()


@contextmanager
def _session() -> Iterator[Any]:
    """A session of Spark, with Kafka's source if its jars are there."""
    with import_module("tests.services.kafka").start_with_source("brokers") as session:
        yield session


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, run, print a line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks brokers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--broker", choices=BROKERS, required=True)
    parser.add_argument("--mode", choices=MODES, default="kills")
    parser.add_argument("--kills", type=int, default=10, help="of the driver")
    parser.add_argument("--server-kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, help="messages a second; 200, and 20 for SQS")
    parser.add_argument("--micro-batch-secs", type=float, default=30, help="with --mode leases")
    parser.add_argument("--deactivated-secs", type=float, default=60, help="with --mode leases")
    parser.add_argument("--reject", action="store_true", help="with --mode cuts: given_up='reject'")
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    if given.reject and given.broker not in ("rabbitmq", "rabbitmq-quorum", "sqs"):
        parser.error(f"{given.broker} has no dead letters of its own")
    given.rate = given.rate or _RATES.get(given.broker, _RATE)
    report = Report("brokers", {"broker": given.broker, "mode": given.mode, "reject": given.reject})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and drivers end with this process
    folder, began = Path(tempfile.mkdtemp(prefix="acktree-brokers-")), time.monotonic()
    found = MODES[given.mode](given, folder)
    if found["clean"]:
        shutil.rmtree(folder)
    else:
        _say(f"kept in {folder}")
    print_line(report.line({"secs": round(time.monotonic() - began), **found}), keep=given.keep)
    sys.exit(0 if found["clean"] else 1)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
