"""The runs that ``compare`` knows by name, of acktree and of peers, and the metrics that it divides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RATE: Final = "RATE"
"""The placeholder in a command for the rate of a comparison, in sentences a second."""

_KINDS: Final = {
    "": (),
    "-500k": ("--words", "500000"),
    "-250-bytes": ("--sentence-bytes", "250"),
    "-1000-bytes": ("--sentence-bytes", "1000"),
}
"""What of the sentences differs, by the end of a run's name."""

_WORD_COUNT: Final = {
    f"{tracking}-{bolts}": (
        "word_count",
        "--bolts",
        bolts,
        *(() if tracking == "tracked" else ("--untracked",)),
    )
    for tracking in ("tracked", "untracked")
    for bolts in ("arrow", "basic", "generator")
} | {
    "tracked-pystorm": ("word_count", "--bolts", "pystorm", "--spout", "tuple"),
    "tracked-storm.py": ("word_count", "--bolts", "storm.py", "--spout", "tuple"),
    "tracked-dictionary": ("word_count", "--bolts", "dictionary"),
    "tracked-combined": ("word_count", "--bolts", "combined"),
    "tracked-arrow-dict": ("word_count", "--bolts", "arrow", "--memory", "dict"),
    "tracked-basic-dict": ("word_count", "--bolts", "basic", "--memory", "dict"),
    **{
        f"tracked-{bolts}-tuple-spout{kind}": ("word_count", "--bolts", bolts, "--spout", "tuple", *further)
        for bolts in ("arrow", "basic", "dictionary")
        for kind, further in _KINDS.items()
    },
    **{
        f"tracked-{bolts}-tuple-spout-{ms}-ms": (
            *("word_count", "--bolts", bolts, "--spout", "tuple"),
            *("--interval", str(ms / 1000)),
        )
        for bolts in ("arrow", "basic")
        for ms in (250, 500, 1000)
    },
    "tracked-arrow-1-core": ("word_count", "--bolts", "arrow", "--cores", "1"),
    "tracked-basic-1-core": ("word_count", "--bolts", "basic", "--cores", "1"),
    "tracked-arrow-guarded": ("word_count", "--bolts", "arrow", "--protection", "all"),
    "tracked-basic-guarded": ("word_count", "--bolts", "basic", "--protection", "all"),
    "tracked-arrow-bare": ("word_count", "--bolts", "arrow", "--protection", "none"),
    "tracked-basic-bare": ("word_count", "--bolts", "basic", "--protection", "none"),
    **{
        f"tracked-{bolts}-{name}": ("word_count", "--bolts", bolts, "--trace-rate", rate, *further)
        for bolts in ("arrow", "basic")
        for name, rate, further in (
            ("traced", "0.001", ()),
            ("unwatched", "0", ()),
            ("watched", "0", ("--tabs", "5")),
            ("off", "0", ("--no-door",)),
        )
    },
    "tracked-arrow-cluster": ("word_count", "--bolts", "arrow", "--master", "local-cluster[2,1,1024]"),
    "tracked-basic-cluster": ("word_count", "--bolts", "basic", "--master", "local-cluster[2,1,1024]"),
    "tracked-arrow-4-cores": ("word_count", "--bolts", "arrow", "--cores", "4", "--master", "local[4,4]"),
    "tracked-arrow-4-workers": (
        *("word_count", "--bolts", "arrow", "--cores", "4"),
        *("--master", "local-cluster[4,1,1024]"),
    ),
    "tracked-arrow-4-hosts": ("hosts", "--bolts", "arrow", "--cores", "4"),
    "tracked-arrow-50k": ("word_count", "--bolts", "arrow", "--words", "50000"),
    "tracked-arrow-500k": ("word_count", "--bolts", "arrow", "--words", "500000"),
    "tracked-basic-50k": ("word_count", "--bolts", "basic", "--words", "50000"),
    "tracked-basic-500k": ("word_count", "--bolts", "basic", "--words", "500000"),
}
_LATENCY: Final = {
    "latency-arrow": ("latency", "--bolts", "arrow", "--rate", RATE),
    "latency-arrow-stateless": ("latency", "--bolts", "arrow", "--memory", "none", "--rate", RATE),
    "latency-basic": ("latency", "--bolts", "basic", "--rate", RATE),
    "alone": ("latency", "--alone"),
    "alone-stateless": ("latency", "--memory", "none", "--alone"),
}
_PEERS: Final = {
    **{f"storm-java{kind}": ("peers.storm_word_count", *further) for kind, further in _KINDS.items()},
    "storm-java-untracked": ("peers.storm_word_count", "--untracked"),
    "storm-java-latency": ("peers.storm_word_count", "--rate", RATE),
    "storm-multilang": ("peers.storm_word_count", "--bolts", "python"),
    "storm-pystorm": ("peers.storm_word_count", "--bolts", "pystorm"),
    **{
        f"spark-{split}{kind}": ("peers.spark_sql", "--split", split, *further)
        for split in ("native", "combined", "naive")
        for kind, further in (("", ()), ("-500k", ("--words", "500000")))
    },
    "bare": ("peers.spark_bare", "--rate", RATE),
    "bare-stateless": ("peers.spark_bare", "--memory", "none", "--rate", RATE),
    "bare-alone": ("peers.spark_bare", "--alone"),
    "bare-alone-stateless": ("peers.spark_bare", "--memory", "none", "--alone"),
    "bytewax": ("peers.bytewax_word_count",),
    "bytewax-2-processes": ("peers.bytewax_word_count", "--processes", "2"),
    "bytewax-snapshots": ("peers.bytewax_word_count", "--snapshots"),
    "pathway": ("peers.pathway_word_count",),
    "kafka-streams": ("peers.kafka_streams_word_count",),
    "kafka-streams-combined": ("peers.kafka_streams_word_count", "--combine"),
    "kafka-streams-500k": ("peers.kafka_streams_word_count", "--words", "500000"),
} | {
    f"flink-{api}{kind}": ("peers.flink_word_count", "--api", api, *further)
    for api in ("java", "sql")
    for kind, further in {
        "": (),
        "-no-checkpoints": ("--checkpoint-ms", "0"),
        "-1-core": ("--cores", "1"),
        "-50k": ("--words", "50000"),
        "-500k": ("--words", "500000"),
    }.items()
}
RUNS: Final[Mapping[str, tuple[str, ...]]] = _WORD_COUNT | _LATENCY | _PEERS
"""The arguments of ``python -m benchmarks`` for each name."""

METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "roots_per_sec": ("roots_per_sec", "roots_per_sec"),
    "cpu_us_per_root": ("cpu_us_per_root", "cpu_us_per_root"),
    "cpu_us_per_root_over_with_broker": ("cpu_us_per_root", "cpu_us_with_broker_per_root"),
    "p50_ms": ("p50_ms", "p50_ms"),
    "p99_ms": ("p99_ms", "p99_ms"),
    "micro_batch_ms": ("micro_batch_ms", "micro_batch_ms"),
    "p50_ms_over_micro_batch_ms": ("p50_ms", "micro_batch_ms"),
    "p99_ms_over_micro_batch_ms": ("p99_ms", "micro_batch_ms"),
}
"""The metrics that a comparison divides, if both lines have them: (key of the first, key of the second)."""
STANDARD: Final = ("tracked-arrow/untracked-arrow", "tracked-basic/untracked-basic")
"""The pairs that are compared by default."""


def command(name: str, rate: float | None) -> tuple[str, ...]:
    """The command of a run, with its rate."""
    return tuple(f"{rate:.0f}" if word == RATE and rate is not None else word for word in RUNS[name])


def needs_rate(name: str) -> bool:
    """Whether a run needs a rate."""
    return RATE in RUNS[name]


def at_full_speed(name: str) -> tuple[str, ...]:
    """The word count that measures the top rate for a run of ``latency``."""
    words = list(RUNS[name])
    at = words.index("--rate")
    return ("word_count", *words[1:at], *words[at + 2 :])
