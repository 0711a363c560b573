"""What a sink's task is told of earlier attempts, and how the driver sees that it waits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from acktree.errors import ConnectorError
from acktree.spark.worker import scratch
from acktree.spark.worker.isolation import UNGUARDED, Isolation
from acktree.tasks.waits import Wait, forget_waits, waits_in

AWAY = ConnectorError("no\nanswer", "the server", "start it", can_retry=True)
FIRST = Isolation(Path(), batch_id=7, level=1, partition=0, attempt=0, timeout_secs=None, new_from=7)


def may_have_run(alone):
    """What a level learns that runs so, perhaps in a child process."""
    file = alone.folder / "told"

    def level(monitor, _store):
        file.write_text(str(monitor.may_have_run))
        return []

    list(alone.run(level))
    return file.read_text() == "True"


@pytest.fixture
def first(tmp_path):
    return replace(FIRST, folder=tmp_path)


def test_the_first_attempt_of_a_new_micro_batch_knows_that_none_was_before(first):
    assert not may_have_run(first)


def test_an_attempt_after_another_one_may_not_be_sure(first):
    assert may_have_run(replace(first, attempt=1))
    assert not may_have_run(replace(first, batch_id=8))
    assert may_have_run(replace(first, batch_id=8))  # Spark has run the stage again: its first attempt
    assert may_have_run(replace(first, batch_id=6))  # the run before may have begun it
    assert may_have_run(replace(first, batch_id=9, new_from=None))  # the folder is the executor's own


def test_without_marks_nothing_is_known(first, monkeypatch):
    monkeypatch.setenv(UNGUARDED, "1")
    assert may_have_run(first)


def test_the_driver_sees_a_task_that_waits_until_it_goes_on_or_is_tried_again(first, tmp_path):
    seen = []

    def level(monitor, _store):
        assert monitor.waits("store", 4, AWAY, 1)
        assert monitor.waits("store", 4, AWAY, 2)
        [wait] = waits_in(tmp_path)
        seen.append(wait.outage())
        monitor.waits_no_more()
        assert not [*waits_in(tmp_path)]
        monitor.waits("store", 4, AWAY, 3)
        return []

    list(first.run(level))
    [outage] = seen
    assert (outage.dependency, outage.tries, outage.fix) == ("store", 2, "start it")
    assert "no\\nanswer (sink 'store', task 4: its micro-batch waits)" in outage.reason
    assert len([*waits_in(tmp_path)]) == 1  # as if its process had died
    list(replace(first, attempt=1, partition=1).run(lambda *_: []))
    assert len([*waits_in(tmp_path)]) == 1  # it is another partition's
    list(first.run(lambda *_: []))
    assert not [*waits_in(tmp_path)]


def test_what_an_earlier_run_waited_for_is_forgotten_and_so_is_that_of_an_earlier_micro_batch(
    first, tmp_path
):
    waits = lambda monitor, _: [monitor.waits("store", 4, AWAY, 1), []][1]  # noqa: E731
    list(first.run(waits))
    forget_waits(tmp_path)
    assert not [*waits_in(tmp_path)]
    list(first.run(waits))
    scratch.forget_before(tmp_path, 8)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "7.1.0.waits").write_text("{")
    assert not [*waits_in(tmp_path)]
    assert not [*waits_in(tmp_path / "nowhere")]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"component": [], "task": "x"}',
        "\udcff",
        '{"component": "store"}',
        " " * 2_000_000,
    ],
    ids=["empty", "no fields", "deep", "types", "no text", "few fields", "large"],
)
def test_a_file_that_is_not_ours_is_passed_over(tmp_path, content):
    (tmp_path / "9.0.0.waits").write_bytes(content.encode(errors="surrogateescape"))
    (tmp_path / "8.0.0.waits").mkdir()
    os.mkfifo(tmp_path / "7.0.0.waits")
    Wait("store", 4, "no answer", "start it", 1, 2).write(tmp_path / "6.0.0.waits")
    assert [each.component for each in waits_in(tmp_path)] == ["store"]
    forget_waits(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["8.0.0.waits"]


def test_where_the_driver_does_not_see_the_folder_the_task_may_wait_all_the_same(first, tmp_path):
    told = []
    list(
        replace(first, new_from=None).run(
            lambda monitor, _: told.append(monitor.waits("s", 4, AWAY, 1)) or []
        )
    )
    assert told == [True]
    assert not [*waits_in(tmp_path)]
