"""Users' metrics in the driver: stored by micro-batch, exact whenever a driver dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config
from acktree.checkpoint.table_log import FileMetricsLog
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.instruments import MOST_SERIES, Increment
from acktree.core.stats.user_metrics import increments_to_bytes
from acktree.driver.error_log import ErrorLog
from acktree.driver.metrics_book import MetricsBook
from acktree.errors import CheckpointError


def row(task, **counts):
    grown = {name: Increment("counter", count=n) for name, n in counts.items()}
    body = increments_to_bytes("split", task, grown)
    return WireRow(0, SINK_LEVEL, Kind.METRICS, 0, 0, 0, b"", body)


def counts(book):
    return {key: metric.count for key, metric in book.metrics(0).items()}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("commits", "dies", "dies before it is stored"))))
)
def test_whenever_a_driver_dies_what_was_committed_is_counted_once(tmp_path_factory, batches):
    folder, committed, total, batch_id = tmp_path_factory.mktemp("checkpoint"), -1, 0, 0

    def begins():
        return MetricsBook(ErrorLog(Config()), FileMetricsLog(folder, committed))

    book = begins()
    for grown, end in batches:
        book.note([row(1, lines=grown)] if grown else [], 0)
        if end == "dies before it is stored":
            book = begins()
            continue
        book.keep(batch_id, 0)
        if end == "dies":
            book = begins()  # the micro-batch runs again, and may bring another number
            continue
        committed, total, batch_id = batch_id, total + grown, batch_id + 1
        assert sum(counts(book).values()) == total
    assert sum(counts(begins()).values()) == total
    kept = folder / "metrics"
    assert not kept.exists() or len(list(kept.iterdir())) <= 2


def test_without_metrics_nothing_is_stored(tmp_path):
    book = MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, -1))
    book.note([], 0)
    book.keep(0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_spouts_metrics_count_when_somebody_reads_and_are_stored_with_the_next_micro_batch(tmp_path):
    grown = [{"asked": Increment("counter", count=3)}, {}, {"asked": Increment("counter", count=4)}]
    book = MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, -1))
    book.watch("lines", 1, lambda: grown.pop(0) if grown else {})
    assert counts(book) == {("lines", 1, "asked"): 3}
    assert counts(book) == {("lines", 1, "asked"): 3}
    book.keep(0, 0)
    again = MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, 0))
    assert counts(again) == {("lines", 1, "asked"): 7}


def test_one_error_names_the_metric_that_is_one_too_many():
    errors = ErrorLog(Config())
    book = MetricsBook(errors)
    for first in (0, MOST_SERIES // 2, MOST_SERIES):
        book.note([row(first, **{f"n{number}": 1 for number in range(MOST_SERIES // 2)})], 0)
        book.note([row(first, n0=1)], 0)
    assert errors.count == 1
    assert "'n0' is not counted: a topology has at most 1000" in errors.kept[0].reason
    assert len(counts(book)) == MOST_SERIES


def test_metrics_of_tasks_that_are_gone_are_kept_and_count_to_no_limit(tmp_path):
    many = {f"n{number}": 1 for number in range(MOST_SERIES)}
    for batch_id, task in enumerate((1, 2, 3)):
        book = MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, batch_id - 1), {("split", task)})
        book.note([row(task, **many)], batch_id)
        book.keep(batch_id, 0)
        assert {key for key in counts(book) if key[1] == task} == {("split", task, name) for name in many}
    assert {task for _, task, _ in counts(book)} == {2, 3}  # of removed tasks no more than the limit


@pytest.mark.parametrize("torn", [b"[[", b"[[1]]", b"7", b""], ids=repr)
def test_what_a_power_cut_tore_is_said_in_one_error(tmp_path, torn):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "000000000003").write_bytes(torn)
    with pytest.raises(CheckpointError, match="cannot be read"):
        MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, 3))


@pytest.mark.parametrize("name", ["README.txt", "000000000003~", "old", "7", "\u00b2", "new-README"])
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["file", "folder"])
def test_what_is_not_acktrees_is_neither_read_nor_deleted(tmp_path, name, make):
    (tmp_path / "metrics").mkdir()
    make(tmp_path / "metrics" / name)
    book = MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, 3))
    book.note([row(1, lines=2)], 0)
    book.keep(4, 0)
    assert counts(MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, 4))) == {("split", 1, "lines"): 2}
    assert (tmp_path / "metrics" / name).exists()


@pytest.mark.parametrize("name", ["000000000003", "000000000009", "new-000000000004"])
def test_a_folder_in_the_place_of_a_file_is_said_in_one_error(tmp_path, name):
    (tmp_path / "metrics" / name).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"metrics .* cannot be read(?s:.*)delete that folder"):
        MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, 3))


def test_a_file_in_the_place_of_the_folder_is_said_in_one_error(tmp_path):
    (tmp_path / "metrics").touch()
    with pytest.raises(CheckpointError, match="cannot be read"):
        MetricsBook(ErrorLog(Config()), FileMetricsLog(tmp_path, 3))
