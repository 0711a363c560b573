"""Which errors of which client pass by themselves, and what is done with those that nobody knows.

The errors are made as the clients make them, from what a server sends.
"""

from __future__ import annotations

import socket
import sqlite3

import pytest

from acktree.connectors.client_errors import Cause

REFUSED, PASSES, FINAL = "refused the login", True, False


def check(error, passes, words="") -> None:
    """An error with three parts, that has the broker's words."""
    assert error.can_retry is passes, error
    assert all((error.what, error.where, error.fix))
    assert words in str(error)


REDIS = {
    PASSES: [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "ASK 3999 127.0.0.1:6381",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "ERR max number of clients reached",
        "ERR max number of clients + cluster connections reached",
        "SOMETHINGNEW that nobody knows yet",
    ],
    FINAL: [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "ERR invalid password",
        "ERR AUTH <password> called without any password configured for the default user.",
        "NOPERM this user has no permissions to run the 'xreadgroup' command",
        "NOGROUP No such key 'orders' or consumer group 'g' in XREADGROUP with GROUP option",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "MOVED 3999 127.0.0.1:6381",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "EXECABORT Transaction discarded because of previous errors.",
        "ERR unknown command 'XADD'",
        "ERR syntax error",
        "BUSYGROUP Consumer Group name already exists",
    ],
}


@pytest.mark.parametrize(("passes", "answer"), [(key, each) for key, many in REDIS.items() for each in many])
def test_an_answer_of_redis(passes, answer: str) -> None:
    connector = pytest.importorskip("acktree.connectors.redis")
    error = connector.redis._parsers.base.BaseParser.parse_error(answer)
    found = connector.connector_error(error, "stream 's'")
    if answer.startswith("BUSYGROUP"):  # not BUSY
        assert "cannot serve" not in found.what
        return
    check(found, passes)
    assert (REFUSED in found.what) is answer.startswith(("NOAUTH", "WRONGPASS", "ERR invalid", "ERR AUTH"))
    if REFUSED not in found.what:
        assert answer.partition(" ")[0] in found.what


def test_what_redis_py_raises_itself() -> None:
    connector = pytest.importorskip("acktree.connectors.redis")
    raised = connector.redis.exceptions
    for error in (raised.ConnectionError("gone"), raised.TimeoutError("slow"), ConnectionResetError("reset")):
        check(connector.connector_error(error, "here"), PASSES, "connection to Redis is gone")
    value = raised.DataError("Invalid input of type: 'NoneType'.")
    check(connector.connector_error(value, "here"), FINAL, "redis-py cannot send this value")


AMQP = {
    PASSES: [
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"),
        (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"),
        (404, "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible"),
        (404, "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor"),
        (405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'"),
        (
            406,
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 9 ms",
        ),
        (406, "PRECONDITION_FAILED - unknown delivery tag 7"),
        (501, "FRAME_ERROR - type 1, all octets = <<>>"),
        (504, "CHANNEL_ERROR - expected 'channel.open'"),
        (505, "UNEXPECTED_FRAME - expected content body"),
        (506, "RESOURCE_ERROR"),
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (1) is reached"),
        (541, "INTERNAL_ERROR - access to vhost '/' refused for user 'u': vhost '/' is down"),
        (312, "NO_ROUTE"),
        (313, "NO_CONSUMERS"),
        (599, "SOMETHING_NEW"),
        (200, "Normal shutdown"),
    ],
    FINAL: [
        (311, "CONTENT_TOO_LARGE"),
        (402, "INVALID_PATH - unknown vhost"),
        (403, "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'u'"),
        (404, "NOT_FOUND - no queue 'q' in vhost '/'"),
        (404, "NOT_FOUND - no exchange 'e' in vhost '/'"),
        (406, "PRECONDITION_FAILED - message size 9 is larger than configured max size 8"),
        (502, "SYNTAX_ERROR"),
        (503, "COMMAND_INVALID - unknown exchange type"),
        (530, "NOT_ALLOWED - vhost x not found"),
        (540, "NOT_IMPLEMENTED - basic.get not supported by stream queues queue 'q' in vhost '/'"),
    ],
}


@pytest.mark.parametrize(("passes", "answer"), [(key, each) for key, many in AMQP.items() for each in many])
@pytest.mark.parametrize("kind", ["ChannelClosedByBroker", "ConnectionClosedByBroker"])
def test_a_reply_code_of_amqp(passes, answer, kind: str) -> None:
    pika = pytest.importorskip("pika")
    from acktree.connectors.rabbitmq_client import connector_error  # noqa: PLC0415  # an extra

    check(connector_error(getattr(pika.exceptions, kind)(*answer), "queue 'q'", "q"), passes, answer[1])


def test_a_rabbitmq_that_does_not_listen_is_named_by_what_the_system_says() -> None:
    pika = pytest.importorskip("pika")
    connector_error = pytest.importorskip("acktree.connectors.rabbitmq_client").connector_error
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(pika.exceptions.AMQPConnectionError) as raised:
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", taken.getsockname()[1]))
    check(connector_error(raised.value, "here", "q"), PASSES, "ConnectionRefusedError: ")


@pytest.mark.parametrize("error", ["ShortStringTooLong", "UnsupportedAMQPFieldException"])
def test_what_pika_does_not_send_is_not_an_outage(error: str) -> None:
    pika = pytest.importorskip("pika")
    from acktree.connectors.rabbitmq_client import connector_error  # noqa: PLC0415  # an extra

    check(connector_error(getattr(pika.exceptions, error)("x"), "here", "q"), FINAL, "cannot send this")


JETSTREAM = {
    PASSES: [
        (400, 10002, "resource limits exceeded for account"),
        (429, 10167, "too many requests"),
        (500, 10009, "JetStream cluster can not handle request"),
        (500, 10028, "insufficient memory resources available"),
        (500, 10047, "insufficient storage resources available"),
        (500, 10118, "stream is offline"),
        (503, 10004, "incomplete results"),
        (503, 10008, "JetStream system temporarily unavailable"),
        (503, 10023, "insufficient resources"),
        (503, 10039, "JetStream not enabled for account"),
        (503, 10077, "maximum messages exceeded"),
        (599, 19999, "something new"),
    ],
    FINAL: [
        (400, 10003, "bad request"),
        (400, 10054, "message size exceeds maximum allowed"),
        (400, 10071, "wrong last sequence: 7"),
        (404, 10014, "consumer not found"),
        (404, 10059, "stream not found"),
        (503, 10010, "JetStream clustering support required"),
        (503, 10036, "not currently supported in clustered mode"),
        (499, 19999, "something new of the sender"),
    ],
}


@pytest.mark.parametrize(
    ("passes", "answer"), [(key, each) for key, many in JETSTREAM.items() for each in many]
)
def test_an_answer_of_jetstream(passes, answer) -> None:
    errors = pytest.importorskip("nats.js.errors")
    from acktree.connectors.nats_client import connector_error  # noqa: PLC0415  # an extra

    with pytest.raises(errors.APIError) as raised:
        errors.APIError.from_error(dict(zip(("code", "err_code", "description"), answer, strict=True)))
    check(connector_error(raised.value, "stream 's'"), passes, answer[2])


SERVER = {
    PASSES: [
        "Stale Connection", "Slow Consumer", "Authorization Timeout", "maximum connections exceeded",
        "maximum account active connections exceeded", "maximum subscriptions exceeded", "Server Shutdown",
        "Something New",
    ],
    FINAL: [
        "Authorization Violation", "User Authentication Expired", "Account Authentication Expired",
        'Permissions Violation for Publish to "$JS.API"', "Maximum Payload Violation", "Invalid Subject",
        "Maximum Control Line Exceeded", "Unknown Protocol Operation", "Secure Connection - TLS Required",
        "Invalid Client Protocol",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("passes", "words"), [(key, each) for key, many in SERVER.items() for each in many])
def test_what_a_server_of_nats_says_when_it_closes_a_connection(passes, words: str) -> None:
    errors = pytest.importorskip("nats.errors")
    from acktree.connectors.nats_client import connector_error  # noqa: PLC0415  # an extra

    check(connector_error(errors.Error(f"nats: '{words}'"), "here"), passes)


NATS_PY = {
    PASSES: [
        "TimeoutError", "NoRespondersError", "StaleConnectionError", "OutboundBufferLimitError",
        "UnexpectedEOF", "FlushTimeoutError", "ConnectionClosedError", "NoServersError",
        "ConnectionDrainingError",
        "ConnectionReconnectingError", "ProtocolError", "DrainTimeoutError",
    ],
    FINAL: [
        "MaxPayloadError", "BadSubjectError", "AuthorizationError", "SecureConnRequiredError",
        "SecureConnWantedError", "InvalidUserCredentialsError", "BadTimeoutError", "InvalidCallbackTypeError",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("passes", "name"), [(key, each) for key, many in NATS_PY.items() for each in many])
def test_what_nats_py_raises(passes, name: str) -> None:
    errors = pytest.importorskip("nats.errors")
    from acktree.connectors.nats_client import connector_error  # noqa: PLC0415  # an extra

    if not hasattr(errors, name):
        pytest.skip("a newer nats-py has it")
    found = connector_error(getattr(errors, name)(), "here")
    check(found, passes)
    assert ("connection to NATS is gone" in found.what) is passes


def test_a_value_that_nats_py_cannot_send_is_not_an_outage() -> None:
    pytest.importorskip("nats")
    from acktree.connectors.nats_client import connector_error  # noqa: PLC0415  # an extra

    check(connector_error(TypeError("object of type 'int' has no len()"), "here"), FINAL, "cannot send")


KAFKA = {
    PASSES: "_TRANSPORT _ALL_BROKERS_DOWN _RESOLVE _TIMED_OUT _MSG_TIMED_OUT _WAIT_COORD _MAX_POLL_EXCEEDED "
    "_NO_OFFSET LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE "
    "NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR "
    "NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND ILLEGAL_GENERATION UNKNOWN_MEMBER_ID "
    "REBALANCE_IN_PROGRESS KAFKA_STORAGE_ERROR FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH OFFSET_NOT_AVAILABLE "
    "THROTTLING_QUOTA_EXCEEDED UNSTABLE_OFFSET_COMMIT GROUP_MAX_SIZE_REACHED INCONSISTENT_GROUP_PROTOCOL "
    "STALE_MEMBER_EPOCH UNKNOWN",
    FINAL: "_AUTHENTICATION SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM _SSL "
    "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
    "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION TOPIC_EXCEPTION MSG_SIZE_TOO_LARGE "
    "RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP POLICY_VIOLATION _INVALID_ARG "
    "UNSUPPORTED_VERSION INVALID_GROUP_ID INVALID_SESSION_TIMEOUT INVALID_REQUIRED_ACKS _FATAL _FENCED "
    "PRODUCER_FENCED DELEGATION_TOKEN_EXPIRED",
}


@pytest.mark.parametrize(
    ("passes", "name"), [(key, each) for key, names in KAFKA.items() for each in names.split()]
)
def test_a_code_of_librdkafka(passes, name: str) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    from acktree.connectors.kafka.client import connector_error  # noqa: PLC0415  # an extra

    error = kafka.KafkaError(getattr(kafka.KafkaError, name))
    check(connector_error(error, "topic 't'"), passes, error.str())


SQS = {
    PASSES: [
        ("RequestThrottled", 400), ("ThrottlingException", 400), ("KmsThrottled", 400), ("OverLimit", 403),
        ("InternalError", 500), ("ServiceUnavailable", 503), ("RequestTimeout", 400),
        ("QueueDeletedRecently", 400), ("PriorRequestNotComplete", 400), ("SomethingNew", 502),
    ],
    FINAL: [
        ("InvalidClientTokenId", 403), ("ExpiredToken", 403), ("SignatureDoesNotMatch", 403),
        ("InvalidSecurity", 403), ("AccessDenied", 403), ("QueueDoesNotExist", 400), ("InvalidAddress", 404),
        ("KmsAccessDenied", 400), ("KmsDisabled", 400), ("KmsNotFound", 400), ("RequestExpired", 400),
        ("UnsupportedOperation", 400), ("InvalidMessageContents", 400), ("SomethingNew", 418),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("passes", "answer"), [(key, each) for key, many in SQS.items() for each in many])
@pytest.mark.parametrize("prefix", ["", "AWS.SimpleQueueService.", "com.amazonaws.sqs#"])
def test_a_code_of_sqs(passes, answer, prefix: str) -> None:
    raised = pytest.importorskip("botocore.exceptions")
    from acktree.connectors.sqs_client import connector_error  # noqa: PLC0415  # an extra

    code, status = answer
    response = {"Error": {"Code": prefix + code, "Message": "as the test says"}}
    response["ResponseMetadata"] = {"HTTPStatusCode": status}
    check(connector_error(raised.ClientError(response, "ReceiveMessage"), "here"), passes, code)


BOTO = {
    PASSES: {
        "EndpointConnectionError": {"endpoint_url": "u"}, "ConnectTimeoutError": {"endpoint_url": "u"},
        "ReadTimeoutError": {"endpoint_url": "u"}, "ConnectionClosedError": {"endpoint_url": "u"},
        "ProxyConnectionError": {"proxy_url": "u"},
        "IncompleteReadError": {"actual_bytes": 1, "expected_bytes": 2},
        "CredentialRetrievalError": {"provider": "p", "error_msg": "e"},
        "MetadataRetrievalError": {"error_msg": "e"},
    },
    FINAL: {
        "NoCredentialsError": {}, "PartialCredentialsError": {"provider": "p", "cred_var": "c"},
        "SSLError": {"endpoint_url": "u", "error": "e"}, "ParamValidationError": {"report": "r"},
        "NoRegionError": {},
    },
}  # fmt: skip


@pytest.mark.parametrize(("passes", "name"), [(key, each) for key, many in BOTO.items() for each in many])
def test_what_boto3_raises(passes, name: str) -> None:
    raised = pytest.importorskip("botocore.exceptions")
    from acktree.connectors.sqs_client import connector_error  # noqa: PLC0415  # an extra

    check(connector_error(getattr(raised, name)(**BOTO[passes][name]), "here"), passes)


ROW, TABLE, LOGIN, GONE = "refused the row", "cannot be written", REFUSED, "does not answer"
SQLSTATES = {
    GONE: "08006 08001 25006 25P02 26000 40001 40P01 40003 53100 53200 53300 55006 55P03 57014 57P01 57P02 "
    "57P03 58030 72000",
    TABLE: "0A000 3D000 3F000 42501 42703 42P01 42P10 55000 57P04 XX001",
    LOGIN: "28000 28P01",
    ROW: "22001 22003 22P02 23502 23505 23514 40002 42804 44000 54000 P0001 XX000 99999",
}
NUMBERS = {
    GONE: "1021 1040 1053 1114 1129 1158 1203 1205 1213 1226 1290 1317 1836 1927 2002 2003 2006 2013 3024 "
    "3572 4031",
    TABLE: "1044 1049 1054 1142 1146",
    LOGIN: "1045 1698",
    ROW: "1048 1062 1264 1366 1406 1452 3819 9999",
}
NAMES = {
    GONE: "SQLITE_BUSY SQLITE_BUSY_SNAPSHOT SQLITE_LOCKED SQLITE_FULL SQLITE_IOERR_WRITE SQLITE_PROTOCOL "
    "SQLITE_NOMEM SQLITE_INTERRUPT SQLITE_SCHEMA",
    TABLE: "SQLITE_READONLY_DBMOVED SQLITE_CANTOPEN SQLITE_CORRUPT SQLITE_NOTADB SQLITE_PERM SQLITE_AUTH",
    ROW: "SQLITE_CONSTRAINT_UNIQUE SQLITE_MISMATCH SQLITE_TOOBIG SQLITE_RANGE",
}


def of_state(code: str) -> Exception:
    made = Exception("as the test says")
    made.sqlstate = code  # type: ignore[attr-defined]  # as psycopg has it
    return made


def of_number(code: str) -> Exception:
    return Exception(int(code), "as the test says")


def of_name(code: str) -> Exception:
    made = sqlite3.DatabaseError("as the test says")
    made.sqlite_errorname = code
    return made


SQL_ERRORS = [
    pytest.param(group, make, code, id=code)
    for table, make in ((SQLSTATES, of_state), (NUMBERS, of_number), (NAMES, of_name))
    for group, codes in table.items()
    for code in codes.split()
]


@pytest.mark.parametrize(("group", "make", "code"), SQL_ERRORS)
@pytest.mark.parametrize("wrapper", ["OperationalError", "DatabaseError", "InternalError"])
def test_an_error_of_a_database(group: str, make, code: str, wrapper: str) -> None:
    sa = pytest.importorskip("sqlalchemy")
    from acktree.connectors.sql import explained  # noqa: PLC0415  # an extra

    error = getattr(sa.exc, wrapper)("INSERT ...", {}, make(code))
    found, is_row = explained(error, "table 'orders'", "sqlite://")
    assert group in found.what
    assert (found.can_retry, is_row) == (group == GONE, group == ROW)


@pytest.mark.parametrize("name", ["TimeoutError", "DisconnectionError", "PendingRollbackError"])
def test_what_sqlalchemy_raises_of_a_connection_passes(name: str) -> None:
    sa = pytest.importorskip("sqlalchemy")
    from acktree.connectors.sql import explained  # noqa: PLC0415  # an extra

    found, is_row = explained(getattr(sa.exc, name)("gone"), "table 'orders'", "sqlite://")
    assert (found.can_retry, is_row) == (True, False)


def test_a_cause_shows_the_beginning_of_the_brokers_words() -> None:
    error = Cause("it refused", "do this", passes=True).error("w" * 1000, "here")
    assert (error.what, error.where, error.fix, error.can_retry) == (
        "it refused: " + "w" * 200,
        "here",
        "do this",
        True,
    )
