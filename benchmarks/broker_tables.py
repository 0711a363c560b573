"""The table of ``docs/connectors.md``, from the kept results of brokers."""

from __future__ import annotations

from pathlib import Path
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


def tables(folder: Path | None = None) -> str:
    """The accounts, the leases and the cuts."""
    return (
        f"**Kills under load.**\n\n{kills(folder)}\n"
        f"**Leases of 4 s, micro-batches of 30 s, deactivated for 60 s.**\n\n{leases(folder)}\n"
        f"**Two poison messages, and a connection that is cut.**\n\n{cuts(folder)}"
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
