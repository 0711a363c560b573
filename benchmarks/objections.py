"""What an auditor objected to in the first numbers, what was changed, and both numbers, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import results
from benchmarks.markdown import MISSING, spread, table


@dataclass(frozen=True)
class Pair:
    """A comparison that shows what an objection is worth.

    Attributes:
        first, second: The runs compared.
        before: What was published, or measured, before the change; empty for nothing.
        metric: Which of the ratios; a key of :data:`benchmarks.named.METRICS`.
    """

    first: str
    second: str
    before: str = ""
    metric: str = "roots_per_sec"


@dataclass(frozen=True)
class Objection:
    """One objection.

    Attributes:
        objection: As a doubter says it.
        answer: What was changed.
        pairs: The comparisons that show it.
    """

    objection: str
    answer: str
    pairs: tuple[Pair, ...] = ()


OBJECTIONS: Final = (
    Objection(
        "5,000 words are few: a micro-batch has each of them hundreds of times.",
        "500,000 words are measured too. Texts are hashed without a call for each, and memory reads and "
        "writes whole columns: [0020](decisions/0020-numbers-by-key-in-columns.md).",
        (
            Pair("tracked-arrow-500k", "storm-java-500k", "below 1, estimated"),
            Pair("tracked-basic-500k", "storm-java-500k"),
        ),
    ),
    Objection(
        "Your spout emits 10,000 messages in a call, Storm's emits one.",
        "The first pairs against Storm in *Goals* have a spout that emits one message in each call.",
        (
            Pair("tracked-basic-tuple-spout", "storm-java"),
            Pair("tracked-arrow-tuple-spout", "storm-java", "9.57 with batches"),
        ),
    ),
    Objection(
        "Storm was not at its best.",
        "It sends 10 tuples at once and has 1,000 pending, the fastest of the settings that were tried: "
        "[below](#settings-of-peers).",
        (Pair("tracked-arrow", "storm-java", "9.57"),),
    ),
    Objection(
        "Spark's micro-batches had 400,000 rows and yours 1,650,000; it had stock settings, and was "
        "asked for its progress every 2 ms.",
        "Spark has acktree's settings but for the state store, both compilers, 4 GB of heap and "
        "micro-batches of 4,000,000 rows, the fastest of three sizes. It is asked five times a second.",
        (
            Pair("tracked-arrow", "spark-native", "3.03"),
            Pair("tracked-arrow", "spark-native", "", "cpu_us_per_root"),
        ),
    ),
    Objection(
        "Its `mapInArrow` sent six rows a sentence back to the JVM, where your bolt combines equal words.",
        "`spark-combined` combines them too, before its shuffle. What was measured before is called naive. "
        "`tracked-combined` does so in `split`, and a sentence is done when it is split.",
        (
            Pair("tracked-arrow", "spark-combined", "3.82, naive"),
            Pair("tracked-arrow", "spark-combined", "", "cpu_us_per_root"),
            Pair("tracked-combined", "spark-combined"),
            Pair("tracked-combined", "spark-combined", "", "cpu_us_per_root"),
        ),
    ),
    Objection(
        "Storm with Python bolts ran at half of what it can, and pystorm is faster.",
        "pystorm is a peer now, and Storm sends both 10 tuples at once: that doubles the rate of `storm.py`.",
        (
            Pair("tracked-basic", "storm-multilang", "224.70"),
            Pair("tracked-basic", "storm-pystorm"),
        ),
    ),
    Objection(
        "The cluster was processes of one machine that share memory.",
        "Its workers, driver and HDFS now are on hosts that share nothing: "
        "[below](#on-hosts-that-share-nothing).",
        (Pair("tracked-arrow-4-hosts", "tracked-arrow-4-cores", "0.76 with shared memory"),),
    ),
    Objection(
        "A rate says nothing without its latency and its cores.",
        "*At top rate* has p50, p99 and the cores beside each rate. The CPU of each kind of process is in "
        "the line of a run.",
    ),
    Objection(
        "0.94 of the untracked rate holds at two partitions only.",
        "At 100 partitions a model says 0.83 of the CPU: [below](#many-partitions).",
        (Pair("tracked-arrow", "untracked-arrow", "0.94"),),
    ),
    Objection(
        "Commits were not clean, A always ran before B, and 20 bytes a message are the acker's alone.",
        "Since 2026-11-25 rounds run A B, then B A; a commit with changes has a plus sign. *Open roots* is "
        "the acker alone, without what the spout keeps of its open messages.",
    ),
)


def objections(folder: Path | None = None) -> str:
    """The table: a row for each pair, and for each objection without one."""
    rows = []
    for each in OBJECTIONS:
        said = each.objection, each.answer
        for pair in each.pairs:
            rows.append(
                (*said, f"`{pair.first}` / `{pair.second}`{_of(pair)}", pair.before, _now(pair, folder))
            )
            said = "", ""
        if not each.pairs:
            rows.append((*said, "", "", ""))
    return table(("objection", "what was changed", "first / second", "before", "now (spread)"), rows)


def _of(pair: Pair) -> str:
    return ", CPU" if pair.metric == "cpu_us_per_root" else ""


def _now(pair: Pair, folder: Path | None) -> str:
    found = results.ratio(pair.first, pair.second, pair.metric, folder)
    if found is None:
        return MISSING
    line, ratio = found
    return f"{spread(ratio)}{'' if line['quiet'] else ', not quiet'}"
