"""Errors of Spark's Kafka source about lost records are explained, with the fix."""

from __future__ import annotations

import pytest

from acktree import ConnectorError
from acktree.spark.query.lost_records import explained

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


def test_an_unknown_topic_is_explained():
    raised = RuntimeError("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: not hosted")
    assert "no such topic" in str(explained(raised))


def test_other_errors_stay_as_they_are():
    error = RuntimeError("something else")
    assert explained(error) is error
