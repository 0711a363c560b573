"""``acktree top`` and ``monitor``: the numbers of a running topology, again and again."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from acktree.cli.answers import Answer, Commands, door_of, duration, limit, new_command, seconds, table
from acktree.cli.watch import ACCOUNTS, account_line
from acktree.core.stats.counters import WHATS
from acktree.errors import ConfigError, nearest
from acktree.ui.client import find
from acktree.ui.snapshot import RECENT, RUN, Snapshot

_MOST_TIMES: Final = 1_000_000_000
_CLEAR: Final = "\x1b[H\x1b[2J"


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    to_top = new_command(commands, "top", "rates and loads of the last ten seconds, live", _top)
    to_monitor = new_command(commands, "monitor", "the rate of one component, a line at a time", _monitor)
    to_monitor.add_argument(
        "-m", "--component", metavar="ID", help="the component (default: the first spout)"
    )
    to_monitor.add_argument("-s", "--stream", default="default", help="the stream (default: default)")
    to_monitor.add_argument(
        "-w", "--watch", choices=WHATS, default="emitted", metavar="COUNT",
        help=f"what to show: {', '.join(WHATS)} (default: emitted)",
    )  # fmt: skip
    for parser, secs, one in ((to_top, 2.0, "screen"), (to_monitor, 4.0, "line")):
        parser.add_argument(
            "-i", "--interval", type=seconds, default=secs, metavar="SECS",
            help=f"the time from one {one} to the next (default: {secs:g})",
        )  # fmt: skip
        parser.add_argument(
            "-n", "--count", type=limit(_MOST_TIMES), metavar="N", help=f"stop after N {one}s"
        )


def _snapshots(options: Namespace) -> Iterator[Snapshot]:
    """A snapshot at once and then at every interval.

    Raises:
        NobodyRunsError: The driver is gone.
        TimeoutError: ``--timeout`` is over.
    """
    door, seen = door_of(find(options.topology), options), 0
    end = inf if options.timeout is None else time.monotonic() + options.timeout
    while True:
        yield door.snapshot(min(1.0, options.interval / 2))
        seen += 1
        if options.count is not None and seen >= options.count:
            return
        left_secs = end - time.monotonic()
        time.sleep(max(0.0, min(options.interval, left_secs)))
        if left_secs <= options.interval:
            raise TimeoutError(f"{options.timeout:g} s are over")


def _top(options: Namespace) -> Iterable[Answer]:
    clear = _CLEAR if sys.stdout.isatty() and not options.json else ""
    if clear:
        sys.stdout.write(clear)
    for snapshot in _snapshots(options):
        window, now = snapshot.windows[RECENT], snapshot.stats
        rows = []
        for name in (*snapshot.spouts, *snapshot.gates, *snapshot.bolts):
            all_time, recent = now[name], window.stats[name]
            rows.append((
                name, round(window.rate(name, "emitted")), round(window.rate(name, "executed")),
                round(window.rate(name, "acked")), round(window.rate(name, "failed"), 1),
                round(window.rate(name, "timed_out"), 1), f"{snapshot.capacity(window, name):.0%}",
                recent.total.execute_ms, recent.total.complete_ms, all_time.open, all_time.lag,
            ))  # fmt: skip
        head = (
            "component", "emit/s", "exec/s", "ack/s", "fail/s", "timeout/s", "busy", "execute ms",
            "complete ms", "open", "lag",
        )  # fmt: skip
        title = (
            f"{snapshot.id}  {snapshot.status}  for {duration(snapshot.uptime_secs)}\n"
            f"{ACCOUNTS[RUN]}: {account_line(snapshot.account())}"
        )
        if gates := snapshot.gate_account():
            title += f"\ngates: {account_line(gates)}"
        if clear:
            sys.stdout.write(clear)
        data = {
            "id": snapshot.id, "status": snapshot.status, "taken_ms": snapshot.taken_ms,
            "account": snapshot.account(), "accounts": snapshot.accounts, "gates": snapshot.gate_accounts,
            "components": {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows},
        }  # fmt: skip
        yield Answer(data, f"{title}\n{table(head, rows)}\n")


def _monitor(options: Namespace) -> Iterable[Answer]:
    head = "topology\tcomponent\tparallelism\tstream\ttime-diff ms\t{}\tthroughput (Kt/s)"
    before: tuple[int, int] | None = None
    for snapshot in _snapshots(options):
        name = options.component or next(iter(snapshot.spouts), "")
        if name not in snapshot.stats.components:
            raise ConfigError(
                f"there is no component {name!r}", "-m", nearest(name, snapshot.stats.components)
            )
        count = _counted(snapshot, name, options.stream, options.watch)
        if before is None:
            yield Answer(None, head.format(options.watch))
        diff_ms, grown = (0, 0) if before is None else (snapshot.taken_ms - before[0], count - before[1])
        before = snapshot.taken_ms, count
        rate = grown / diff_ms if diff_ms > 0 else 0.0
        parallelism = snapshot.graph["components"][name]["parallelism"]
        row = {
            "topology": snapshot.topology, "component": name, "parallelism": parallelism,
            "stream": options.stream, "time_diff_ms": diff_ms, options.watch: grown, "throughput_kt_s": rate,
        }  # fmt: skip
        line = f"{snapshot.topology}\t{name}\t{parallelism}\t{options.stream}\t{diff_ms}\t{grown}\t{rate:.3f}"
        yield Answer(row, line.expandtabs(12))


def _counted(snapshot: Snapshot, component: str, stream: str, what: str) -> int:
    """One count of a component: of what it emits to a stream, and of what a bolt reads from it.

    Raises:
        ConfigError: It neither emits to such a stream nor reads one.
    """
    found = snapshot.stats[component]
    if what == "errors":  # they belong to no stream
        return found.total.errors
    read = (each for each in snapshot.graph["subscriptions"] if each["subscriber"] == component)
    known = {*snapshot.graph["components"][component]["streams"], *(each["stream"] for each in read)}
    if stream not in known:
        raise ConfigError(
            f"component {component!r} has no stream {stream!r}", "-s", nearest(stream, sorted(known))
        )
    of_stream = (numbers for name, numbers in found.streams.items() if name.rpartition(":")[2] == stream)
    return sum(int(getattr(numbers, what)) for numbers in of_stream)
