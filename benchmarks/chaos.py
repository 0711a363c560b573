"""Injects random faults and makes the account. ``python -m benchmarks chaos --kills 200 --seed 7``.

Strikes a running topology (workers, executors, drivers, pauses, pipes, disks, files, clocks), waits until it
has nothing left to do, and makes the account: every message acked or dead, no ack without its effects. The
folder of a run with a breach is kept. The code is in ``tests/chaos``. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import results
from benchmarks.report import Report, add_keep_argument, print_line
from tests.chaos.chaos import drawn_again, perform
from tests.chaos.conductor import Settings
from tests.chaos.plan import SHARES, Kind, mixture

_STORY: Final = ("story", "examples", "kept", "left_out")
"""Parts of a run's line that are needed only to examine that run."""
_LINE: Final = "line.json"
"""The file with the line of JSON, in a kept folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one chaos; exit code 1 if it was not clean."""
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=20, help="strikes in all, in the usual mixture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kinds",
        help="which kinds (worker,driver), or how many of each (worker=3,driver=2); all of them unless said",
    )
    parser.add_argument(
        "--master", default="local[2,4]", help="local-cluster[2,1,1024] has executors to kill"
    )
    parser.add_argument("--real-time", action="store_true", help="by epochs; --master means nothing then")
    parser.add_argument("--rate", type=float, default=Settings.rate, help="messages a second")
    parser.add_argument(
        "--patience", type=float, default=Settings.patience_secs, help="seconds until it hangs"
    )
    parser.add_argument("--secs", type=float, help="stop striking after this number of seconds")
    parser.add_argument("--folder", type=Path, help="where; kept if it is not clean")
    parser.add_argument("--keep-folder", action="store_true", help="keep the folder also when it is clean")
    parser.add_argument(
        "--account", type=Path, metavar="FOLDER", help="strike nothing: draw up a kept folder's account again"
    )
    add_keep_argument(parser)
    given = parser.parse_args(arguments)
    if given.account is not None:
        line = drawn_again(json.loads((given.account / _LINE).read_text()), given.account)
        _end_with(line, is_kept=given.keep)
    settings = Settings(
        master=given.master,
        queue_retries=given.seed % 2 == 0,  # in half of the runs the queue retries
        rate=given.rate,
        real_time=given.real_time,
        patience_secs=given.patience,
    )
    counts = counts_of(given.kinds, given.kills, has_executors=given.master.startswith("local-cluster"))
    report = Report("chaos", {"rate": settings.rate, "message_timeout_secs": settings.message_timeout_secs})
    result = perform(
        given.seed, counts, settings, _say, given.folder, keep=given.keep_folder, strike_secs=given.secs
    )
    line = report.line(result.to_json())
    if result.kept is not None:
        (result.kept / _LINE).write_text(json.dumps(line))
    _end_with(line, is_kept=given.keep)


def _end_with(line: Mapping[str, Any], *, is_kept: bool) -> NoReturn:
    print_line(line, keep=False)
    if is_kept:
        results.keep("chaos", worth_keeping(line))
    sys.exit(0 if line["clean"] else 1)


def counts_of(kinds: str | None, kills: int, *, has_executors: bool) -> dict[Kind, int]:
    """How many strikes of each kind."""
    if kinds is None:
        return mixture(kills, [kind for kind in SHARES if has_executors or kind is not Kind.EXECUTOR])
    named = [part.partition("=") for part in kinds.split(",")]
    if all(count for _, _, count in named):
        return {Kind(kind): int(count) for kind, _, count in named}
    return mixture(kills, [Kind(kind) for kind, _, _ in named])


def worth_keeping(line: Mapping[str, Any]) -> dict[str, Any]:
    """A run's line without the parts that are needed only with its folder."""
    return {key: value for key, value in line.items() if key not in _STORY}


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
