"""An error of acktree that a worker or the sink raised is found in the text that Spark has of it."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from acktree import errors
from acktree.errors import (
    AcktreeError,
    BoltError,
    CheckpointError,
    ConfigError,
    ConnectorError,
    DeadLetterLimitError,
    ProtocolError,
    Unavailable,
)
from acktree.multilang.told import ToldError
from acktree.spark.query.handle import SparkQuery
from acktree.spark.query.worker_errors import explained, is_lasting

OF_SPARK = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
{raised}

=== Streaming Query ===
Identifier: own-orders [id = 1, runId = 2]
Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, [queryName=own-orders]
"""
OLD = ("the sink has other rows: this checkpoint is an older copy", "sink 'orders', task 3", "bring it back")


def failed_over(error: BaseException) -> StreamingQueryException:
    text = "".join(traceback.format_exception(raised(error)))
    return StreamingQueryException(OF_SPARK.format(raised=text))


def raised(error: BaseException) -> BaseException:
    """With a traceback, as what a worker has raised."""
    try:
        raise error
    except type(error) as caught:
        return caught


def caused(error: BaseException, cause: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def parts(error: BaseException) -> tuple[object, ...]:
    assert isinstance(error, AcktreeError)
    return type(error), error.what, error.where, error.fix


@pytest.mark.parametrize(
    "kind", [AcktreeError, BoltError, CheckpointError, ConfigError, ConnectorError, DeadLetterLimitError]
)
def test_it_has_the_class_and_the_three_parts_and_nothing_of_spark(kind):
    ours = explained(failed_over(kind(*OLD)))
    assert parts(ours) == (kind, *OLD)
    assert "".join(traceback.format_exception(ours)).count("\n") == 3


@pytest.mark.parametrize("given", [("no model",), ("no model", "model 'x'"), ("a\nb",)])
def test_one_of_a_users_code_may_say_only_what_is_wrong(given):
    failed = failed_over(ConfigError(*given))
    assert parts(explained(failed)) == (ConfigError, *given, *[""] * (3 - len(given)))
    assert is_lasting(failed)


def test_the_trace_of_a_bug_is_left_whole_and_so_is_each_where_that_is_wished(monkeypatch):
    failed = failed_over(ProtocolError(*OLD))
    assert explained(failed).__cause__ is failed
    monkeypatch.setattr(errors, "full_tracebacks", True)
    failed = failed_over(CheckpointError(*OLD))
    assert explained(failed).__cause__ is failed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (caused(CheckpointError(*OLD), ConnectorError("a", "b", "c")), (CheckpointError, *OLD)),
        (caused(CheckpointError(*OLD), ValueError("acktree.errors.X: is no error")), (CheckpointError, *OLD)),
        (ConfigError("two\nlines", "of\nboth", "mend"), (ConfigError, "two\nlines", "of\nboth", "mend")),
        (
            ConfigError("cannot import\nacktree.foo", "here", "run these:\n  shop unlock\n  shop open"),
            (ConfigError, "cannot import\nacktree.foo", "here", "run these:\n  shop unlock\n  shop open"),
        ),
        (
            ConfigError("the bolt said:\nTraceback of it", "here", "mend"),
            (ConfigError, "the bolt said:\nTraceback of it", "here", "mend"),
        ),
        (
            AcktreeError(f"no row: {ConfigError(*OLD)}", "here", "mend"),
            (AcktreeError, f"no row: {ConfigError(*OLD)}", "here", "mend"),
        ),
        (ToldError(*OLD), (AcktreeError, *OLD)),
        (
            Unavailable("prices"),
            (ConnectorError, *(getattr(Unavailable("prices"), part) for part in ("what", "where", "fix"))),
        ),
    ],
)
def test_the_last_one_counts_and_one_that_is_made_otherwise_has_a_class_above_it(error, expected):
    assert parts(explained(failed_over(error))) == expected


@pytest.mark.parametrize(
    "error",
    [
        failed_over(ValueError("the\n  where: here\n  fix:   none")),
        failed_over(EOFError()),
        failed_over(ValueError(f"the table says:\nacktree.errors.CheckpointError: {CheckpointError(*OLD)}")),
        failed_over(ValueError("".join(traceback.format_exception(raised(CheckpointError(*OLD)))))),
        failed_over(caused(ValueError("no row"), ConfigError(*OLD))),
        CheckpointError(*OLD),
    ],
)
def test_another_error_stays_as_it_is(error):
    assert explained(error) is error


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (CheckpointError(*OLD), True),
        (ConfigError(*OLD), True),
        (BoltError(*OLD), False),
        (ProtocolError(*OLD), False),
        (EOFError(), False),
    ],
)
def test_a_checkpoint_and_a_setting_are_the_same_at_the_next_start(error, lasts):
    assert is_lasting(failed_over(error)) is lasts


def test_a_run_is_stopped_by_the_error_of_its_worker(tmp_path: Path) -> None:
    files = SimpleNamespace(explained=lambda error: error)
    checkpoint: Any = SimpleNamespace(place=str(tmp_path), folders=[tmp_path], files=files)
    query = SparkQuery(SimpleNamespace(), checkpoint)  # type: ignore[arg-type]
    assert parts(query.explained(failed_over(CheckpointError(*OLD)))) == (CheckpointError, *OLD)
    full = query.explained(failed_over(caused(CheckpointError(*OLD), OSError(28, "No space left on device"))))
    assert parts(full)[0] is CheckpointError
    assert str(full).startswith("no space left on a disk")


def test_an_error_that_another_one_followed_is_not_what_ended_the_worker():
    followed = ValueError("the store has failed")
    followed.__context__ = ConfigError("no table", "here", "create it")
    failed = failed_over(followed)
    assert explained(failed) is failed
    assert not is_lasting(failed)


@pytest.mark.parametrize(
    "after", ["\n SQLSTATE: 39000\n\tat org.apache.spark.A.b(A.scala:1)", "\n\n\t... 34 more"]
)
def test_what_spark_writes_after_it_is_no_part_of_its_fix(after):
    told = OF_SPARK.partition("{")[0] + "".join(traceback.format_exception(raised(CheckpointError(*OLD))))
    failed = StreamingQueryException(told.rstrip() + after)
    assert parts(explained(failed)) == (CheckpointError, *OLD)


def test_a_note_of_an_error_that_has_a_traceback_is_not_what_ended_the_worker():
    told = ToldError(*OLD)
    told.add_note("".join(traceback.format_exception(raised(ValueError("in the child")))))
    assert parts(explained(failed_over(told))) == (AcktreeError, *OLD)
