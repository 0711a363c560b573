"""None for an argument that takes several names is refused like an empty list, with the fix."""

from __future__ import annotations

import pytest

from acktree import ConfigError
from acktree.connectors.kestrel import KestrelSpout


def test_no_topics_of_kafka_are_refused_with_the_fix() -> None:
    kafka = pytest.importorskip("acktree.connectors.kafka", exc_type=ModuleNotFoundError)
    for none in (None, []):
        with pytest.raises(ConfigError, match="topics names no topic"):
            kafka.kafka_dataframe_spout(None, "broker:9092", none)
        with pytest.raises(ConfigError, match="topics names no topic") as caught:
            kafka.KafkaSpout("broker:9092", none, "group")
        assert "name one, or several" in caught.value.fix


def test_no_servers_of_kestrel_are_refused_with_the_fix() -> None:
    for none in (None, []):
        with pytest.raises(ConfigError, match="there is no server") as caught:
            KestrelSpout(none, "queue")
        assert "give one or more" in caught.value.fix
