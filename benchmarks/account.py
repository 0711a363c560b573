"""The tables of ``docs/chaos.md``, from the kept results of chaos and soak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks import results
from benchmarks.markdown import Line, picture, table, when

_GROWN: Final = {
    "driver_mb": "driver, MB",
    "jvm_mb": "JVM, MB",
    "jvm_heap_mb": "... its heap in use, MB",
    "jvm_beside_heap_mb": "... in use beside the heap, MB",
    "workers_mb": "all workers, MB",
    "checkpoint_mb": "checkpoint, MB",
    "checkpoint_files": "files in it",
    "open": "open messages",
}
"""The numbers of a soak that might grow."""


def tables(folder: Path | None = None) -> str:
    """The accounts, and the latest soak."""
    return f"### Accounts\n\n{chaos(folder)}\n### Half an hour under faults\n\n{soak(folder)}"


def chaos(folder: Path | None = None) -> str:
    """A row for each kept run."""
    rows = [
        (
            str(line["seed"]), f"`{line['master']}`", _numbers(line["strikes"]), str(line["drivers"]),
            *(f"{line['account'][key]:,}" for key in ("messages", "acked", "dead")),
            _breaches(line), _numbers(line["duplicates"]), when(line),
        )
        for line in results.kept("chaos", folder)
    ]  # fmt: skip
    head = ("seed", "master", "strikes", "drivers", "messages", "acked", "dead", "breaches",
            "effects twice, and why", "when, commit")  # fmt: skip
    return table(head, rows)


def soak(folder: Path | None = None) -> str:
    """The latest soak: its numbers over time, and its picture."""
    lines = [line for line in results.kept("soak", folder) if "bolts" not in line["variant"]]  # not by epochs
    if not lines:
        return table((), ())
    line = lines[-1]
    grew = table(
        ("", "after a third", "after two thirds", "in the end"),
        [
            (title, *(f"{size:,.1f}" for size in line["growth"][key].values()))
            for key, title in _GROWN.items()
        ],
    )
    live = ", ".join(f"{point['mb']:.0f}" for point in line["jvm_live"])
    of = sum(book["emitted"] for book in line["account"].values())
    done = sum(book["acked"] + book["dead"] for book in line["account"].values())
    return (
        f"{line['variant']['minutes']:g} minutes, {line['workers_killed']} workers killed, "
        f"{line['processes_stopped']} processes stopped; {of:,} messages emitted, {done:,} with their "
        f"verdict ({when(line)}). Medians:\n\n{grew}\n"
        f"Alive in the JVM after full collections, in their order: {live} MB.\n\n{picture('soak')}\n"
    )


def _breaches(line: Line) -> str:
    """Breaches of the account, and drivers that hung, ended without a strike or left a process running."""
    unasked = [end for end in line["ends"] if end.endswith("after nothing")]
    found = line["account"]["findings"] | dict.fromkeys([*line["hangs"], *line["outlived"], *unasked], 1)
    return _numbers(found) if found or line["clean"] else "it did not come to rest"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "none"
