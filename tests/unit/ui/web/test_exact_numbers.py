"""A browser reads each number of an answer as it is: JavaScript has the whole numbers up to 2**53 alone."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from dataclasses import replace
from decimal import Decimal

import pytest

pytest.importorskip("starlette")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.data.instruments import Increment
from acktree.core.data.values import batch_to_bytes, encode_rows
from acktree.ui import letters
from acktree.ui.snapshot import for_browsers
from acktree.ui.web.requests import Json
from tests.unit.dead_letters.letters import LETTER, payload_of

EDGES = [1 << 53, (1 << 53) - 1, 1 << 63, 1 << 200]
NUMBERS = st.integers() | st.sampled_from([*EDGES, *(-each for each in EDGES)]) | st.floats()
VALUES = st.recursive(
    NUMBERS | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def refuse(constant):
    raise AssertionError(f"JSON has no {constant}")


def as_javascript(text):
    """JSON as a browser reads it: each number is a double."""
    return json.loads(text, parse_int=float, parse_float=float, parse_constant=refuse)


def is_same(shown, value):
    """Whether what a browser has is the value, or its text."""
    if isinstance(value, dict):
        return shown.keys() == value.keys() and all(is_same(shown[name], value[name]) for name in value)
    if isinstance(value, list):
        return len(shown) == len(value) and all(map(is_same, shown, value))
    if isinstance(value, float) and not math.isfinite(value):
        return shown == str(value)
    return shown == value or (type(value) is int and shown == str(value))


@given(VALUES)
def test_each_number_is_read_as_it_is_or_is_its_text(value):
    assert is_same(as_javascript(for_browsers(json.dumps(value))), value)
    answer = Json({"value": value}).body.decode("ascii")
    assert is_same(as_javascript(answer)["value"], value)


@given(st.floats(allow_nan=False) | st.integers(-(1 << 53) + 1, (1 << 53) - 1))
def test_a_number_that_a_browser_has_stays_a_number(number):
    shown = as_javascript(for_browsers(json.dumps([number])))
    assert shown == [number] or math.isinf(number)


DEEP = pa.struct([("deep", pa.list_(pa.int64()))])
MARKED = pa.struct([("base64", pa.string())])
SHOWN = [
    (pa.int64(), 1234567890123456789, "1234567890123456789"),
    (pa.uint64(), (1 << 64) - 1, "18446744073709551615"),
    (DEEP, {"deep": [-(1 << 62), 3]}, {"deep": [str(-(1 << 62)), 3]}),
    (pa.int64(), 9007199254740991, 9007199254740991),
    (pa.float64(), math.nan, "nan"),
    (pa.list_(pa.float64()), [0.1, -math.inf], [0.1, "-inf"]),
    (pa.decimal128(38, 2), Decimal("12345678901234567.89"), "12345678901234567.89"),
    (pa.binary(), b"\x00\xff", {"base64": "AP8="}),
    (MARKED, {"base64": "AP8="}, [["base64", "AP8="]]),  # a mapping is not what it looks like
    (
        pa.timestamp("us", "Europe/Berlin"), dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC),
        "2024-07-01T12:00:00+02:00",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "shown"), SHOWN, ids=lambda each: repr(each)[:30])
def test_a_value_of_a_letter_is_shown_as_it_was_emitted(kind, value, shown):
    payload = batch_to_bytes(encode_rows(["n"], [(value,)], pa.schema([("n", kind)])))
    letter = replace(LETTER, id=1, fields=("n",), payload=payload)
    assert as_javascript(json.dumps(letters.shown(letter)))["values"] == {"n": shown}


def test_every_answer_to_the_page_has_exact_numbers(page, running, topology_id):
    large = 1234567890123456789
    running.letters.put([
        replace(LETTER, topology="numbers", root=large, fields=("n",), payload=payload_of(large))
    ])  # fmt: skip
    running.measure("double", 1, {"large": Increment("counter", count=large)})
    page.ask(f"/api/v1/topology/{topology_id}/activate", "POST", b"")  # what is asked next is new
    ours, storms = f"/api/acktree/v1/topologies/{topology_id}", f"/api/v1/topology/{topology_id}"
    found = ""
    for path in (
        "/api/acktree/v1/topologies", "/api/acktree/v1/snapshot", ours, f"{ours}/components/double",
        f"{ours}/open", f"{ours}/dead-letters", f"{ours}/dead-letters/5", f"{ours}/traces", f"{ours}/history",
        storms, f"{storms}/component/double", f"{storms}/metrics",
    ):  # fmt: skip
        text = page.ask(path)[2].decode()
        assert not re.search(r"[:,\[]-?\d{17}", text), path
        as_javascript(text)
        found += text
    assert f'"n":"{large}"' in found
    assert f'"count":"{large}"' in found
