"""Spark's Kafka source stops when records are gone before it read them: told as what it is, with what to do.

Retention removed them, or their topic was deleted, or made anew under its name.

Source: ``error/kafka-error-conditions.json`` of Spark's Kafka source.
"""

from __future__ import annotations

import re
from typing import Final

from acktree.errors import ConnectorError

__all__ = ["told"]

_LOSS: Final = re.compile(
    r"\[KAFKA_DATA_LOSS\.(?P<kind>[A-Z_]+)\](?P<words>.*?)(?:SQLSTATE|\n\s*at |$)", re.DOTALL
)
_REASON: Final = "Reason:"
_NO_TOPIC: Final = ("UnknownTopicOrPartitionException", "PARTITIONS_DELETED")


def told(error: BaseException) -> BaseException:
    """The error, or a ConnectorError that names the offsets, where that is what it comes to."""
    text = str(error)
    found = _LOSS.search(text)
    if found is None and _NO_TOPIC[0] not in text:
        return error
    if found is None or found["kind"].startswith(_NO_TOPIC[1]):
        reason = "" if found is None else f": {_reason_in(found['words'])}"
        fix = "make the topic, or mend its name; for a topic made anew give the topology a new checkpoint"
        ours = ConnectorError(f"there is no such topic, or a partition of it is gone{reason}", _WHERE, fix)
    else:
        ours = ConnectorError(
            f"records were gone before they were read: {_reason_in(found['words'])}",
            _WHERE,
            "let the topic keep its records for longer (retention.ms); to go on without them, submit again "
            'on the same checkpoint with kafka_dataframe_spout(..., on_data_loss="go_on")',
        )
    ours.__cause__ = error
    return ours


_WHERE: Final = "Spark's Kafka source, read by a DataFrameSpout"


def _reason_in(words: str) -> str:
    _, _, reason = words.rpartition(_REASON)
    return " ".join(reason.split())[:300]
