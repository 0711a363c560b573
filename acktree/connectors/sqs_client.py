"""boto3's client for SQS, the format of messages, and boto3's errors. Needs ``acktree[sqs]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from math import isfinite
from numbers import Integral
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from acktree import ConnectorError
from acktree.connectors import client_errors
from acktree.connectors.batch_sink import as_text, misfit
from acktree.connectors.client_errors import Cause

try:
    import boto3
    import botocore.config
    import botocore.exceptions
except ModuleNotFoundError as missing:
    raise client_errors.missing_client(missing, "sqs") from missing

T = TypeVar("T")

__all__ = [
    "LOST",
    "PAGE",
    "REFUSED",
    "Message",
    "as_characters",
    "client",
    "connector_error",
    "host_and_path",
    "may_not",
    "pages_of",
    "read",
    "refusal_of",
    "session_of",
    "size_of",
    "typed",
]

LOST: Final = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, OSError)
"""What boto3 raises."""
REFUSED: Final = botocore.exceptions.ClientError
"""What boto3 raises where SQS has answered."""
PAGE: Final = 10
"""The largest number of messages in a request."""
_CONNECT_SECS: Final = 2
_READ_SECS: Final = 4
_TRIES: Final = 2

_LOGIN: Final = frozenset(
    {
        "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId",
        "InvalidClientTokenId", "InvalidSecurity", "InvalidToken", "MissingAuthenticationToken",
        "SignatureDoesNotMatch", "UnrecognizedClientException",
    }
)  # fmt: skip
_ACCESS: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "AuthorizationError", "NotAuthorized", "OptInRequired"}
)
_ABSENT: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"})
_CLOCK: Final = frozenset({"RequestExpired", "RequestTimeTooSkewed"})
_KEY: Final = frozenset(
    {
        "KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound",
        "KmsOptInRequired",
    }
)  # fmt: skip
_THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded", "KmsThrottled", "LimitExceededException", "RequestLimitExceeded",
        "RequestThrottled", "RequestThrottledException", "SlowDown", "ThrottledException", "Throttling",
        "ThrottlingException", "TooManyRequestsException",
    }
)  # fmt: skip
_BUSY: Final = frozenset(
    {
        "InternalError", "InternalFailure", "PriorRequestNotComplete", "QueueDeletedRecently",
        "RequestTimeout", "RequestTimeoutException", "ServiceFailure", "ServiceUnavailable",
    }
)  # fmt: skip
_CREDENTIALS: Final = (
    "give boto3 credentials of a user that may read this queue (AWS_ACCESS_KEY_ID, a profile, a role)"
)
_LATER: Final = Cause(
    "the connection to SQS is gone",
    "check that the server runs and is reachable; it is tried again until then",
    passes=True,
)
_WRONG: Final = Cause("SQS refused", "correct what it names, and submit again")
_ACTIONS: Final = "ReceiveMessage, DeleteMessage, ChangeMessageVisibility, GetQueueAttributes; or SendMessage"
_CAUSES: Final = (
    (_LOGIN, Cause("SQS refused the login", _CREDENTIALS)),
    (
        _ACCESS,
        Cause(
            "SQS refused access",
            f"allow {_ACTIONS}",
        ),
    ),
    (
        _ABSENT,
        Cause(
            "there is no such queue",
            "create the queue, or correct its URL, region or endpoint_url, and submit again",
        ),
    ),
    (_CLOCK, Cause("SQS refuses the time of this machine", "set its clock")),
    (
        _KEY,
        Cause(
            "SQS cannot use the queue's key of KMS",
            "enable the key, and allow the user kms:Decrypt or kms:GenerateDataKey",
        ),
    ),
    (
        {"OverLimit"},
        Cause(
            "SQS has too many messages in flight",
            "delete or fail what is open sooner, or lower max_spout_pending; it is tried again",
            passes=True,
        ),
    ),
    (
        _THROTTLED,
        Cause(
            "SQS throttles",
            "lower the rate (threads, parallelism), or raise the quota; it is tried again",
            passes=True,
        ),
    ),
    (_BUSY, _LATER),
)
ERRORS: Final = {code: cause for codes, cause in _CAUSES for code in codes}
"""By SQS's code. Another code passes if its status is one of the server's (5xx), and else does not."""
_SERVER_ERROR: Final = 500
_DIGITS: Final = 7
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_NO_CHARACTER: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What is not in the set of characters that SQS documents for a message."""


class Message(NamedTuple):
    """A delivery.

    Attributes:
        handle: The receipt handle, with which it is deleted or hidden.
        attempt: The number of this delivery, from 1.
        attributes: The message's own, and SQS's.
        received: When it came, as ``time.monotonic()`` counts.
    """

    message_id: str
    handle: str
    attempt: int
    body: str
    attributes: dict[str, str | bytes]
    received: float


def session_of(queue_url: str) -> Any:  # noqa: ANN401  # boto3's, which has no types
    """A session in the region of a queue's URL; where that names none, in the region that boto3 finds."""
    region = re.search(r"sqs[.-]([a-z]+-[a-z-]+-\d+)\.", queue_url)
    found = region[1] if region else boto3.session.Session().region_name
    return boto3.session.Session(region_name=found or "us-east-1")


def client(session: Any, endpoint_url: str | None, threads: int, *, wait_secs: int = 0) -> Any:  # noqa: ANN401
    """A client of boto3, which several threads may use. The second client of a session is made quickly.

    Args:
        wait_secs: How long its requests may wait on the server.
    """
    config = botocore.config.Config(
        connect_timeout=_CONNECT_SECS, read_timeout=_READ_SECS + wait_secs, max_pool_connections=threads + 1,
        retries={"mode": "standard", "total_max_attempts": _TRIES},
    )  # fmt: skip
    return session.client("sqs", endpoint_url=endpoint_url, config=config)


def pages_of(
    items: Iterable[T], *, most_bytes: int | None = None, size_of: Callable[[T], int] = lambda _: 0
) -> Iterator[list[T]]:
    """Pages of at most ten items and ``most_bytes`` bytes; a larger item is alone on its page.

    >>> [*pages_of([1, 2, 3, 9, 4], most_bytes=6, size_of=int)]
    [[1, 2, 3], [9], [4]]
    """
    page: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if page and (len(page) == PAGE or (most_bytes is not None and total + size > most_bytes)):
            yield page
            page, total = [], 0
        page.append(item)
        total += size
    if page:
        yield page


def read(message: Mapping[str, Any], now: float) -> Message:
    """A message from SQS's answer."""
    system = message.get("Attributes", {})
    own = {
        name: value.get("BinaryValue", value.get("StringValue"))
        for name, value in message.get("MessageAttributes", {}).items()
    }
    return Message(
        message["MessageId"], message["ReceiptHandle"], attempt=_attempt_of(system), body=message["Body"],
        attributes=own | system, received=now,
    )  # fmt: skip


def _attempt_of(system: Mapping[str, str]) -> int:
    """The number of a delivery. SQS's count includes the queue that a redrive policy moved a message from."""
    count = str(system.get("ApproximateReceiveCount", ""))
    is_of_this_queue = "DeadLetterQueueSourceArn" not in system
    return max(1, int(count)) if is_of_this_queue and count.isdecimal() and len(count) < _DIGITS else 1


def as_characters(name: str, value: object, where: str) -> str:
    """A text of characters that SQS has. Raises ConnectorError for anything else."""
    text = as_text(name, value, where)
    if odd := _NO_CHARACTER.search(text):
        what = f"{name} has the character {odd[0]!r} at {odd.start()}, which SQS does not take"
        raise ConnectorError(what, where, "leave it out, or emit the text in base64")
    return text


def typed(name: str, value: object, where: str) -> dict[str, str | bytes]:
    """A value as SQS takes it for an attribute of a message. Raises ConnectorError for other types."""
    if isinstance(value, bytes):
        return {"DataType": "Binary", "BinaryValue": value}
    shown = f"the attribute {name!r:.60}"
    if not _ATTRIBUTE.fullmatch(name):
        fix = "name it with letters, digits, _, - and ."
        raise ConnectorError(f"{shown} has a name that SQS does not take", where, fix)
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": as_characters(shown, value, where)}
    is_number = isinstance(value, Integral | float | Decimal) and not isinstance(value, bool)
    if not is_number or not (isinstance(value, Integral) or isfinite(value)):  # type: ignore[arg-type]  # a number
        raise misfit(shown, value, where, "emit a text, bytes or a finite number, such as str(value)")
    return {"DataType": "Number", "StringValue": f"{value:d}" if isinstance(value, Integral) else str(value)}


def size_of(entry: Mapping[str, Any]) -> int:
    """The size of an entry in bytes, as SQS counts it."""
    size = len(entry["MessageBody"].encode())
    for name, value in entry.get("MessageAttributes", {}).items():
        content = value.get("BinaryValue", value.get("StringValue", ""))
        content = content if isinstance(content, bytes) else content.encode()
        size += len(name) + len(value["DataType"]) + len(content)
    return size


def host_and_path(queue_url: str, where: str) -> str:
    """Host and path of a queue's URL."""
    parts = urlsplit(queue_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        form = "https://sqs.<region>.amazonaws.com/<account>/<queue>, without a user"
        raise client_errors.unreadable_url("SQS", ValueError(), where, form)
    return f"{parts.hostname}{parts.path}"


def connector_error(error: BaseException, where: str) -> ConnectorError:
    """What boto3 raised, as a ConnectorError: what it means, whether to try again, and the fix."""
    if isinstance(error, botocore.exceptions.ClientError):
        return _refusal(error, where)
    if isinstance(error, botocore.exceptions.SSLError):
        return client_errors.tls_mismatch("SQS", where, "https://", "http://")
    missing = (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError)
    if isinstance(error, missing):
        return client_errors.login_refused("SQS", where, _CREDENTIALS)
    if isinstance(error, _PASSING):
        return client_errors.gone("SQS", type(error).__name__, where)
    return ConnectorError(
        f"boto3 refused: {error!s:.{client_errors.SHORT}}", where, "correct what it names, and submit again"
    )


_PASSING: Final = (
    OSError, botocore.exceptions.HTTPClientError, botocore.exceptions.ConnectionError,
    botocore.exceptions.IncompleteReadError, botocore.exceptions.ChecksumError,
    botocore.exceptions.CredentialRetrievalError, botocore.exceptions.MetadataRetrievalError,
    botocore.exceptions.TokenRetrievalError,
)  # fmt: skip
"""What boto3 raises and what passes: connections, and services that give it credentials."""


def may_not(error: BaseException) -> bool:
    """Whether SQS has answered that this user may not ask."""
    answer = getattr(error, "response", {}).get("Error", {})
    return str(answer.get("Code", "")).rpartition(".")[2] in _ACCESS


def refusal_of(error: BaseException, where: str) -> ConnectorError | None:
    """Why a request was refused for one of its messages; None where it is not for what the messages have."""
    if isinstance(error, botocore.exceptions.ParamValidationError):
        words = str(error)
    elif isinstance(error, botocore.exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]
        if code in _LOGIN | _ACCESS | _ABSENT or connector_error(error, where).can_retry:
            return None
        words = f"{code}: {error.response['Error'].get('Message', '')}"
    else:
        return None
    what = f"SQS refused the message: {words:.{client_errors.SHORT}}"
    return ConnectorError(what, where, "correct what SQS names")


def _refusal(error: Any, where: str) -> ConnectorError:  # noqa: ANN401  # boto3's
    """An error that SQS answered, as a ConnectorError."""
    answer = error.response.get("Error", {})
    code = str(answer.get("Code", "")).rpartition(".")[2].rpartition("#")[2]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    words = f"{code}: {answer.get('Message', '')!s:.{client_errors.SHORT}}"
    cause = ERRORS.get(code)
    if cause is None:
        cause = _LATER if status >= _SERVER_ERROR else _WRONG
    return cause.error(words, where)
