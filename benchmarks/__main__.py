"""``python -m benchmarks NAME [arguments]``: the front door. Without a name, what there is."""

from __future__ import annotations

import importlib
import sys
from typing import Final

BENCHMARKS: Final = {
    "word_count": "sentences per second through split and count, tracked or not; one line of JSON",
    "latency": "complete latency at a share of the top rate",
    "idle": "CPU and micro-batches while nothing is open",
    "compare": "named pairs of word counts in turn (A B A B ...), medians and ratios",
    "python_side": "where the Python time of a micro-batch goes, function by function, without Spark",
}


def main() -> None:
    """Hand over to the benchmark that is named."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHMARKS:
        print("usage: python -m benchmarks NAME [--help | arguments]\n")
        print("\n".join(f"  {known:12} {what}" for known, what in BENCHMARKS.items()))
        sys.exit(0 if not name else 2)
    importlib.import_module(f"benchmarks.{name}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
