"""Users' metrics in the driver: stored by micro-batch, exact whenever a driver dies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import Config
from acktree.checkpoint.logs.commit_log import Commit, Outcome, Section
from acktree.core.data.frames import SINK_LEVEL, Kind, WireRow
from acktree.core.data.instruments import MOST_SERIES, Increment
from acktree.core.stats.user_metrics import increments_to_bytes
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.metrics.metrics_book import MetricsBook
from acktree.errors import CheckpointError
from tests.unit.checkpoint.commits import Commits, committed_numbers


def row(task, **counts):
    grown = {name: Increment("counter", count=n) for name, n in counts.items()}
    body = increments_to_bytes("split", task, grown)
    return WireRow(0, SINK_LEVEL, Kind.METRICS, 0, 0, 0, b"", body)


def opened(folder, last_committed, tasks=None):
    book = MetricsBook(ErrorLog(Config()), tasks)
    return book, Commits(folder, [book], last_committed)


def counts(book):
    return {key: metric.count for key, metric in book.metrics(0).items()}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("commits", "dies", "dies before it is stored"))))
)
def test_whenever_a_driver_dies_what_was_committed_is_counted_once(tmp_path_factory, batches):
    folder, committed, total, batch_id = tmp_path_factory.mktemp("checkpoint"), -1, 0, 0

    book, log = opened(folder, committed)
    for grown, end in batches:
        book.note([row(1, lines=grown)] if grown else [], 0)
        if end == "dies before it is stored":
            book, log = opened(folder, committed)
            continue
        log.write(batch_id)
        if end == "dies":
            book, log = opened(folder, committed)  # the micro-batch runs again, and may bring another number
            continue
        committed, total, batch_id = batch_id, total + grown, batch_id + 1
        assert sum(counts(book).values()) == total
    assert sum(counts(opened(folder, committed)[0]).values()) == total
    assert len(committed_numbers(folder)) <= 4  # that of the last table, the last two, and one to be deleted


def test_without_metrics_nothing_is_stored(tmp_path):
    book = MetricsBook(ErrorLog(Config()))
    book.note([], 0)
    assert book.write(Commit(0, 0, 0), Outcome({})) is None


def test_a_spouts_metrics_count_when_somebody_reads_and_are_stored_with_the_next_micro_batch(tmp_path):
    grown = [{"asked": Increment("counter", count=3)}, {}, {"asked": Increment("counter", count=4)}]
    book, log = opened(tmp_path, -1)
    book.watch("lines", 1, lambda: grown.pop(0) if grown else {})
    assert counts(book) == {("lines", 1, "asked"): 3}
    assert counts(book) == {("lines", 1, "asked"): 3}
    log.write(0)
    again, _ = opened(tmp_path, 0)
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
        book, log = opened(tmp_path, batch_id - 1, {("split", task)})
        book.note([row(task, **many)], batch_id)
        log.write(batch_id)
        assert {key for key in counts(book) if key[1] == task} == {("split", task, name) for name in many}
    assert {task for _, task, _ in counts(book)} == {2, 3}  # of removed tasks no more than the limit


@pytest.mark.parametrize("stored", [b"[[", b"[[1]]", b"7", b""], ids=repr)
def test_a_table_of_another_acktree_is_said_in_one_error(stored):
    with pytest.raises(CheckpointError, match="cannot be read"):
        MetricsBook(ErrorLog(Config())).recover([(3, Section(stored))])
