"""Whether a sink writes each row once, asked of the real server.

Rules of this file
------------------
1. Every check uses the public contract alone, so that it holds for every sink.
2. A check has rows and a writer of its own, so nothing has to be removed between two of them.
3. A check fails with an AssertionError that begins with its name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final
from uuid import uuid4

import cloudpickle
import pyarrow as pa

from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.errors import ConnectorError
from acktree.sink import Sink
from acktree.testing.spout_case import expect

__all__ = ["SINK_CHECKS", "MakeSink", "ReadRows", "check_sink"]

MakeSink = Callable[[], Sink]
ReadRows = Callable[[], Iterable[Mapping[str, Any]]]
_Row = tuple[str, str]
_KILLED_AFTER: Final = (0, 1, 4)
_ROWS_WHEN_KILLED: Final = 200
_MOST_STEPS: Final = 32
_ROWS_OF_A_STEP: Final = 6
_OCCURRENCES: Final = 2
"""How often a line counts as a step: a loop over two files has a window between them."""
_CHILD: Final = (
    "import sys, pickle; read = sys.stdin.buffer; sys.path[:] = pickle.load(read); pickle.load(read)()"
)


def check_sink(
    make_sink: MakeSink,
    read_rows: ReadRows,
    *,
    refused: Mapping[str, str] | None = None,
    only: Iterable[str] | None = None,
) -> None:
    """Check a sink against its server; takes some seconds.

    The checks write rows of two texts, ``key`` and ``value``. Each key is written once, and begins with a
    text that no other check uses. Processes that write are killed: some at any moment, and one in front of
    each line of ``write`` and what it calls in its own folder, or of 32 of these.

    Args:
        make_sink: Makes a sink, not opened. It must be picklable by cloudpickle: one check kills processes.
        read_rows: Returns what a reader of the server sees: rows with ``key`` and ``value``.
        refused: A row that the server refuses; None if it refuses none. Its key is written as it is.
        only: Names of :data:`SINK_CHECKS`; None for all.

    Raises:
        AssertionError: The first check that fails, with its name and what was seen.
    """
    for name in SINK_CHECKS if only is None else only:
        try:
            _CHECKS[name](_Case(make_sink, read_rows, refused))
        except AssertionError as failed:
            raise AssertionError(f"{name}: {failed}") from failed
        except ConnectorError as error:
            raise AssertionError(f"{name}: the sink cannot be used: {error}") from error
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


class _Case:
    """One check: a writer, and rows of its own."""

    def __init__(self, make_sink: MakeSink, read_rows: ReadRows, refused: Mapping[str, str] | None) -> None:
        self._make_sink, self._read_rows, self.refused = make_sink, read_rows, refused
        self.name = uuid4().hex[:12]

    def open(self, checkpoint: str = "a", component: str = "sink", task: int = 1) -> Sink:
        """A sink as a worker opens it."""
        return _opened(self._make_sink, f"{self.name}{checkpoint}", component, task)

    def again(self) -> Sink:
        """A sink as a worker opens it after another one was killed: it asks for the last mark."""
        sink = self.open()
        sink.last_mark()
        return sink

    def rows(self, first: int, count: int = 3) -> list[_Row]:
        """Rows that this check alone writes."""
        return _rows(self.name, first, count)

    def expect_rows(self, rows: Iterable[_Row], what: str) -> None:
        """Fail unless these rows of this check are there, each once."""
        found = sorted((row["key"], row["value"]) for row in self._read_rows() if self._is_own(row["key"]))
        wanted = sorted(rows)
        expect(found == wanted, f"{what}: the rows are {found[:10]}, and should be {wanted[:10]}")

    def killed_after(self, writes: int, batches: Sequence[tuple[pa.RecordBatch, bytes]]) -> None:
        """Write batches in a process that is killed during the write after so many."""
        make_sink, checkpoint = self._make_sink, f"{self.name}a"

        def child() -> None:
            sink = _opened(make_sink, checkpoint, "sink", 1)
            sink.last_mark()
            for batch, mark in batches:
                print(flush=True)  # noqa: T201  # the parent waits for it
                sink.write(batch, mark)
            print("all", flush=True)  # noqa: T201

        with _run(child) as process:
            assert process.stdout is not None
            begun = [process.stdout.readline() for _ in range(writes + 1)]
            process.kill()
        expect(all(begun), "a process that writes ended by itself")

    def killed_at_steps(self) -> Sequence[int]:
        """Let processes write and be killed at each step of a write, or at some of many, and write again.

        All of that is in a process of its own: a client may keep its connections as long as its process runs.

        Returns:
            The steps: see ``_of_step``. 0 is a process that was not killed.
        """
        make_sink, name = self._make_sink, self.name  # what reads rows may be no value to pickle

        def child() -> None:
            read, write = os.pipe()
            _forked(lambda: _killed(make_sink, *_of_step(name, 0), lambda _: _tell(write)))
            os.close(write)
            with os.fdopen(read, "rb") as told:
                steps = len(told.read())
            for killed in _spread(steps):
                _forked(partial(_killed, make_sink, *_of_step(name, killed), partial(_die, killed)))
            found = [(step, _second_run(make_sink, *_of_step(name, step))) for step in [0, *_spread(steps)]]
            print(json.dumps(found), flush=True)  # noqa: T201  # after all forks: clients need not survive one

        with _run(child) as process:
            assert process.stdout is not None
            told = process.stdout.read()
        expect(bool(told), "a process that writes ended by itself")
        found = json.loads(told)
        for step, wrong in found:
            expect(not wrong, f"after a kill at step {step} of a write {wrong}")
        return [step for step, _ in found]

    def _is_own(self, key: str) -> bool:
        return key.startswith(self.name) or (self.refused is not None and key == self.refused["key"])


def _rows(name: str, first: int, count: int = 3) -> list[_Row]:
    return [(f"{name}-{number}", f"value {number}") for number in range(first, first + count)]


def _of_step(name: str, step: int) -> tuple[str, list[pa.RecordBatch]]:
    """The checkpoint of a writer that is killed at a step, and its two batches; 0: that is not killed."""
    first = _ROWS_OF_A_STEP * step
    return f"{name}s{step}", [_batch(_rows(name, first)), _batch(_rows(name, first + 3))]


def _run(child: Callable[[], None]) -> subprocess.Popen[bytes]:
    """Call a function in another process, which prints to a pipe."""
    process = subprocess.Popen(  # noqa: S603  # this Python
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(cloudpickle.dumps(sys.path) + cloudpickle.dumps(child))
    process.stdin.close()
    return process


def _forked(work: Callable[[], None]) -> None:
    """Call a function in a fork of this process, which has imported all, and wait until it is dead."""
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    try:
        work()
    finally:
        os._exit(0)


def _spread(steps: int) -> Sequence[int]:
    """All steps, or some of them at even distances."""
    return sorted(
        {1 + number * steps // min(steps, _MOST_STEPS) for number in range(min(steps, _MOST_STEPS))}
    )


def _tell(pipe: int) -> None:
    os.write(pipe, b".")


def _die(killed: int, step: int) -> None:
    if step == killed:
        os.kill(os.getpid(), signal.SIGKILL)


def _killed(
    make_sink: MakeSink, checkpoint: str, batches: Sequence[pa.RecordBatch], at_step: Callable[[int], None]
) -> None:
    """Write a batch, and another one in whose steps something is called."""
    sink = _opened(make_sink, checkpoint, "sink", 1)
    sink.last_mark()
    sink.write(batches[0], _mark(0))
    _traced(sink, batches[1], at_step)


def _second_run(make_sink: MakeSink, checkpoint: str, batches: Sequence[pa.RecordBatch]) -> str:
    """Write the second batch again, as after a kill. Returns what is wrong; empty for nothing."""
    try:
        sink = _opened(make_sink, checkpoint, "sink", 1)
        last = sink.last_mark()
        if last not in (_mark(0), _mark(1)):
            return f"the mark is {last!r}"
        return "a second run refuses rows" if sink.write(batches[1], _mark(1)) else ""
    except Exception as error:  # noqa: BLE001  # of the sink that is checked
        return f"a second run raises {type(error).__name__}: {error}"


def _traced(sink: Sink, batch: pa.RecordBatch, at_step: Callable[[int], None]) -> None:
    """Write a batch; each line of the sink's own folder is a step, and no step counts more than twice."""
    folder = str(Path(type(sink).write.__code__.co_filename).parent)
    seen: Counter[tuple[object, int]] = Counter()
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401  # itself
        nonlocal steps
        if not frame.f_code.co_filename.startswith(folder):
            return None
        place = frame.f_code, frame.f_lineno
        if event == "line" and seen[place] < _OCCURRENCES:
            seen[place] += 1
            steps += 1
            at_step(steps)
        return trace

    sys.settrace(trace)
    try:
        sink.write(batch, _mark(1))
    finally:
        sys.settrace(None)


def _opened(make_sink: MakeSink, checkpoint: str, component: str, task: int) -> Sink:
    sink = make_sink()
    context = TaskContext("check", component, task, task - 1, {component: (1, 2)}, checkpoint_id=checkpoint)
    sink.open(Config(), context)
    return sink


def _batch(rows: Iterable[_Row]) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True) if (rows := list(rows)) else ((), ())
    return pa.record_batch({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})


def _mark(number: int) -> bytes:
    """Bytes of every kind."""
    return bytes(range(256)) + number.to_bytes(8, "little")


def _a_writer_begins_without_a_mark(case: _Case) -> None:
    sink = case.open()
    expect(sink.last_mark() is None, "there is a mark before the first write")
    sink.close()


def _rows_and_their_mark_are_written(case: _Case) -> None:
    sink = case.again()
    for number in range(2):
        expect(not sink.write(_batch(case.rows(3 * number)), _mark(number)), "rows are refused")
        expect(sink.last_mark() == _mark(number), "the writer does not see its mark")
        expect(case.open().last_mark() == _mark(number), "another process does not see the mark")
    sink.close()
    case.expect_rows(case.rows(0, 6), "after two writes")


def _a_write_with_the_last_mark_changes_nothing(case: _Case) -> None:
    sink = case.again()
    sink.write(_batch(case.rows(0)), _mark(0))
    for each in (sink, case.again(), case.open()):
        expect(not each.write(_batch(case.rows(0)), _mark(0)), "the second write refuses rows")
        expect(not each.write(_batch(case.rows(3)), _mark(0)), "a second write of other rows refuses rows")
    case.expect_rows(case.rows(0), "after a second write")
    case.again().write(_batch(case.rows(3)), _mark(1))
    case.expect_rows(case.rows(0, 6), "after the next mark")


def _a_batch_without_rows_has_a_mark(case: _Case) -> None:
    case.again().write(_batch([]), _mark(0))
    expect(case.again().last_mark() == _mark(0), "the mark is not there")
    case.expect_rows([], "after a batch without rows")


def _a_refused_row_fails_alone_and_is_refused_again(case: _Case) -> None:
    if case.refused is None:
        return
    rows = case.rows(0, 4)
    rows[2] = case.refused["key"], case.refused["value"]
    refusals = dict(case.again().write(_batch(rows), _mark(0)))
    expect(
        [*refusals] == [2] and bool(refusals[2]), f"row 2 is to be refused, with a reason, but {refusals} are"
    )
    case.expect_rows([*rows[:2], rows[3]], "beside a refused row")
    again = dict(case.again().write(_batch([]), _mark(0)))
    expect(again == refusals, f"the second run is told {again}, and the first {refusals}")
    expect(not case.again().write(_batch(case.rows(4)), _mark(1)), "the next write refuses rows")


def _writers_have_marks_of_their_own(case: _Case) -> None:
    writers = [case.open(checkpoint, component, task)
               for checkpoint in "ab" for component in ("sink", "sink2") for task in (1, 2)]  # fmt: skip
    for number, writer in enumerate(writers):
        expect(writer.last_mark() is None, f"writer {number} has the mark of another")
        writer.write(_batch(case.rows(3 * number)), _mark(0))
    case.expect_rows(case.rows(0, 3 * len(writers)), "of several writers")


def _an_abandoned_process_writes_nothing(case: _Case) -> None:
    for first_row in (0, 6):  # without a mark, and after one
        abandoned, other = case.again(), case.again()
        other.write(_batch(case.rows(first_row)), _mark(first_row))
        for number in (1, 2):
            try:
                abandoned.write(_batch(case.rows(100 * number + first_row)), _mark(100 * number))
            except ConnectorError:
                pass
            else:
                raise AssertionError("a process wrote, though another one has written since its last look")
        case.expect_rows(case.rows(0, first_row + 3), "after an abandoned process")
        expect(case.again().last_mark() == _mark(first_row), "an abandoned process has changed the mark")
        other.write(_batch(case.rows(first_row + 3)), _mark(first_row + 3))
        case.expect_rows(case.rows(0, first_row + 6), "of the process that goes on")


def _a_killed_process_leaves_all_of_a_batch_or_nothing(case: _Case) -> None:
    many = 100
    batches = [
        (_batch(case.rows(number * _ROWS_WHEN_KILLED, _ROWS_WHEN_KILLED)), _mark(number))
        for number in range(many)
    ]
    written = 0
    for writes in _KILLED_AFTER:
        case.killed_after(writes, batches[written:])
        last = case.again().last_mark()
        marks = [mark for _, mark in batches]
        written = 0 if last is None else marks.index(last) + 1
        case.expect_rows(case.rows(0, written * _ROWS_WHEN_KILLED), f"with mark {written} after a kill")
        again = case.again()
        for batch, mark in batches[max(0, written - 1) : written + 1]:
            expect(not again.write(batch, mark), "a second run refuses rows")
        written = min(written + 1, many)
        case.expect_rows(case.rows(0, written * _ROWS_WHEN_KILLED), "after the second run")


def _a_write_killed_at_any_line_leaves_all_or_nothing(case: _Case) -> None:
    steps = case.killed_at_steps()
    # After all second runs: where a server keeps transactions in order, a killed one may hide those after it.
    rows = [row for step in steps for row in case.rows(_ROWS_OF_A_STEP * step, 6)]
    case.expect_rows(rows, f"after kills at {len(steps) - 1} steps of a write, and second runs")


_CHECKS: Final[Mapping[str, Callable[[_Case], None]]] = {
    "a_writer_begins_without_a_mark": _a_writer_begins_without_a_mark,
    "rows_and_their_mark_are_written": _rows_and_their_mark_are_written,
    "a_write_with_the_last_mark_changes_nothing": _a_write_with_the_last_mark_changes_nothing,
    "a_batch_without_rows_has_a_mark": _a_batch_without_rows_has_a_mark,
    "a_refused_row_fails_alone_and_is_refused_again": _a_refused_row_fails_alone_and_is_refused_again,
    "writers_have_marks_of_their_own": _writers_have_marks_of_their_own,
    "an_abandoned_process_writes_nothing": _an_abandoned_process_writes_nothing,
    "a_killed_process_leaves_all_of_a_batch_or_nothing": _a_killed_process_leaves_all_of_a_batch_or_nothing,
    "a_write_killed_at_any_line_leaves_all_or_nothing": _a_write_killed_at_any_line_leaves_all_or_nothing,
}
SINK_CHECKS: Final = tuple(_CHECKS)
"""The names of the checks, in their order."""
