"""Parquet files, with real files and without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acktree import (
    Config,
    ConfigError,
    EndOfStream,
    IterableSpout,
    Retry,
    Spout,
    TopologyBuilder,
)
from acktree.connectors import parquet_files
from acktree.connectors.files import ParquetSink
from acktree.testing import FeederSpout, LocalCluster
from tests.in_module import replace

# --- Parquet --------------------------------------------------------------------------------------------


class Sink:
    def __init__(self, cluster: LocalCluster, sink: ParquetSink, fields=("id", "name")) -> None:
        self.feeder, self.cluster, self.sink = FeederSpout(list(fields)), cluster, sink
        builder = TopologyBuilder("sink")
        builder.set_spout("feeder", self.feeder)
        builder.set_bolt("/sink 1", sink).shuffle_grouping("feeder")
        cluster.submit(builder.create_topology())

    def write(self, *rows, ids=True) -> None:
        for n, row in enumerate(rows):
            self.feeder.feed(list(row), message_id=n if ids else None)
        self.cluster.advance()

    def rows(self) -> list[tuple]:
        return sorted(tuple(row.values()) for row in pq.read_table(self.sink.path).to_pylist())


@pytest.fixture
def cluster():
    with LocalCluster() as made:
        yield made


def test_tuples_are_acked_when_their_file_is_there(cluster, tmp_path: Path) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path / "made" / "out"))
    sink.write((1, "one"), (2, None))
    sink.write((3, "three"))
    assert sink.rows() == [(1, "one"), (2, None), (3, "three")]
    assert sink.feeder.acked == [0, 1, 0]
    names = sorted(file.name for file in sink.sink.path.iterdir())
    assert len(names) == 2
    assert all(name.startswith("part-_sink_1-0-") and name.endswith(".parquet") for name in names)


def test_equal_rows_of_two_messages_are_two_rows(cluster, tmp_path: Path) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path))
    for _ in range(2):
        sink.write((1, "one"))
        sink.write((1, "one"), ids=False)
    assert sink.rows() == [(1, "one")] * 4


SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_a_tuple_that_does_not_fit_fails_alone(cluster, tmp_path: Path, schema) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path, schema=schema))
    loop: list[object] = []
    loop.append(loop)  # Arrow would follow it until the process dies
    sink.write((1, "one"), ("two", "two"), (3, "three"), (4, object), (5, "\ud800"), (6, loop))
    assert sink.rows() == [(1, "one"), (3, "three")]
    assert sink.feeder.acked == [0, 2]
    assert [message_id for message_id, _ in sink.feeder.failed] == [1, 3, 4, 5]
    assert all("do not fit" in failure.reason for _, failure in sink.feeder.failed)
    if schema:
        assert pq.read_schema(next(tmp_path.iterdir())) == schema


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value]], ids=["plain", "in a list"])
def test_times_of_numpy_beside_its_numbers_fail_and_the_process_goes_on(
    cluster, tmp_path: Path, wrap
) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path), ["value"])
    sink.write((wrap(np.datetime64("2020-01-01", "s")),), (wrap(np.int8(1)),))
    assert [message_id for message_id, _ in sink.feeder.failed] == [1]


NARROW = pa.schema([pa.field("id", pa.int32(), nullable=False), ("at", pa.timestamp("ms", "UTC"))])


BERLIN = datetime(2020, 1, 1, 5, tzinfo=ZoneInfo("Europe/Berlin"))
WOULD_CHANGE = {
    "a fraction": (pa.int64(), 1, 2.5),
    "a float beyond the width": (pa.float32(), 1.5, 1e300),
    "a number for a day": (pa.date32(), date(2020, 1, 1), 5),
    "a time without a zone": (pa.timestamp("us", "UTC"), BERLIN, datetime(2020, 1, 1, 5)),  # noqa: DTZ001
    "a field that is not declared": (pa.struct([("a", pa.int64())]), {"a": 1}, {"a": 1, "b": 2}),
    "a key of bytes": (pa.struct([("a", pa.int64())]), {"a": 1}, {b"a": 1}),
    "a null in a map": (pa.map_(pa.string(), pa.int64()), {"a": 1}, [None]),
}


@pytest.mark.parametrize(("kind", "fits", "changes"), WOULD_CHANGE.values(), ids=WOULD_CHANGE)
def test_a_value_that_would_be_another_one_in_the_file_fails_alone(
    cluster, tmp_path: Path, kind, fits, changes
) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path, schema=pa.schema([("value", kind)])), ["value"])
    sink.write((fits,), (changes,), (None,))
    assert sink.feeder.acked == [0, 2]
    assert [message_id for message_id, _ in sink.feeder.failed] == [1]


@pytest.mark.parametrize(
    ("values", "failed"),
    [
        ([date(2020, 1, 1), 5], [1]),
        ([1, 2.0, 2.5, "x"], [2, 3]),
        ([{"a": 1}, {"b": 2}, "oops"], [1, 2]),
        ([{"a": 1}, {b"a": 2}], [1]),
        ([["x"], [b"\xff"]], [1]),
    ],
)
def test_without_a_schema_a_value_that_has_no_type_with_the_first_fails_alone(
    cluster, tmp_path: Path, values, failed
) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path), ["value"])
    sink.write(*[(value,) for value in values])
    assert [message_id for message_id, _ in sink.feeder.failed] == failed
    assert len(sink.rows()) == len(sink.feeder.acked) == len(values) - len(failed)


def test_a_time_of_day_is_not_cut_off_for_a_column_of_days(cluster, tmp_path: Path) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path, schema=pa.schema([("day", pa.date32())])), ["day"])
    sink.write(
        (date(2020, 1, 1),), (datetime(2020, 1, 2, 3, tzinfo=UTC),), (datetime(2020, 1, 3, tzinfo=UTC),)
    )
    assert sink.rows() == [(date(2020, 1, 1),), (date(2020, 1, 3),)]
    assert [message_id for message_id, _ in sink.feeder.failed] == [1]


def test_a_day_is_midnight_in_a_column_of_times_but_not_where_they_have_a_zone(
    cluster, tmp_path: Path
) -> None:
    schema = pa.schema([("at", pa.timestamp("us")), ("utc", pa.timestamp("us", "UTC"))])
    sink = Sink(cluster, ParquetSink(tmp_path, schema=schema), schema.names)
    sink.write((date(2020, 1, 1), None), (None, date(2020, 1, 1)))
    assert sink.rows() == [(datetime(2020, 1, 1), None)]  # noqa: DTZ001
    assert sink.feeder.acked == [0]


def test_a_null_and_a_time_that_the_schema_cannot_hold_fail_alone(cluster, tmp_path: Path) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path, schema=NARROW), ["id", "at"])
    whole, finer = (datetime(2020, 1, 1, microsecond=micros, tzinfo=UTC) for micros in (5000, 5))
    sink.write((1, whole), (None, whole), (3, finer), (4, None))
    assert sink.rows() == [(1, whole), (4, None)]
    assert [message_id for message_id, _ in sink.feeder.failed] == [1, 2]


class Dates(Spout):
    outputs = ["day"]

    def open(self, config, context, collector):
        self.collector, self.acked, self.failed = collector, [], []

    def next_tuple(self):
        days = pa.array([1, 3_000_000, 2], pa.int32()).cast(pa.date32())
        self.collector.emit_batch(pa.record_batch({"day": days}), [0, 1, 2])
        raise EndOfStream

    def fail(self, message_id, failure):
        assert message_id == 1, failure.reason

    def __deepcopy__(self, memo):
        return self


def test_a_value_that_python_cannot_represent_fails_alone(cluster, tmp_path: Path) -> None:
    builder = TopologyBuilder("dates")
    builder.set_spout("dates", Dates())
    builder.set_bolt("sink", ParquetSink(tmp_path)).shuffle_grouping("dates")
    cluster.submit(builder.create_topology())
    cluster.advance()
    assert pq.read_table(tmp_path)["day"].to_pylist() == [date(1970, 1, 2), date(1970, 1, 3)]


@pytest.mark.parametrize(
    ("values", "failed", "words"),
    [
        ([{}, {}], [0, 1], "'value': Parquet cannot hold a value of the type struct<>"),
        ([None, {}, None], [1], "'value': Parquet cannot hold a value of the type struct<>"),
        ([None, {"a": {}}], [1], "'value': Parquet cannot hold a value of the type struct<a: struct<>>"),
        ([[], [{}], []], [1], "'value': Parquet cannot hold a value of the type list<item: struct<>>"),
        ([None, (1, "a")], [1], "'value': Could not convert 'a' with type str: tried to convert to int64"),
        ([[], [1]], [], ""),
        ([1, "a"], [1], "'value' is of the type string, and the first one of int64"),
        ([None, {1, 2}], [1], "'value': a set would become a list in any order"),
        (
            [None, datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))],
            [1],
            "'value': date value out of range",
        ),
        ([{}, {"a": 1}], [], ""),
    ],
)
def test_without_a_schema_a_value_that_parquet_cannot_hold_fails_alone_with_a_true_reason(
    cluster, tmp_path: Path, values, failed, words
) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path), ["value"])
    sink.write(*[(value,) for value in values])
    assert [message_id for message_id, _ in sink.feeder.failed] == failed
    assert all(words in failure.reason for _, failure in sink.feeder.failed)
    assert len(sink.feeder.acked) == len(values) - len(failed)
    assert sum(pq.read_table(file).num_rows for file in tmp_path.iterdir()) == len(sink.feeder.acked)


def test_a_stream_without_a_field_of_the_schema_does_not_fail_the_tuples_of_another(
    cluster, tmp_path: Path
) -> None:
    builder = TopologyBuilder("sink")
    feeders = [FeederSpout(["id"]), FeederSpout(["id", "name"])]
    sink = builder.set_bolt("sink", ParquetSink(tmp_path, schema=SCHEMA))
    for number, feeder in enumerate(feeders):
        builder.set_spout(f"feeder{number}", feeder)
        sink.shuffle_grouping(f"feeder{number}")
    cluster.submit(builder.create_topology())
    feeders[0].feed([1], message_id=0)
    feeders[1].feed([2, "two"], message_id=0)
    cluster.advance()
    assert (feeders[0].acked, feeders[1].acked) == ([], [0])
    assert "no field 'name'" in feeders[0].failed[0][1].reason


def test_folders_that_the_sink_makes_are_on_the_disk_before_a_tuple_is_acked(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.stat(descriptor).st_ino)
        sync(descriptor)

    replace(monkeypatch, parquet_files, "os", fsync=note)
    sink = Sink(cluster, ParquetSink(tmp_path / "made" / "out"))
    sink.write((1, "one"))
    folders = [tmp_path, tmp_path / "made", tmp_path / "made" / "out"]
    assert {folder.stat().st_ino for folder in folders} <= set(synced)


def test_a_schema_that_names_no_field_of_the_tuples_fails_them_all(cluster, tmp_path: Path) -> None:
    sink = Sink(cluster, ParquetSink(tmp_path, schema=pa.schema([("total", pa.int64())])))
    sink.write((1, "one"), (2, "two"))
    assert [message_id for message_id, _ in sink.feeder.failed] == [0, 1]
    assert "no field 'total'" in sink.feeder.failed[0][1].reason


def test_while_a_folder_cannot_be_written_all_waits_and_nothing_is_left_in_it(
    cluster, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    sink = Sink(cluster, ParquetSink(tmp_path / "file"))
    sink.write((1, "one"))
    assert sink.feeder.failed == sink.feeder.acked == []
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    (tmp_path / "file").unlink()
    cluster.advance(60)
    assert len(sink.feeder.acked) == 1


def test_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        ParquetSink("s3://me:S3cr3t@bucket/path")
    assert "S3cr3t" not in str(refused.value)


def test_the_file_of_a_micro_batch_has_one_name_in_every_run_of_it(tmp_path: Path) -> None:
    names = set()
    for run in range(2):
        builder = TopologyBuilder("copy")
        builder.set_spout("rows", IterableSpout([[n] for n in range(50)], ["n"]), retry=Retry(max_attempts=1))
        builder.set_bolt("sink", ParquetSink(tmp_path / str(run))).shuffle_grouping("rows")
        with LocalCluster() as cluster:
            cluster.submit(builder.create_topology(), config=Config(run_salt=7))
            cluster.advance()
        names.add(tuple(sorted(file.name for file in (tmp_path / str(run)).iterdir())))
    assert len(names) == 1


# --- Before the first message ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_folder_in_which_no_file_can_be_made_is_refused_whoever_asks():
    with pytest.raises(ConfigError, match="no file can be made in /proc"):
        ParquetSink("/proc/out").check(Config(), None)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_folder_below_one_that_may_not_be_entered_is_refused_with_that_one():
    program = """
import os, sys
from acktree import Config, ConfigError
from acktree.connectors.files import ParquetSink
os.setuid(65534)
try:
    ParquetSink(sys.argv[1]).check(Config(), None)
except ConfigError as error:
    print(error.what)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:  # 0700; pytest's own folder lets nobody in
        done = subprocess.run(
            [sys.executable, "-c", program, f"{base}/in/out"], capture_output=True, text=True, check=True
        )
    assert done.stdout == f"no file can be made in {base}: Permission denied\n"
