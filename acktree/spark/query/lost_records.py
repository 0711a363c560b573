"""Recognizes that Spark's Kafka source stopped over records that were gone before it read them.

Retention removed them, or their topic was deleted, and perhaps created again under its name.

Source: ``error/kafka-error-conditions.json`` of Spark's Kafka source.
"""

from __future__ import annotations

import re
from typing import Final

from acktree.errors import ConnectorError

__all__ = ["explained"]

_LOSS: Final = re.compile(
    r"Some data may have been lost because they are not available in Kafka any more;"
    r".{,600}?Reason:(?P<reason>.*?)(?:SQLSTATE|\n\s*at |$)",
    re.DOTALL,
)
_UNKNOWN: Final = "UnknownTopicOrPartitionException"
_DELETED: Final = "have been deleted"


def explained(error: BaseException) -> BaseException:
    """A ConnectorError that names the offsets, if lost records caused the error; else the error."""
    text = str(error)
    found = _LOSS.search(text)
    reason = "" if found is None else " ".join(found["reason"].split())[:300]
    if found is None and _UNKNOWN not in text:
        return error
    if not reason or _DELETED in reason:
        what = "there is no such topic, or a partition of it is gone" + (f": {reason}" if reason else "")
        fix = (
            "create the topic, or correct its name; if it was deleted and created again, use a new checkpoint"
        )
    else:
        what = f"records were gone before they were read: {reason}"
        fix = (
            "let the topic keep its records for longer (retention.ms); to go on without them, submit again "
            'on the same checkpoint with kafka_dataframe_spout(..., on_data_loss="go_on")'
        )
    ours = ConnectorError(what, "Spark's Kafka source, read by a DataFrameSpout", fix)
    ours.__cause__ = error
    return ours
