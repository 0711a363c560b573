"""The tables of ``docs/connectors.md``, from the kept results of brokers, queues and Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import results
from benchmarks.markdown import Line, table, when

_SPOUTS: Final = {
    "rabbitmq": "`RabbitMQSpout`, classic queue",
    "rabbitmq-quorum": "`RabbitMQSpout`, quorum queue",
    "kafka": "`KafkaSpout`",
    "kafka-native": "`kafka_dataframe_spout`",
    "redis": "`RedisStreamSpout`",
    "sqs": "`SqsSpout`",
}


_PAIRS: Final = {
    "rabbitmq": ("`RabbitMQSpout`", "pika, each message acknowledged by itself"),
    "redis": ("`RedisStreamSpout`", "redis-py, each entry acknowledged by itself"),
    "driver": ("`KafkaSpout`", "confluent-kafka, a commit for each poll"),
    "native": ("`kafka_dataframe_spout`", "the same query in plain Spark"),
}


def tables(folder: Path | None = None) -> str:
    """The accounts, the leases, the cuts and the rates."""
    return (
        f"**Kills under load.**\n\n{kills(folder)}\n"
        f"**Leases of 4 s, micro-batches of 30 s, deactivated for 60 s.**\n\n{leases(folder)}\n"
        f"**Two poison messages, and a connection that is cut.**\n\n{cuts(folder)}\n"
        f"**Messages a second, and a program without acktree in turn with it.**\n\n{rates(folder)}"
    )


def kills(folder: Path | None = None) -> str:
    """The latest account of each broker."""
    rows = []
    for line in _latest("kills", folder):
        again = ", ".join(f"{count:,} {cause}" for cause, count in sorted(line["again"].items())) or "none"
        runs = line["runs"]
        most = max(map(int, runs), default=0)
        rows.append(
            (
                _spout(line), f"{line['kills']} / {line['server_kills']}", f"{line['messages']:,}",
                _found(line), again, str(line["most_per_kill"]), str(most), when(line),
            )
        )  # fmt: skip
    head = (
        "spout", "kills of driver / server", "messages", "findings", "effects again, by cause",
        "most further runs of a message for one kill", "most runs of a message", "when, commit",
    )  # fmt: skip
    return table(head, rows)


def leases(folder: Path | None = None) -> str:
    """The latest run of each broker with short leases."""
    rows = []
    for line in _latest("leases", folder):
        kept = line["connections"]
        connections = f"{kept[1]} of {kept[0]}" if kept else "holds none"
        counts = [f"{line[key]:,}" for key in ("messages", "lost", "twice")]
        rows.append(
            (
                _spout(line),
                *counts,
                connections,
                f"{line['core_share']:.2%}",
                f"{line['load_after']:g}",
                when(line),
            )
        )
    head = (
        "spout", "messages", "lost", "delivered twice", "connections kept", "at rest, of a core",
        "load of the machine", "when, commit",
    )  # fmt: skip
    return table(head, rows)


def cuts(folder: Path | None = None) -> str:
    """The latest run of each broker with cuts."""
    rows = [
        (_spout(line), moment["moment"], str(moment["ours"]), str(moment["theirs"]), when(line))
        for line in _latest("cuts", folder)
        for moment in line["moments"]
    ]
    return table(("spout", "cut", "acktree's letters", "the broker's", "when, commit"), rows)


def rates(folder: Path | None = None) -> str:
    """The latest pairs: medians of what both reached in the steady part, and of the ratios."""
    latest = {line["variant"]["broker"]: line for line in results.kept("queues", folder)}
    latest |= {line["variant"]["pair"]: line for line in results.kept("kafka", folder)}
    rows = []
    for name, (spout, plain) in _PAIRS.items():
        if name not in latest:
            continue
        line = latest[name]
        mine, other = (_medians(side) for side in zip(*line["rounds"], strict=True))
        ratios = line["ratios"]
        count = line["variant"].get("messages") or line["variant"].get("records")
        rows.append(
            (
                spout, plain, f"{count:,}", f"{mine['steady']:,.0f} / {other['steady']:,.0f}",
                f"**{ratios['steady']:.2f}**", f"{ratios['overall']:.2f}",
                f"{mine['cpu_us']:.1f} / {other['cpu_us']:.1f} µs: {ratios['cpu_us']:.2f}",
                str(len(line["rounds"])), when(line),
            )
        )  # fmt: skip
    head = (
        "spout", "program", "messages", "a second, steady", "ratio, steady", "ratio with the start",
        "CPU a message, without the server", "rounds", "when, commit",
    )  # fmt: skip
    return table(head, rows)


def _medians(side: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(each[name] for each in side) for name in side[0]}


def _latest(mode: str, folder: Path | None) -> list[Line]:
    """The latest line of each broker, in their order."""
    latest: dict[tuple[str, bool], Line] = {}
    for line in results.kept("brokers", folder):
        variant = line["variant"]
        if variant["mode"] == mode:
            latest[variant["broker"], variant["reject"]] = line
    return [
        latest[broker, reject] for broker in _SPOUTS for reject in (False, True) if (broker, reject) in latest
    ]


def _spout(line: Line) -> str:
    rejects = ', `given_up="reject"`' if line["variant"]["reject"] else ""
    return f"{_SPOUTS[line['variant']['broker']]}{rejects}"


def _found(line: Line) -> str:
    found = [f"{count:,} {name}" for name, count in line["findings"].items()]
    return ", ".join([*found, *([line["stuck"]] if line["stuck"] else [])]) or "none"
