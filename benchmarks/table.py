"""Writes the results in ``benchmarks/results`` into the pages of ``docs``, between their marks.

    python -m benchmarks table             # prints the tables
    python -m benchmarks table --write     # puts them into pages of docs

Nothing between the marks is written by hand. What was not measured says so.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import account, broker_tables, machine, objections, results
from benchmarks.markdown import MISSING, Line, picture, spread, table, when, written
from benchmarks.pictures import PICTURES

_DOCS: Final = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True)
class Goal:
    """A question that a comparison answers.

    Attributes:
        question: As a doubter asks it.
        first, second: The runs compared.
        metric: Which of the ratios answers it; a key of :data:`benchmarks.named.METRICS`.
    """

    question: str
    first: str
    second: str
    metric: str = "roots_per_sec"


GOALS: Final = (
    Goal("What does tracking leave of the rate, with Arrow bolts?", "tracked-arrow", "untracked-arrow"),
    Goal("... with a call for each tuple?", "tracked-basic", "untracked-basic"),
    Goal("... in CPU, with Arrow bolts?", "tracked-arrow", "untracked-arrow", "cpu_us_per_root"),
    Goal("... in CPU, with a call for each tuple?", "tracked-basic", "untracked-basic", "cpu_us_per_root"),
    Goal("Against Storm in Java, a call for each tuple in spout and bolts?",
         "tracked-basic-tuple-spout", "storm-java"),
    Goal("... in CPU?", "tracked-basic-tuple-spout", "storm-java", "cpu_us_per_root"),
    Goal("... with Arrow bolts after that spout?", "tracked-arrow-tuple-spout", "storm-java"),
    Goal("... and words in a dictionary?", "tracked-dictionary-tuple-spout", "storm-java"),
    Goal("... with Arrow bolts and a spout that emits batches?", "tracked-arrow", "storm-java"),
    Goal("... a spout that emits batches, a call for each tuple in bolts?", "tracked-basic", "storm-java"),
    Goal("... with 500,000 different words, batches and Arrow bolts?",
         "tracked-arrow-500k", "storm-java-500k"),
    Goal("... with 500,000 different words, batches, a call for each tuple in bolts?",
         "tracked-basic-500k", "storm-java-500k"),
    Goal("... with sentences of 250 bytes, Arrow bolts after a spout with a call for each?",
         "tracked-arrow-tuple-spout-250-bytes", "storm-java-250-bytes"),
    Goal("... of 1,000 bytes?", "tracked-arrow-tuple-spout-1000-bytes", "storm-java-1000-bytes"),
    Goal("Against Storm with Python bolts?", "tracked-basic", "storm-multilang"),
    Goal("... with Arrow bolts?", "tracked-arrow", "storm-multilang"),
    Goal("... of pystorm, streamparse's library?", "tracked-basic", "storm-pystorm"),
    Goal("Against plain PySpark that combines words in mapInArrow?", "tracked-arrow", "spark-combined"),
    Goal("... in CPU?", "tracked-arrow", "spark-combined", "cpu_us_per_root"),
    Goal("... all in the JVM, in SQL?", "tracked-arrow", "spark-native"),
    Goal("... in CPU?", "tracked-arrow", "spark-native", "cpu_us_per_root"),
    Goal("... combined, against an untracked topology?", "untracked-arrow", "spark-combined"),
    Goal("... combined, against a topology that combines words before its shuffle too?",
         "tracked-combined", "spark-combined"),
    Goal("... in CPU?", "tracked-combined", "spark-combined", "cpu_us_per_root"),
    Goal("... with 500,000 different words, combined?", "tracked-arrow-500k", "spark-combined-500k"),
    Goal("... with 500,000 different words, in SQL?", "tracked-arrow-500k", "spark-native-500k"),
    Goal("Against Bytewax?", "tracked-arrow", "bytewax"),
    Goal("... that saves each second?", "tracked-arrow", "bytewax-snapshots"),
    Goal("Against Flink in Java?", "tracked-arrow", "flink-java"),
    Goal("... in CPU?", "tracked-arrow", "flink-java", "cpu_us_per_root"),
    Goal("... with a call for each tuple?", "tracked-basic", "flink-java"),
    Goal("... that takes no checkpoints?", "tracked-arrow", "flink-java-no-checkpoints"),
    Goal("... on one core?", "tracked-arrow-1-core", "flink-java-1-core"),
    Goal("... with 500,000 different words?", "tracked-arrow-500k", "flink-java-500k"),
    Goal("Against Flink SQL?", "tracked-arrow", "flink-sql"),
    Goal("... in CPU?", "tracked-arrow", "flink-sql", "cpu_us_per_root"),
    Goal("... with 500,000 different words?", "tracked-arrow-500k", "flink-sql-500k"),
    Goal("Against Kafka Streams, whose words go through its broker?", "tracked-arrow", "kafka-streams"),
    Goal("... in CPU, without the broker's?", "tracked-arrow", "kafka-streams", "cpu_us_per_root"),
    Goal("... in CPU, with the broker's?", "tracked-arrow", "kafka-streams",
         "cpu_us_per_root_over_with_broker"),
    Goal("... with a call for each tuple?", "tracked-basic", "kafka-streams"),
    Goal("... that adds up words in each task before the broker?", "tracked-arrow", "kafka-streams-combined"),
    Goal("... in CPU, with the broker's?", "tracked-arrow", "kafka-streams-combined",
         "cpu_us_per_root_over_with_broker"),
    Goal("... with a call for each tuple?", "tracked-basic", "kafka-streams-combined"),
    Goal("... with 500,000 different words?", "tracked-arrow-500k", "kafka-streams-500k"),
    Goal("Against Pathway, which saves nothing?", "tracked-arrow", "pathway"),
    Goal("... in CPU?", "tracked-arrow", "pathway", "cpu_us_per_root"),
    Goal("... with a call for each tuple?", "tracked-basic", "pathway"),
    Goal("Complete latency at half load, in bare micro-batches? p50", "latency-arrow", "bare",
         "p50_ms_over_micro_batch_ms"),
    Goal("... p99", "latency-arrow", "bare", "p99_ms_over_micro_batch_ms"),
    Goal("... against a message's way through the bare query, p50", "latency-arrow", "bare", "p50_ms"),
    Goal("What does a batch_interval_secs of 0.5 leave of the rate of 2, a call for each tuple?",
         "tracked-basic-tuple-spout-500-ms", "tracked-basic-tuple-spout"),
    Goal("... and of the latency at the top rate? p50",
         "tracked-basic-tuple-spout-500-ms", "tracked-basic-tuple-spout", "p50_ms"),
    Goal("... of the rate, with Arrow bolts?",
         "tracked-arrow-tuple-spout-500-ms", "tracked-arrow-tuple-spout"),
    Goal("... of the latency, with Arrow bolts? p50",
         "tracked-arrow-tuple-spout-500-ms", "tracked-arrow-tuple-spout", "p50_ms"),
    Goal("A micro-batch with one message, with memory, against a bare one that remembers nothing?",
         "alone", "bare-alone-stateless", "micro_batch_ms"),
    Goal("... against a bare one with Spark's state?", "alone", "bare-alone", "micro_batch_ms"),
    Goal("... without state but the acker?", "alone-stateless", "bare-alone-stateless", "micro_batch_ms"),
    Goal("... in CPU?", "alone-stateless", "bare-alone-stateless", "cpu_us_per_root"),
    Goal("What do marks, watchdog and breaker leave of the rate, with Arrow bolts?",
         "tracked-arrow-guarded", "tracked-arrow-bare"),
    Goal("... in CPU?", "tracked-arrow-guarded", "tracked-arrow-bare", "cpu_us_per_root"),
    Goal("... with a call for each tuple?", "tracked-basic-guarded", "tracked-basic-bare"),
    Goal("... in CPU?", "tracked-basic-guarded", "tracked-basic-bare", "cpu_us_per_root"),
    Goal("Two cores against one, Arrow bolts?", "tracked-arrow", "tracked-arrow-1-core"),
    Goal("... a call for each tuple?", "tracked-basic", "tracked-basic-1-core"),
    Goal("Two executors against one process?", "tracked-arrow-cluster", "tracked-arrow"),
    Goal("Four executors against one process with four partitions, on two cores?",
         "tracked-arrow-4-workers", "tracked-arrow-4-cores"),
    Goal("... in CPU?", "tracked-arrow-4-workers", "tracked-arrow-4-cores", "cpu_us_per_root"),
    Goal("Four workers on hosts that share nothing, against one process with four partitions?",
         "tracked-arrow-4-hosts", "tracked-arrow-4-cores"),
    Goal("... in CPU, with HDFS?", "tracked-arrow-4-hosts", "tracked-arrow-4-cores", "cpu_us_per_root"),
    Goal("What does a trace of one message in 1,000 cost, in CPU?",
         "tracked-basic-traced", "tracked-basic-unwatched", "cpu_us_per_root"),
    Goal("What do the page in five tabs and a scrape a second cost, in CPU?",
         "tracked-basic-watched", "tracked-basic-unwatched", "cpu_us_per_root"),
    Goal("What does the driver's socket cost while it is not used, in CPU?",
         "tracked-basic-unwatched", "tracked-basic-off", "cpu_us_per_root"),
    Goal("... in rate?", "tracked-basic-unwatched", "tracked-basic-off"),
)  # fmt: skip


def tables(folder: Path | None = None) -> str:
    """All tables of the page, and the pictures that are drawn."""
    sections = [
        ("Goals", goals(folder)),
        ("At top rate", top_rates(folder)),
        ("Where the time goes", profile(folder)),
        ("The path of a tuple", floor(folder)),
        ("Complete latency", latency(folder)),
        ("Open roots", _points("acker", "open", _ACKER, folder)),
        ("Trees", _points("fan_out", "children", _FAN_OUT, folder)),
        ("Frames", _points("frames", "tasks", _FRAMES, folder)),
        ("Calls of a service", waiting(folder)),
        ("From submit to the first ack", start(folder)),
        ("At rest", idle(folder)),
    ]
    shown = [shown for name in PICTURES if name != "soak" and (shown := picture(name))]
    return "\n".join([f"### {title}\n\n{text}" for title, text in sections] + shown)


def goals(folder: Path | None = None) -> str:
    """The ratios, each with the spread of its rounds, of the latest comparison."""
    rows = []
    for goal in GOALS:
        pair = f"`{goal.first}` / `{goal.second}`"
        found = results.ratio(goal.first, goal.second, goal.metric, folder)
        if found is None:
            rows.append((goal.question, pair, goal.metric, MISSING, "", ""))
            continue
        line, ratio = found
        rounds = f"{line['variant']['rounds']}{'' if line['quiet'] else ', not quiet'}"
        rows.append((goal.question, pair, goal.metric, spread(ratio), rounds, when(line)))
    head = ("question", "first / second", "what is divided", "ratio (spread)", "rounds", "when, commit")
    return table(head, rows)


def top_rates(folder: Path | None = None) -> str:
    """Rate, latency and cores of both sides of the latest comparison of each pair."""
    rows = []
    for name in dict.fromkeys(results.name_of(goal.first, goal.second) for goal in GOALS):
        for line in results.kept(name, folder)[-1:]:
            for side in (line["first"], line["second"]):
                medians = side["medians"]
                if "p50_ms" in medians and "roots_per_sec" in medians and line["variant"]["rate"] is None:
                    cores = medians["roots_per_sec"] * medians["cpu_us_per_root"] / 1e6
                    rows.append((f"`{side['name']}`", *_numbers(medians), f"{cores:.2f}", when(line)))
    head = ("run", "roots/s", "CPU us a root", "p50 ms", "p99 ms", "cores", "when, commit")
    return table(head, rows)


def _numbers(medians: Mapping[str, float]) -> tuple[str, str, str, str]:
    return (
        f"{medians['roots_per_sec']:,.0f}",
        f"{medians['cpu_us_per_root']:.2f}",
        f"{medians['p50_ms']:,.0f}",
        f"{medians['p99_ms']:,.0f}",
    )


def profile(folder: Path | None = None) -> str:
    """CPU of a root by process, and by level of the Python side."""
    rows = []
    for line in _latest_of_each("word_count", folder):
        if "peer" not in line["variant"]:
            spent = line["cpu_us_by_process"]
            parts = [f"{spent[who]:.2f}" for who in ("driver", "jvm", "workers")]
            rows.append((_variant(line), f"{line['cpu_us_per_root']:.2f}", *parts, "", when(line)))
    for line in _latest_of_each("python_side", folder):
        by_level = ", ".join(f"{level} {spent:.2f}" for level, spent in line["by_level"].items())
        rows.append((_variant(line), "", "", "", f"{line['us_per_root']:.2f}", by_level, when(line)))
    head = ("word count", "CPU us a root", "driver", "JVM", "workers", "Python by level", "when, commit")
    return table(head, rows)


def floor(folder: Path | None = None) -> str:
    """What the interpreter alone takes, and how far above it acktree was first and is now."""
    rows = []
    for after in _latest_of_each("floor", folder):
        same = [line for line in results.kept("floor", folder) if line["variant"] == after["variant"]]
        bare = f"{after['floor_us_per_root']:.2f}"
        rows.append((_variant(after), bare, _above_floor(same[0]), _above_floor(after)))
    return table(("CPU us a sentence", "floor", "ours at first", "ours now"), rows)


def _above_floor(line: Line) -> str:
    ours, whole = line["ours_us_per_root"], line["us_per_root"]
    return f"{ours:.2f}, in all {whole:.2f} ({when(line)})"


def latency(folder: Path | None = None) -> str:
    """Quantiles at each rate."""
    rows = [
        (
            _variant(line),
            "one at a time" if line["offered_per_sec"] is None else f"{line['offered_per_sec']:,}",
            *(f"{line[key]:,.0f}" for key in ("p50_ms", "p90_ms", "p99_ms", "micro_batch_ms")),
            when(line),
        )
        for line in _latest_of_each("latency", folder, "offered_per_sec")
    ]
    head = ("word count", "sentences/s", "p50 ms", "p90 ms", "p99 ms", "micro-batch ms", "when, commit")
    return table(head, rows)


def idle(folder: Path | None = None) -> str:
    """The cost of an idle topology."""
    rows = [
        (
            _variant(line), f"{line['secs']:,.0f}", f"{line['core_share']:.2%}", str(line["micro_batches"]),
            f"{line['checkpoint_growth_bytes']:,}", when(line),
        )
        for line in _latest_of_each("idle", folder)
    ]  # fmt: skip
    head = ("word count", "secs", "of a core", "micro-batches", "checkpoint grew, bytes", "when, commit")
    return table(head, rows)


def waiting(folder: Path | None = None) -> str:
    """The rate of calls, and what it is of the rates of a plain program and of Celery."""
    rows = []
    for line in _latest_of_each("waiting", folder):
        variant = line["variant"]
        what = (
            f"{variant['kind']}, {variant['calls']:,} of {variant['ms']:g} ms, {variant['at_once']} at once"
        )
        shares = [_shares(line.get(f"shares_of_{peer}")) for peer in ("plain", "celery")]
        cpu = [f"{line.get('cpu_ms_per_call', {}).get(name, '')}" for name in ("acktree", "plain", "celery")]
        rows.append((what, f"{line['calls_per_sec']:,}", *shares, *cpu, _rounds(line), when(line)))
    rates = ("calls/s, acked", "of plain asyncio", "of Celery")
    head = ("calls", *rates, "CPU ms a call", "plain", "Celery", "rounds", "when, commit")
    return table(head, rows) if rows else MISSING


def start(folder: Path | None = None) -> str:
    """Fresh processes with and without the archive of classes, in turn."""
    rows = [
        (
            str(line["variant"]["stateful"]),
            *(_shares(line["ratios"][key]) for key in ("cpu_secs", "submit_secs", "first_ack_secs")),
            *(f"{line[which]['cpu_secs']:.1f}" for which in ("with", "without")),
            _rounds(line),
            when(line),
        )
        for line in _latest_of_each("start", folder)
    ]
    ratios = ("CPU, with / without", "until submit returns", "until the first ack")
    head = ("stateful levels", *ratios, "CPU s with", "without", "rounds", "when, commit")
    return table(head, rows) if rows else MISSING


def _shares(each: Sequence[float] | None) -> str:
    if not each:
        return ""
    return f"**{statistics.median(each):.2f}** ({min(each):.2f} to {max(each):.2f})"


def _rounds(line: Line) -> str:
    quiet = line["others_cores"] <= machine.BUSY * line["machine"]["cores"]
    return f"{line['variant']['rounds']}{'' if quiet else ', not quiet'}"


_ACKER: Final = {
    "memory_bytes_per_root": "bytes in memory",
    "disk_bytes_per_root": "bytes on disk",
    "passing_ms": "passing ms",
    "churn_ms": "churn ms",
    "churn_worst_ms": "churn, worst ms",
}
_FAN_OUT: Final = {
    "roots_per_sec": "roots/s",
    "tuples_per_sec": "tuples/s",
    "cpu_us_per_tuple": "CPU us a tuple",
    "micro_batch_ms": "micro-batch ms",
}
_FRAMES: Final = {
    "partitions": "partitions",
    "frames": "frames",
    "bytes_per_root": "bytes a root",
    "us_per_root": "CPU us a root",
}


def _points(name: str, key: str, columns: Mapping[str, str], folder: Path | None) -> str:
    """The points of the latest line of each variant of a benchmark that measures several."""
    rows = [
        (_variant(line), f"{point[key]:,}", *(f"{point[column]:,}" for column in columns), when(line))
        for line in _latest_of_each(name, folder)
        for point in line["points"]
    ]
    return table(("variant", key, *columns.values(), "when, commit"), rows)


def _latest_of_each(name: str, folder: Path | None, key: str | None = None) -> list[Line]:
    """The latest line of each variant, and of each value of a key."""
    latest: dict[tuple[str, object], Line] = {}
    for line in results.kept(name, folder):
        latest[_variant(line), line[key] if key else None] = line
    return list(latest.values())


def _variant(line: Line) -> str:
    """The parts of a variant that differ from the others."""
    variant = line["variant"]
    words = [
        str(variant[name]) for name in ("peer", "bolts", "spout", "memory", "master") if variant.get(name)
    ]
    words += [] if variant.get("tracked", True) else ["untracked"]
    words += [f"{variant['cores']} cores"] if "cores" in variant else []
    return ", ".join(words) or ", ".join(f"{name} {value}" for name, value in variant.items())


PAGES: Final[Mapping[Path, Sequence[Callable[[], str]]]] = {
    _DOCS / "performance.md": (objections.objections, tables),
    _DOCS / "chaos.md": (account.tables,),
    _DOCS / "connectors.md": (broker_tables.tables,),
}
"""The blocks of each page, in their order."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="into the pages of docs/")
    args = parser.parse_args(arguments)
    for page, blocks in PAGES.items():
        made = [make() for make in blocks]
        if args.write:
            page.write_text(written(page, *made))
        else:
            print("\n".join(made))
