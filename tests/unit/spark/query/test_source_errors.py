"""Errors of Spark's sources about lost records and unreadable files are explained, with the fix."""

from __future__ import annotations

import pytest

from acktree import ConnectorError
from acktree.spark.query.source_errors import explained

LOSS = """org.apache.spark.SparkException: Job aborted: Lost task 0.0:
{prefix}Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason:
{reason} SQLSTATE: 22000
	at org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:1)
"""


@pytest.mark.parametrize(
    ("prefix", "reason", "says", "mend"),
    [
        (
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] ",
            "Could not read records in offset [5, 9) for topic partition orders-0",
            "records were gone before they were read: Could not read records in offset [5, 9)",
            'on_data_loss="go_on"',
        ),
        (
            "",
            "Partition orders-0's offset was changed from 9 to 2.",
            "records were gone before they were read: Partition orders-0's offset was changed from 9 to 2.",
            "retention.ms",
        ),
        (
            "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] ",
            "Partitions orders-0 have been deleted.",
            "there is no such topic, or a partition of it is gone: Partitions orders-0 have been deleted.",
            "new checkpoint",
        ),
    ],
)
def test_lost_records_are_explained_with_their_offsets_and_the_fix(prefix, reason, says, mend):
    raised = RuntimeError(LOSS.format(prefix=prefix, reason=reason))
    ours = explained(raised)
    assert isinstance(ours, ConnectorError)
    assert (ours.what.startswith(says), mend in ours.fix, ours.can_retry) == (True, True, False)
    assert "SQLSTATE" not in ours.what
    assert ours.__cause__ is raised


FILE = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
	at org.apache.spark.sql.SparkSession.withActive(SparkSession.scala:810)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.{kind}] Encountered error while reading file file:///in/a b.log.gz. {hint} SQLSTATE: KD001
	at org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:920)
{cause}	... 10 more
"""  # noqa: E501
HINTS = [("NO_HINT", ""), ("FILE_NOT_EXIST", "File does not exist. It is possible the files were updated.")]


@pytest.mark.parametrize(("kind", "hint"), HINTS)
@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (
            "Caused by: java.io.EOFException: Unexpected end of input stream\n\tat a.b(C.scala:1)\n",
            "EOFException",
        ),
        ("Caused by: a.B: outer\n\tat a\nCaused by: a.MalformedX\n\tat b\n", "MalformedX"),
        ("", "a file cannot be read"),
    ],
)
def test_a_file_that_spark_cannot_read_is_named_with_the_cause_and_the_fix(kind, hint, cause, says):
    raised = RuntimeError(FILE.format(kind=kind, hint=hint, cause=cause))
    ours = explained(raised)
    assert isinstance(ours, ConnectorError)
    assert ours.where == "the file file:///in/a b.log.gz, read by a DataFrameSpout"
    assert says in ours.what
    assert "ignoreCorruptFiles" in ours.fix
    assert len(str(ours)) < 1000
    assert ours.__cause__ is raised


def test_an_unknown_topic_is_explained():
    raised = RuntimeError("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: not hosted")
    assert "no such topic" in str(explained(raised))


def test_other_errors_stay_as_they_are():
    error = RuntimeError("something else")
    assert explained(error) is error
