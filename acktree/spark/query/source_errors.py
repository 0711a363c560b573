"""Recognizes what a source of Spark's has stopped over: Kafka records that are gone, or a file.

Retention removed the records, or their topic was deleted, and perhaps created again under its name. A file is
damaged, malformed or gone.

Source: ``error/kafka-error-conditions.json`` of Spark's Kafka source, and Spark's own
``error/error-conditions.json``.
"""

from __future__ import annotations

import re
from typing import Final

from acktree.errors import ConnectorError

_LOSS: Final = re.compile(
    r"Some data may have been lost because they are not available in Kafka any more;"
    r".{,600}?Reason:(?P<reason>.*?)(?:SQLSTATE|\n\s*at |$)",
    re.DOTALL,
)
_UNKNOWN: Final = "UnknownTopicOrPartitionException"
_DELETED: Final = "have been deleted"
_FILE: Final = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (?P<file>.+?)\. ")
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]*?(?P<cause>\w+(?:: .*)?)$", re.MULTILINE)


def explained(error: BaseException) -> BaseException:
    """A ConnectorError that names the offsets or the file, if they caused the error; else the error."""
    text = str(error)
    ours = _of_a_file(text) or _of_records(text)
    if ours is None:
        return error
    ours.__cause__ = error
    return ours


def _of_a_file(text: str) -> ConnectorError | None:
    match = _FILE.search(text)
    if match is None:
        return None
    causes = _CAUSE.findall(text, match.end())
    return ConnectorError(
        "a file cannot be read" + (f": {causes[-1]:.300}" if causes else ""),
        f"the file {match['file']}, read by a DataFrameSpout",
        "put a whole copy of it in its place, and submit again on the same checkpoint; or leave out what "
        'cannot be read: .option("ignoreCorruptFiles", "true") of the reader, '
        '"ignoreMissingFiles" of a file that is gone, mode="PERMISSIVE" of malformed records. '
        "Nothing of the other files is lost",
    )


def _of_records(text: str) -> ConnectorError | None:
    match = _LOSS.search(text)
    reason = "" if match is None else " ".join(match["reason"].split())[:300]
    if match is None and _UNKNOWN not in text:
        return None
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
    return ConnectorError(what, "Spark's Kafka source, read by a DataFrameSpout", fix)
