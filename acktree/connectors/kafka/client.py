"""Settings of Kafka's client, and its errors as ConnectorErrors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from acktree import ConfigError, ConnectorError
from acktree.connectors.client_errors import Cause

FIELDS: Final = ("topic", "partition", "offset", "key", "value", "timestamp_ms")
"""What both spouts emit."""
CONNECT_SECS: Final = 3.0
client_log: Final = logging.getLogger("confluent_kafka")
# The client's errors say all that it logs: a refused login would log a line a second.
if client_log.level == logging.NOTSET:
    client_log.setLevel(logging.CRITICAL)

_LOGIN: Final = Cause(
    "Kafka refused the login",
    "correct sasl.mechanism, sasl.username and sasl.password in config; nothing was received or sent",
)
_TLS: Final = Cause(
    "Kafka and this client do not agree on TLS",
    "correct security.protocol in config, or use the port that speaks TLS and trust its certificate",
)
_ACCESS: Final = Cause(
    "Kafka refused access",
    "give the user the right to the topic (READ or WRITE, DESCRIBE) and to the group (READ)",
)
ABSENT: Final = Cause("there is no such topic", "create the topic, or correct its name, and submit again")
_RECORD: Final = Cause(
    "Kafka refuses this record", "correct it, or raise the topic's limits (max.message.bytes)"
)
_WRONG: Final = Cause("Kafka refuses a setting", "correct what it names in config, and submit again")
_FATAL: Final = Cause("Kafka's client cannot go on", "see what the server says, and submit again")
_PASSES: Final = Cause(
    "Kafka does not answer as it should",
    "check that the servers run and are reachable; it is tried again until then",
    passes=True,
)
_CAUSES: Final = {
    _LOGIN: "_AUTHENTICATION SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE "
    "UNACCEPTABLE_CREDENTIAL DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_NOT_FOUND "
    "DELEGATION_TOKEN_AUTH_DISABLED",
    _TLS: "_SSL",
    _ACCESS: "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED SECURITY_DISABLED",
    ABSENT: "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION TOPIC_EXCEPTION",
    _RECORD: "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE INVALID_RECORD INVALID_TIMESTAMP "
    "POLICY_VIOLATION UNSUPPORTED_FOR_MESSAGE_FORMAT _KEY_SERIALIZATION _VALUE_SERIALIZATION",
    _WRONG: "_INVALID_ARG _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _UNSUPPORTED_FEATURE _NOT_CONFIGURED "
    "_INVALID_TYPE UNSUPPORTED_VERSION UNSUPPORTED_COMPRESSION_TYPE INVALID_REQUIRED_ACKS INVALID_GROUP_ID "
    "INVALID_CONFIG INVALID_SESSION_TIMEOUT INVALID_REQUEST UNSUPPORTED_ASSIGNOR INVALID_REGULAR_EXPRESSION",
    _FATAL: "_FATAL _FENCED FENCED_INSTANCE_ID PRODUCER_FENCED",
}
ERRORS: Final = {
    getattr(KafkaError, name): cause
    for cause, names in _CAUSES.items()
    for name in names.split()
    if hasattr(KafkaError, name)  # a name of a newer client than the one that is installed
}
"""By librdkafka's code what does not pass by itself. All other codes do: leaders, coordinators, members and
replicas that change, quotas, timeouts."""
UNKNOWN_TOPIC: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
)
OFFSET_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION)  # noqa: SLF001
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
    cause = ERRORS.get(error.code(), _PASSES)
    if is_other_protocol(error):
        cause = _TLS
    elif cause.passes and is_fatal(error):
        cause = _FATAL
    return cause.error(error.str(), where)


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
