"""The line of JSON of one run: the same format for acktree and peers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from benchmarks import machine, results

_QUANTILES = (50, 90, 99)
LOAD_KEYS = ("load_before", "load_after", "machine", "at", "command")
"""The parts of every line besides the numbers."""


class Report:
    """Begins with its construction, before the run."""

    def __init__(self, benchmark: str, variant: Mapping[str, Any]) -> None:
        """A run of ``benchmark`` in this variant."""
        self._head = {"benchmark": benchmark, "variant": dict(variant)}
        self._load_before = machine.load()

    def line(self, found: Mapping[str, Any], versions: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The results, with the circumstances.

        Args:
            versions: Versions of a peer's software, which is not in this interpreter.
        """
        return {
            **self._head,
            **found,
            "load_before": self._load_before,
            "load_after": machine.load(),
            "machine": {**machine.facts(), **(versions or {})},
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
        }


def throughput(roots: float, secs: float, cost: machine.Cost) -> dict[str, Any]:
    """The numbers that every word count prints, acktree's and the peers'."""
    return {
        "roots_per_sec": round(roots / secs),
        "roots": round(roots),
        "secs": round(secs, 2),
        "cpu_us_per_root": round(cost.ours / roots * 1e6, 2),
        "cpu_us_by_process": cost.us_per(roots),
        "others_cores": round(cost.others, 2),
    }


def quantiles_ms(waits_ms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    """``p50_ms`` and so on, and the longest."""
    found = np.percentile(waits_ms, _QUANTILES)
    named = {f"p{name}_ms": round(float(value), 1) for name, value in zip(_QUANTILES, found, strict=True)}
    return named | {"max_ms": round(float(waits_ms.max()), 1)}


def add_keep_argument(parser: argparse.ArgumentParser) -> None:
    """``--keep``: for the runs that the docs show."""
    parser.add_argument("--keep", action="store_true", help="also add the line to benchmarks/results")


def print_line(line: Mapping[str, Any], *, keep: bool) -> None:
    """Print the line; with ``keep`` also add it to the results."""
    print(json.dumps(line), flush=True)
    if keep:
        results.keep(str(line["benchmark"]), line)
