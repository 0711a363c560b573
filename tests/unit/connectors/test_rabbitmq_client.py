"""Headers of AMQP as the RabbitMQ spout reads them, beside pika's own reader."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest

pika = pytest.importorskip("pika")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from acktree.connectors.rabbitmq_client import UNREADABLE, Wire  # noqa: E402

NAMES = st.text(max_size=40)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.decimals(Decimal(-1000), Decimal(1000), places=2)
    | st.integers(0, 253_370_764_800).map(lambda secs: datetime.fromtimestamp(secs, UTC))
)
FIELDS = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=6)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": NAMES,
        "content_encoding": NAMES,
        "headers": st.dictionaries(NAMES, FIELDS),
        "message_id": NAMES,
        "timestamp": st.integers(0, (1 << 64) - 1),
        "delivery_mode": st.sampled_from([1, 2]),
    },
)


def read(raw: bytes):
    return Wire._read_frame(SimpleNamespace(_frame_buffer=raw))


@given(PROPERTIES, st.binary(max_size=20))
def test_headers_that_pika_writes_are_read_as_they_were(properties, rest: bytes) -> None:
    sent = pika.frame.Header(1, 7, pika.BasicProperties(**properties)).marshal()
    size, frame = read(sent + rest)
    assert (size, frame.channel_number, frame.body_size) == (len(sent), 1, 7)
    assert (frame.properties.headers or {}) == (properties.get("headers") or {})
    for end in range(0, len(sent), 7):  # the rest of it comes later
        assert read(sent[:end]) == (0, None)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_whatever_a_header_frame_holds_it_is_read_or_cannot_be(content: bytes, kinds: int) -> None:
    flags = (1 << 13) | (kinds << 14)
    payload = b"\x00\x3c\x00\x00" + (7).to_bytes(8) + flags.to_bytes(2) + content
    size, frame = read(b"\x02\x00\x01" + len(payload).to_bytes(4) + payload + b"\xce")
    assert size == len(payload) + 8
    assert frame.properties.headers is UNREADABLE or isinstance(frame.properties.headers, dict)
