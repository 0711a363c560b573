"""Settings of Kafka's client, and its errors as ConnectorErrors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from acktree import ConfigError, ConnectorError

FIELDS: Final = ("topic", "partition", "offset", "key", "value", "timestamp_ms")
"""What both spouts emit."""
CONNECT_SECS: Final = 3.0
client_log: Final = logging.getLogger("confluent_kafka")
# The client's errors say all that it logs: a refused login would log a line a second.
if client_log.level == logging.NOTSET:
    client_log.setLevel(logging.CRITICAL)

_REFUSED_LOGIN: Final = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)  # noqa: SLF001
_REFUSED_ACCESS: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
UNKNOWN_TOPIC: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
)
SERVERS_GONE: Final = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)  # noqa: SLF001


def settings_of(
    bootstrap_servers: str, given: Mapping[str, Any] | None, ours: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """The client's settings: what the user gives takes precedence over our defaults.

    Raises:
        ConfigError: No server is named.
    """
    servers: object = bootstrap_servers  # what a caller without a type checker may have passed
    if not isinstance(servers, str) or not servers.strip():
        what = "bootstrap_servers names no server"
        raise ConfigError(what, where, 'write "host:9092" or "one:9092,two:9092"')
    return {**ours, **(given or {}), "bootstrap.servers": servers}


def connector_error(error: KafkaError, where: str) -> ConnectorError:
    """An error of the client, as a ConnectorError: what it means, whether to try again, and the fix."""
    code, words = error.code(), error.str()
    if code in _REFUSED_LOGIN:
        fix = "correct sasl.username and sasl.password in config; nothing was received or sent"
        return ConnectorError("Kafka refused the login", where, fix)
    if code == KafkaError._SSL or is_other_protocol(error):  # noqa: SLF001
        fix = "correct security.protocol in config, or use the port that speaks TLS and trust its certificate"
        return ConnectorError("Kafka and this client do not agree on TLS", where, fix)
    if code in _REFUSED_ACCESS:
        fix = "give the user the right to the topic (READ or WRITE, DESCRIBE) and to the group (READ)"
        return ConnectorError(f"Kafka refused access: {words:.200}", where, fix)
    if code in UNKNOWN_TOPIC:
        fix = "create the topic, or correct its name, and submit again"
        return ConnectorError(f"there is no such topic: {words:.200}", where, fix)
    if is_fatal(error):
        fix = "see what the server says, and submit again"
        return ConnectorError(f"Kafka's client cannot go on: {words:.200}", where, fix)
    fix = "check that the servers run and are reachable; it is tried again until then"
    return ConnectorError(f"Kafka does not answer as it should: {words:.200}", where, fix, can_retry=True)


def is_other_protocol(error: KafkaError) -> bool:
    """Whether a server closed a new connection as it does when one side speaks TLS and the other does not.

    A server that stops closes connections in the same way. So it is a configuration error only where no
    connection was ever made.
    """
    return "PLAINTEXT broker listener?" in error.str() or "SSL listener?" in error.str()


def is_fatal(error: KafkaError) -> bool:
    """Whether the client is of no further use. A delivery's error has this code without the fatal mark."""
    return bool(error.fatal()) or error.code() == KafkaError._FATAL  # noqa: SLF001


def is_final(error: KafkaError) -> bool:
    """Whether a new attempt cannot succeed."""
    return not (connector_error(error, "").can_retry or is_other_protocol(error))
