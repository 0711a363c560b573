"""Exports: whole, readable by others, nobody else's, and written without unpickling anything."""

from __future__ import annotations

import base64
import datetime as dt
import json
import stat
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acktree.core.data.values import batch_to_bytes, encode_rows
from acktree.dead_letters import DeadLetter, DeadLetters, export
from acktree.dead_letters.store import IN_MEMORY
from acktree.errors import MisuseError
from tests.unit.dead_letters.letters import Unreadable, letter, payload_of

PARTS = set(DeadLetter.__dataclass_fields__)


@pytest.fixture
def store():
    with DeadLetters(IN_MEMORY) as opened:
        opened.put(
            [
                letter(1, payload=payload_of("UA", Unreadable())),
                letter(2, spout="arrivals", component=None, exception_type=None, traceback=None),
                letter(3, fields=(), payload=payload_of(), reason="no file 'caf\udce9'\n"),
            ]
        )
        opened.mark_redriven([2], now_ms=1_700_000_000_123)
        yield opened


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_of_json_holds_every_part_and_what_can_be_seen_of_the_values(store, tmp_path):
    assert store.export(tmp_path / "letters.jsonl") == 3
    first, second, third = lines(tmp_path / "letters.jsonl")
    assert first.keys() == PARTS | {"values", "texts"}
    stored = store.get([1])[0]
    assert base64.b64decode(first["payload"]) == stored.payload
    assert (first["id"], first["root"], first["fields"]) == (1, 1, ["f0", "f1"])
    assert first["values"]["f0"] == "UA"
    assert first["values"]["f1"].keys() == {"pickled_bytes"}
    assert (second["redriven_ms"], second["component"]) == (1_700_000_000_123, None)
    assert (third["values"], third["reason"]) == ({}, "no file 'caf\\udce9'\n")


def test_a_row_of_parquet_holds_every_part_with_times_as_timestamps(store, tmp_path):
    assert store.export(str(tmp_path / "letters.parquet"), spout="arrivals") == 1
    table = pq.read_table(tmp_path / "letters.parquet")
    assert set(table.column_names) == {name.removesuffix("_ms") for name in PARTS} | {"values"}
    [row] = table.to_pylist()
    stored = store.get([2])[0]
    assert row["payload"] == stored.payload
    assert row["redriven"] == dt.datetime.fromtimestamp(1_700_000_000.123, dt.UTC)
    assert (row["settled"], row["component"], row["kind"]) == (None, None, "FAILED")
    assert json.loads(row["values"])["f0"] == "UA"


def test_every_letter_is_exported_however_many_there_are(store, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_GROUP", 10)
    store.put(letter(root) for root in range(10, 133))
    for name in ("letters.parquet", "letters.jsonl"):
        assert store.export(tmp_path / name) == 126
    assert pq.read_table(tmp_path / "letters.parquet")["id"].to_pylist() == [each.id for each in store]
    assert [line["id"] for line in lines(tmp_path / "letters.jsonl")] == [each.id for each in store]


def test_no_letters_are_an_export_too(store, tmp_path):
    for name in ("letters.parquet", "letters.jsonl"):
        assert store.export(tmp_path / name, spout="nobody") == 0
    assert pq.read_table(tmp_path / "letters.parquet").num_rows == 0
    assert lines(tmp_path / "letters.jsonl") == []


SCHEMA = pa.schema(
    [
        ("number", pa.float64()),
        ("money", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("many", pa.list_(pa.struct([("n", pa.int64())]))),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


def test_values_that_json_has_no_word_for_can_still_be_read(tmp_path):
    noon = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
    row = (float("nan"), Decimal("1.50"), noon, noon.date(), b"\x00\xff", [{"n": 1}], [("k", 2)])
    payload = batch_to_bytes(encode_rows(SCHEMA.names, [row], SCHEMA))
    with DeadLetters(IN_MEMORY) as store:
        store.put([letter(1, fields=tuple(SCHEMA.names), payload=payload)])
        for name in ("letters.jsonl", "letters.parquet"):
            store.export(tmp_path / name)
    [line] = lines(tmp_path / "letters.jsonl")
    assert line["values"] == {
        "number": "nan",
        "money": "1.50",
        "at": "2013-01-01T12:00:00+00:00",
        "day": "2013-01-01",
        "raw": {"base64": "AP8="},
        "many": [{"n": 1}],
        "map": [["k", 2]],
    }
    [text] = pq.read_table(tmp_path / "letters.parquet")["values"].to_pylist()
    assert json.loads(text) == line["values"]


@pytest.mark.parametrize("name", ["letters.csv", "letters", "letters.parquet.gz"])
def test_another_format_is_refused_with_those_that_there_are(store, tmp_path, name):
    with pytest.raises(MisuseError, match=r"ends with \.parquet or \.jsonl"):
        store.export(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["letters.parquet", "letters.jsonl"])
def test_a_file_that_is_there_is_refused_and_left_as_it_was(store, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(MisuseError, match="exists already"):
        store.export(tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["letters.parquet", "letters.jsonl"])
def test_a_file_that_comes_meanwhile_is_left_as_it_is_too(store, tmp_path, name):
    def letters():
        yield from store
        (tmp_path / name).write_text("mine")

    with pytest.raises(MisuseError, match="exists already"):
        export.export_to(tmp_path / name, letters())
    assert (tmp_path / name).read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_an_export_that_breaks_off_leaves_no_file(tmp_path):
    def letters():
        yield letter(1, id=1)
        raise RuntimeError("the store went away")

    for name in ("letters.parquet", "letters.jsonl"):
        with pytest.raises(RuntimeError, match="went away"):
            export.export_to(tmp_path / name, letters())
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_reported(store, tmp_path):
    with pytest.raises(MisuseError, match="check that its folder exists"):
        store.export(tmp_path / "nowhere" / "letters.jsonl")


@pytest.mark.parametrize("name", ["letters.parquet", "letters.jsonl"])
def test_only_the_owner_may_read_an_export(store, tmp_path, name):
    store.export(tmp_path / name)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_filter_that_does_not_exist_is_refused_before_a_file_is_made(store, tmp_path):
    with pytest.raises(TypeError, match="no filter"):
        store.export(tmp_path / "letters.jsonl", bolt="parse")
    assert list(tmp_path.iterdir()) == []
