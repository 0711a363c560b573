"""Kafka: records of topics, whose offsets are committed when their trees are done. Needs ``acktree[kafka]``.

``KafkaSpout`` receives in the driver, ``kafka_dataframe_spout`` lets Spark's own source receive on executors,
``KafkaSink`` produces, in workers. Uses the public names of ``acktree`` alone.
"""

from acktree.errors import installing

try:
    import confluent_kafka  # noqa: F401  # imported here, so that the error says what to install
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"acktree.connectors.kafka needs {missing.name}: {installing('kafka')}", name=missing.name
    ) from missing

from acktree.connectors.kafka.native import kafka_dataframe_spout, kafka_packages
from acktree.connectors.kafka.sink import KafkaSink
from acktree.connectors.kafka.spout import KafkaSpout

__all__ = ["KafkaSink", "KafkaSpout", "kafka_dataframe_spout", "kafka_packages"]
