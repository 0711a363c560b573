"""The results in git: a file for each comparison or benchmark, with a line for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "results"


def keep(name: str, line: Mapping[str, Any], folder: Path | None = None) -> Path:
    """Add a line to the file of this name; returns the file."""
    file = (folder or FOLDER) / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")
    return file


def kept(name: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """All lines of a file, the oldest first; none if it is not there."""
    file = (folder or FOLDER) / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def ratio(
    first: str, second: str, metric: str, folder: Path | None = None
) -> tuple[dict[str, Any], dict[str, float]] | None:
    """The latest comparison first / second, and its ratio of this metric; None if there is none."""
    lines = kept(name_of(first, second), folder)
    found = lines[-1]["ratios"].get(metric) if lines else None
    return None if found is None else (lines[-1], found)


def names(folder: Path | None = None) -> list[str]:
    """The names that have results."""
    return sorted(file.stem for file in (folder or FOLDER).glob("*.jsonl"))


def name_of(first: str, second: str) -> str:
    """The name of the results of the comparison first / second."""
    return f"{first}_over_{second}"
