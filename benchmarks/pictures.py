"""Draws the results in ``benchmarks/results`` into ``docs/pictures``, as SVG.

    python -m benchmarks pictures

The same results give the same files, byte for byte. A picture without results is not drawn. Needs matplotlib,
which is in the group ``bench`` of the development dependencies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import results

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
_OURS, _THEIRS = "#1f5fa8", "#9a9a9a"

Line = Mapping[str, Any]


def draw(folder: Path | None = None, out: Path | None = None) -> list[Path]:
    """Draw every picture that has results. Returns the files."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  # needed for drawing only
    except ModuleNotFoundError:
        sys.exit(
            "pictures are drawn by matplotlib: pip install matplotlib, or use `make bench ARGS=pictures`"
        )
    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "acktree",
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
        }
    )
    out = out or FOLDER
    out.mkdir(parents=True, exist_ok=True)
    return [
        file for name, make in PICTURES.items() if (file := make(folder, out / f"{name}.svg")) is not None
    ]


def ratios(folder: Path | None, file: Path) -> Path | None:
    """Each comparison's ratio with its spread, on one scale; hollow where the machine was not quiet."""
    lines = [results.kept(name, folder)[-1] for name in results.names(folder) if "_over_" in name]
    shown = [(line, metric) for line in lines if (metric := _metric_of(line)) is not None]
    if not shown:
        return None
    figure, axes = _figure(height=1.2 + 0.4 * len(shown))
    for at, (line, metric) in enumerate(reversed(shown)):
        ratio = line["ratios"][metric]
        axes.plot([ratio["least"], ratio["greatest"]], [at, at], color=_OURS, linewidth=2)
        axes.plot(ratio["median"], at, "o", color=_OURS, markerfacecolor=_OURS if line["quiet"] else "white")
        axes.annotate(f"{ratio['median']:.2f}", (ratio["median"], at), (0, 7), textcoords="offset points")
    labels = [f"{line['variant']['first']} / {line['variant']['second']}\n{metric}" for line, metric in shown]
    axes.set_yticks(range(len(shown)), labels[::-1], fontsize=8)
    axes.axvline(1, color=_THEIRS, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("first / second: median of the rounds, least to greatest")
    return _saved(figure, file)


def throughput(folder: Path | None, file: Path) -> Path | None:
    """Sentences a second of every system that was compared at full speed, from its latest comparison."""
    latest: dict[str, Line] = {}
    for name in results.names(folder):
        for line in results.kept(name, folder) if "_over_" in name else ():
            if line["variant"]["rate"] is None:
                for which in (line["first"], line["second"]):
                    if "alone" not in which["name"]:
                        latest[which["name"]] = which
    if not latest:
        return None
    ordered = sorted(latest.values(), key=lambda which: which["medians"]["roots_per_sec"])
    figure, axes = _figure(height=1.2 + 0.3 * len(ordered))
    for at, which in enumerate(ordered):
        rates = which["runs"]["roots_per_sec"]
        color, median = _THEIRS if _is_peer(which) else _OURS, which["medians"]["roots_per_sec"]
        axes.plot([min(rates), max(rates)], [at, at], color=color, linewidth=2)
        axes.plot(median, at, "o", color=color)  # no bars: the scale is logarithmic
        axes.annotate(f"{median:,.0f}", (median, at), (0, 6), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(ordered)), [which["name"] for which in ordered], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("sentences a second: median, least to greatest (of different hours)")
    return _saved(figure, file)


def latency(folder: Path | None, file: Path) -> Path | None:
    """Complete latency against the rate."""
    lines = [line for line in results.kept("latency", folder) if line["offered_per_sec"] is not None]
    groups = _by(lines, lambda line: f"{line['variant']['bolts']}, memory {line['variant']['memory']}")
    if not groups:
        return None
    figure, axes = _figure()
    for number, (name, group) in enumerate(groups.items()):
        newest = {line["offered_per_sec"]: line for line in group if _commit(line) == _commit(group[-1])}
        rates = sorted(newest)
        for key, style in (("p50_ms", "-"), ("p99_ms", "--")):
            values = [newest[rate][key] for rate in rates]
            axes.plot(rates, values, style, marker="o", color=f"C{number}", label=f"{name}, {key[:3]}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("sentences a second")
    axes.set_ylabel("complete latency, ms")
    axes.legend(fontsize=8)
    return _saved(figure, file)


def acker(folder: Path | None, file: Path) -> Path | None:
    """Bytes and milliseconds against open roots."""
    lines = results.kept("acker", folder)
    if not lines:
        return None
    points = lines[-1]["points"]
    figure, axes = _figure()
    opened = [point["open"] for point in points]
    for number, key in enumerate(("churn_worst_ms", "churn_ms", "passing_ms")):
        axes.plot(opened, [point[key] for point in points], marker="o", color=f"C{number}", label=key)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("open roots")
    axes.set_ylabel("the acker's CPU in a micro-batch, ms")
    axes.legend(fontsize=8)
    return _saved(figure, file)


def fan_out(folder: Path | None, file: Path) -> Path | None:
    """CPU of a tuple against the size of its tree."""
    groups = _by(results.kept("fan_out", folder), lambda line: line["variant"]["bolts"])
    if not groups:
        return None
    figure, axes = _figure()
    for name, group in groups.items():
        points = group[-1]["points"]
        children = [point["children"] for point in points]
        axes.plot(children, [point["cpu_us_per_tuple"] for point in points], marker="o", label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("children of a message")
    axes.set_ylabel("CPU of a tuple, us")
    axes.legend(fontsize=8)
    return _saved(figure, file)


def soak(folder: Path | None, file: Path) -> Path | None:
    """Memory, checkpoint and open messages over the minutes of the latest soak; a tick for each fault."""
    lines = [
        line for line in results.kept("soak", folder) if "bolts" not in line.get("variant", {})
    ]  # not by epochs
    if not lines:
        return None
    samples, faults = lines[-1]["samples"], [secs / 60 for secs in lines[-1]["faults_at_secs"]]
    minutes = [sample["secs"] / 60 for sample in samples]
    figure, panels = _figure(height=7.2, panels=3)
    shown: Sequence[tuple[str, Mapping[str, str | None]]] = (
        ("memory, MB", {"jvm_mb": "JVM", "driver_mb": "driver", "workers_mb": "all workers"}),
        ("checkpoint, MB", {"checkpoint_mb": None}),
        ("open messages", {"open": None}),
    )
    for axes, (label, names) in zip(panels, shown, strict=True):
        for number, (key, name) in enumerate(names.items()):
            axes.plot(minutes, [sample[key] for sample in samples], color=f"C{number}", label=name)
        axes.plot(faults, [0] * len(faults), "|", color=_THEIRS, clip_on=False)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
    panels[0].legend(fontsize=8)
    panels[-1].set_xlabel("minutes; a tick is a killed worker or a stopped process")
    return _saved(figure, file)


PICTURES: Final[Mapping[str, Callable[[Path | None, Path], Path | None]]] = {
    "ratios": ratios,
    "throughput": throughput,
    "latency": latency,
    "acker": acker,
    "fan_out": fan_out,
    "soak": soak,
}


def _metric_of(line: Line) -> str | None:
    """The main metric of a comparison: the rate, or at a given rate the latency."""
    at_speed = line["variant"]["rate"] is None and "alone" not in line["variant"]["first"]
    wanted = ("roots_per_sec",) if at_speed else ("p50_ms_over_micro_batch_ms", "micro_batch_ms", "p50_ms")
    return next((metric for metric in wanted if metric in line["ratios"]), None)


def _is_peer(which: Line) -> bool:
    return str(which["run"]).startswith("peers.")


def _commit(line: Line) -> object:
    return line["machine"]["acktree"]


def _by(lines: Sequence[Line], key: Callable[[Line], str]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return groups


def _figure(height: float = 3.6, panels: int = 1) -> tuple[Any, Any]:
    from matplotlib import pyplot as plt  # noqa: PLC0415  # after `use` in draw()

    figure, axes = plt.subplots(panels, sharex=panels > 1, figsize=(7.2, height))
    return figure, axes


def _saved(figure: Any, file: Path) -> Path:  # noqa: ANN401  # matplotlib's, and not needed to check types
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return file


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, and print the files."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    for file in draw():
        print(file)
