"""Records that Spark's own Kafka source receives on executors.

Rules of this file
------------------
1. The source resumes from Spark's checkpoint. The group's offsets are written for people and lag tools, and
   are never read.
2. The frontier is below every open record. Records are read in order and in whole micro-batches. So, once all
   records of a micro-batch were reported, the offsets between two of them are gaps.

Source: Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

from acktree import Acknowledger, Config, ConfigError, ConnectorError, DataFrameSpout, Failure, TaskContext
from acktree.connectors.kafka.client import CONNECT_SECS, FIELDS, client_log, connector_error, settings_of

__all__ = ["kafka_dataframe_spout", "kafka_packages"]

_COMMIT_SECS: Final = 1.0
_ID: Final = ("topic", "partition", "offset")
_RecordId: TypeAlias = tuple[str, int, int]
_SOURCE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOKENS: Final = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
SOURCE_JARS: Final = (
    f"{_SOURCE}:4.2.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    f"{_TOKENS}:4.1.0-preview1",
)
"""The source for Spark 4.2 and 4.3. PySpark has its other dependencies."""
_CENTRAL: Final = "https://repo1.maven.org/maven2"
_OLDEST: Final = (4, 2)
_NEWEST_OF_OTHERS: Final = (4, 3)
"""Up to this version of Spark, jars of other versions are used."""


def kafka_packages(spark_version: str) -> dict[str, str]:
    """The settings with which a session gets the jars of Spark's Kafka source.

    ::

        spark = SparkSession.builder.config(map=kafka_packages(pyspark.__version__)).getOrCreate()

    Spark fetches them from Maven Central when the session starts. Maven Central has no source of Spark 4.3.0:
    the one of 4.2.0 works with it. One of its dependencies exists there in an earlier version only, and is
    fetched by its URL.

    Args:
        spark_version: ``pyspark.__version__``.

    Raises:
        ConfigError: A version of Spark that acktree does not run on.
    """
    found = re.match(r"(\d+)\.(\d+)", spark_version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < _OLDEST:
        what = f"there is no Kafka source that acktree knows for Spark {spark_version!r}"
        raise ConfigError(what, "kafka_packages(...)", "give the version of the session: pyspark.__version__")
    if version > _NEWEST_OF_OTHERS:
        return {"spark.jars.packages": f"{_SOURCE}:{spark_version}"}
    *packages, tokens = SOURCE_JARS
    group, name, of_tokens = tokens.split(":")
    return {
        "spark.jars.packages": ",".join(packages),
        "spark.jars.excludes": f"{_TOKENS},org.apache.hadoop:*,org.scala-lang:*,org.slf4j:*",
        "spark.jars": f"{_CENTRAL}/{group.replace('.', '/')}/{name}/{of_tokens}/{name}-{of_tokens}.jar",
    }


def kafka_dataframe_spout(
    spark: Any,  # noqa: ANN401  # pyspark's SparkSession; this module does not import PySpark
    bootstrap_servers: str,
    topics: str | Sequence[str],
    *,
    group_id: str | None = None,
    starting_offsets: str = "earliest",
    max_offsets_per_trigger: int | None = 100_000,
    on_data_loss: Literal["stop", "go_on"] = "stop",
    options: Mapping[str, str] | None = None,
    label: Literal["key", "value"] | None = None,
    key: Literal["key", "value"] | None = None,
) -> DataFrameSpout:
    """The records of topics as a ``DataFrameSpout``, received by Spark's own source.

    Args:
        spark: The session, which needs the jars of :func:`kafka_packages`.
        bootstrap_servers: ``"host:9092,..."``.
        topics: A topic or several, or one regular expression, which begins with ``^``.
        group_id: The group to which the frontier is committed every second, for lag tools. It is never read.
            None: nothing is committed.
        starting_offsets: ``"earliest"``, ``"latest"`` or Spark's JSON: where a new checkpoint begins.
        max_offsets_per_trigger: How many records a micro-batch takes; None: all that there are. It is the
            only back-pressure: ``max_spout_pending`` does not apply.
        on_data_loss: What to do when records are gone before they were read, because retention removed them
            or the topic was deleted and created again. ``"stop"``: stop with an error that names the offsets.
            ``"go_on"``: continue with the records that there are.
        options: Further options of Spark's source, such as ``kafka.security.protocol``. With ``group_id`` the
            security options also configure the client that commits, as far as it knows them: also user and
            password of ``kafka.sasl.jaas.config``, but no Java trust store. Give it ``kafka.ssl.ca.location``
            instead.
        label: What people call a record, as of a ``DataFrameSpout``: ``"key"`` or ``"value"``.
        key: What names the message, likewise: see ``key`` of a ``DataFrameSpout``. A record needs none to
            count once; it is for topics that have the same event in several records. For labels and keys from
            elsewhere read Spark's source by yourself, add a column, and give it to a ``DataFrameSpout``.

    Returns:
        A spout that emits ``["topic", "partition", "offset", "key", "value", "timestamp_ms"]``; a record's
        message id is ``(topic, partition, offset)``.

    Raises:
        ConfigError: The session has no Kafka source; the error names the jars.
    """
    names = [topics] if isinstance(topics, str) else list(topics or ())
    where = f"kafka_dataframe_spout(..., {names!r})"
    settings_of(bootstrap_servers, None, {}, where)
    if not names or not all(names):
        raise ConfigError("topics names no topic", where, 'name one, or several: ["orders", "clicks"]')
    if on_data_loss not in ("stop", "go_on"):
        raise ConfigError(f"on_data_loss is {on_data_loss!r}", where, 'give "stop" or "go_on"')
    for argument, given in (("label", label), ("key", key)):
        if given not in (None, "key", "value"):
            fix = 'give "key" or "value"; for others give DataFrameSpout a DataFrame with a column of them'
            raise ConfigError(f"{argument} is {given!r:.60}", where, fix)
    is_pattern = len(names) == 1 and names[0].startswith("^")
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option(
            "subscribePattern" if is_pattern else "subscribe", names[0] if is_pattern else ",".join(names)
        )
        .option("startingOffsets", starting_offsets)
        .option("failOnDataLoss", "true" if on_data_loss == "stop" else "false")
    )
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
    try:
        records = reader.options(**(options or {})).load()
    except Exception as error:
        if "kafka" not in str(error).lower() or "find" not in str(error).lower():
            raise
        what = f"this session of Spark {spark.version} has no Kafka source"
        fix = "make it with the jars: SparkSession.builder.config(map=kafka_packages(pyspark.__version__))"
        raise ConfigError(what, where, fix) from error
    frame = records.selectExpr(*_ID, "key", "value", "unix_millis(timestamp) as timestamp_ms")
    assert tuple(frame.columns) == FIELDS, "the promised fields"
    if group_id is None:
        return DataFrameSpout(frame, list(_ID), label=label, key=key)
    frontier = GroupFrontier(bootstrap_servers, group_id, client_settings(options or {}))
    return DataFrameSpout(frame, list(_ID), frontier, label=label, key=key)


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The security options of Spark's source, under librdkafka's names.

    User and password are taken from ``sasl.jaas.config``. A Java trust store is left out.
    """
    given = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl."))
    }
    login = given.pop("sasl.jaas.config", "")
    if "PlainLoginModule" in login or "ScramLoginModule" in login:
        named = {name: value for name, value in _OF_JAAS.findall(login) if name in ("username", "password")}
        given = {f"sasl.{name}": value for name, value in named.items()} | given
    return {name: value for name, value in given.items() if not name.startswith("ssl.truststore.")}


_OF_JAAS: Final = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_UNKNOWN: Final = re.compile(r'No such configuration property: "([^"]*)"')


class Frontier:
    """How far the records of each partition are done, from the verdicts that an ``Acknowledger`` receives."""

    def __init__(self) -> None:
        """Begin without verdicts."""
        self._ends: dict[tuple[str, int], int] = {}
        self._open: dict[tuple[str, int], set[int]] = {}

    def note_open(self, message_ids: Sequence[Hashable]) -> None:
        """Records were read and are open."""
        for topic, number, offset in cast("Sequence[_RecordId]", message_ids):
            self._open.setdefault((topic, number), set()).add(offset)
            self._note(topic, number, offset)

    def note_done(self, message_ids: Sequence[Hashable]) -> None:
        """Records were read and are done."""
        for topic, number, offset in cast("Sequence[_RecordId]", message_ids):
            waiting = self._open.get((topic, number))
            if waiting:
                waiting.discard(offset)
            self._note(topic, number, offset)

    def offsets(self) -> dict[tuple[str, int], int]:
        """The lowest open offset of each partition; where none is open, the one after the last read."""
        return {key: min(self._open.get(key) or (end,)) for key, end in self._ends.items()}

    def _note(self, topic: str, number: int, offset: int) -> None:
        key = topic, number
        if offset >= self._ends.get(key, 0):
            self._ends[key] = offset + 1


class GroupFrontier(Acknowledger):
    """Commits the frontier to a consumer group without members. A failed commit is repeated later."""

    keep_alive_secs = _COMMIT_SECS

    def __init__(self, bootstrap_servers: str, group_id: str, config: Mapping[str, Any]) -> None:
        """Check the settings; ``open`` connects."""
        where = f"group {group_id!r} at {bootstrap_servers}"
        self._settings = settings_of(bootstrap_servers, config, {"group.id": group_id}, where)
        self._where = where
        self._consumer: Any = None
        self._frontier = Frontier()
        self._committed: dict[tuple[str, int], int] = {}

    def open(self, config: Config, context: TaskContext) -> None:  # noqa: ARG002
        """Note the records that an earlier run left open."""
        self._frontier, self._committed = Frontier(), {}
        self._frontier.note_open(context.open_message_ids)
        while True:
            try:
                self._consumer = Consumer(self._settings | {"enable.auto.commit": False}, logger=client_log)
                return
            except (KafkaException, TypeError, ValueError) as error:
                unknown = _UNKNOWN.search(str(error))
                if unknown is None or self._settings.pop(unknown[1], None) is None:
                    what = f"Kafka's client refuses its settings: {error}"
                    raise ConfigError(what, self._where, "correct options") from None

    def open_batch(self, message_ids: Sequence[Hashable]) -> None:
        """Hold the frontier at these records."""
        self._frontier.note_open(message_ids)

    def ack_batch(self, message_ids: Sequence[Hashable]) -> None:
        """Let the frontier pass these records."""
        self._frontier.note_done(message_ids)

    def fail_batch(self, failures: Sequence[tuple[Hashable, Failure]]) -> None:
        """Let the frontier pass these records: they are not tried again."""
        self._frontier.note_done([message_id for message_id, _ in failures])

    def keep_alive(self) -> None:
        """Commit frontiers that have moved. Raises a ConnectorError where that fails."""
        moved = {
            key: offset
            for key, offset in self._frontier.offsets().items()
            if self._committed.get(key) != offset
        }
        if not moved or self._consumer is None:
            return
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in moved.items()]
        try:
            # A commit alone has no time limit: this call finds out whether a server answers.
            self._consumer.list_topics(offsets[0].topic, timeout=CONNECT_SECS)
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            explained = connector_error(error.args[0], self._where)
            fix = f"{explained.fix}; records are processed all the same, only lag tools see an old offset"
            raise ConnectorError(explained.what, explained.where, fix, can_retry=True) from error
        self._committed |= moved

    def close(self) -> None:
        """Commit, and disconnect."""
        with suppress(ConnectorError):
            self.keep_alive()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
