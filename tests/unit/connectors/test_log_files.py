"""A log is read line by line, each once and in order, whatever rotation and restarts do."""

from __future__ import annotations

import gzip
import os
import shutil
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.connectors.log_files import LogReader, Position


class Log:
    """A log with a writer and a rotation, and what it should be read as."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.log"
        self.lines: list[bytes] = []
        """What a reader has to return: the lines of all files of the log, one file after the other."""
        self._partial = b""
        self._times = (1_000_000_000 * 10**9 + n * 10**6 for n in count())
        self._numbers = count()

    def write(self, text: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text)
        self._touch(self.path)
        *whole, self._partial = (self._partial + text).split(b"\n")
        self.lines += whole

    def write_lines(self, number: int) -> None:
        for _ in range(number):
            self.write(b"line %d\n" % next(self._numbers))

    def rename(self) -> None:
        """As logrotate does by default, with ``create``."""
        self._make_room()
        self.path.rename(self.older(1))
        self.path.touch()
        self._touch(self.path)
        self._end_file()

    def copy_and_truncate(self) -> None:
        self._make_room()
        shutil.copy(self.path, self.older(1))
        self._touch(self.older(1))
        with self.path.open("r+b") as file:
            file.truncate()
        self._touch(self.path)
        self._end_file()

    def compress(self) -> None:
        """The oldest file that is not compressed yet; the program that does it keeps the time."""
        for number in range(9, 0, -1):
            path = self.older(number)
            if path.exists():
                packed = path.with_name(path.name + ".gz")
                with gzip.open(packed, "wb") as file:
                    file.write(path.read_bytes())
                shutil.copystat(path, packed)
                path.unlink()
                return

    def older(self, number: int) -> Path:
        return self.path.with_name(f"app.log.{number}")

    def _make_room(self) -> None:
        for number in range(40, 0, -1):
            for end in ("", ".gz"):
                path = self.path.with_name(f"app.log.{number}{end}")
                if path.exists():
                    path.rename(self.path.with_name(f"app.log.{number + 1}{end}"))

    def _end_file(self) -> None:
        if self._partial:
            self.lines.append(self._partial)
            self._partial = b""

    def _touch(self, path: Path) -> None:
        at = next(self._times)
        os.utime(path, ns=(at, at))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def reader_of(log: Log, position: Position | None = None, **options) -> LogReader:
    return LogReader(log.path, wait_secs=0, position=position, **options)


def all_of(reader: LogReader, most: int = 1000) -> list[bytes]:
    found = []
    while lines := reader.read(most):
        found += [line for _, line in lines]
    return found


ACTIONS = st.lists(
    st.sampled_from(["write", "write", "part", "rename", "truncate", "compress", "read", "read", "restart"]),
    max_size=25,
)


@settings(max_examples=150)
@given(ACTIONS, st.integers(1, 4))
def test_every_line_is_read_once_and_in_order_whatever_rotation_and_restarts_do(
    tmp_path_factory, actions, most
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    log.write_lines(1)
    reader = reader_of(log)
    found: list[bytes] = []

    def read() -> Position:
        """The position after it: it is saved with the lines, so a restart goes on behind the last ones."""
        lines = reader.read(most)
        found.extend(line for _, line in lines)
        return reader.position if lines else saved

    saved = Position()
    saved = read()
    for number, action in enumerate(actions):
        if action == "write":
            log.write_lines(1 + number % 3)
        elif action == "part":
            log.write(b"part %d " % number)
        elif action == "rename":
            log.rename()
        elif action == "truncate":
            log.copy_and_truncate()
        elif action == "compress":
            log.compress()
        elif action == "read":
            saved = read()
        else:
            reader.close()
            reader = reader_of(log, saved)
    found += all_of(reader)
    assert reader.reports == []
    reader.close()
    assert found == log.lines


def test_places_are_those_of_one_endless_log(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert reader.read(9) == [(0, b"one"), (4, b"two")]
    log.rename()
    log.write(b"three\n")
    assert reader.read(9) == [(8, b"three")]
    reader.close()


def test_a_last_line_waits_for_its_end_and_is_not_read_twice(log: Log) -> None:
    log.write(b"one\ntw")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    reader.close()
    reader = reader_of(log, reader.position)
    log.write(b"o\n")
    assert all_of(reader) == [b"two"]
    reader.close()


def test_a_log_that_is_truncated_without_a_copy_is_read_from_its_start_and_reported(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one", b"two"]
    log.path.write_bytes(b"longer than before, with one\n")
    assert all_of(reader) == [b"longer than before, with one"]
    assert ["truncated" in report.what for report in reader.reports] == [True]
    reader.close()


def test_a_rotated_file_that_is_gone_is_said_to_be(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert reader.read(1) == [(0, b"one")]
    reader.close()
    log.rename()
    log.older(1).unlink()
    log.write(b"three\n")
    reader = reader_of(log, reader.position)
    assert all_of(reader) == [b"three"]
    [report] = reader.reports
    assert "gone" in report.what
    reader.close()


def test_two_logs_that_begin_alike_are_distinguished_after_a_rename(log: Log) -> None:
    log.write(b"started\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"started"]
    reader.close()
    log.rename()
    log.write(b"started\n")
    reader = reader_of(log, reader.position)
    assert all_of(reader) == [b"started"]
    log.rename()
    log.write(b"started\n")
    log.rename()
    log.write(b"started\n")
    assert all_of(reader) == [b"started", b"started"]
    assert reader.reports == []
    reader.close()


def test_a_file_that_was_renamed_is_read_until_it_has_not_changed_for_a_while(log: Log) -> None:
    log.write(b"one\n")
    reader = LogReader(log.path, wait_secs=3600)
    assert all_of(reader) == [b"one"]
    log.rename()
    log.write(b"new\n")
    with log.older(1).open("ab") as file:
        file.write(b"late\n")
    assert all_of(reader) == [b"late"]
    reader.close()


def test_a_long_line_comes_in_pieces_and_nothing_of_it_is_missing(log: Log) -> None:
    log.write(b"x" * 1_000_000 + b"\nshort\n")
    reader = reader_of(log, max_line_bytes=300_000)
    found = all_of(reader)
    assert b"".join(found) == b"x" * 1_000_000 + b"short"
    assert 3 <= len(found) <= 5
    reader.close()


def test_other_files_beside_the_log_are_not_read(log: Log) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    for name in ("app.log.bak", "app.log.swp", "app.log2", "xapp.log.1", "app.log.1.zip"):
        log.path.with_name(name).write_bytes(b"other\n")
    log.rename()
    log.write(b"two\n")
    assert all_of(reader) == [b"two"]
    reader.close()


def test_rotated_files_may_have_names_of_another_pattern(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log, rotated="app-*.log")
    assert reader.read(1) == [(0, b"one")]
    reader.close()
    log.path.rename(log.path.with_name("app-monday.log"))
    log.write(b"three\n")
    reader = reader_of(log, reader.position, rotated="app-*.log")
    assert all_of(reader) == [b"two", b"three"]
    reader.close()


def test_a_log_that_was_copied_away_before_anything_of_it_was_read_is_read_from_the_copy(log: Log) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    log.rename()
    assert all_of(reader) == []  # the new file is open, and empty
    log.write(b"two\n")
    log.copy_and_truncate()
    assert all_of(reader) == [b"two"]
    log.write(b"three\n")
    log.copy_and_truncate()
    log.write(b"four\n")
    assert all_of(reader) == [b"three", b"four"]
    reader.close()


def test_a_rotated_file_that_has_just_changed_is_waited_for_after_a_restart(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert reader.read(1) == [(0, b"one")]
    reader.close()
    log.rename()
    log.write(b"new\n")
    os.utime(log.older(1))  # now
    reader = LogReader(log.path, wait_secs=3600, position=reader.position)
    assert all_of(reader) == [b"two"]
    with log.older(1).open("ab") as file:
        file.write(b"late\n")
    assert all_of(reader) == [b"late"]
    reader.close()


def test_a_truncated_log_that_ends_alike_is_known_by_its_beginning(log: Log) -> None:
    same = b"".join([b"alive\n"] * 100)
    log.path.write_bytes(b"run 1\n" + same)
    reader = reader_of(log)
    assert len(all_of(reader)) == 101
    log.path.write_bytes(b"run 2\n" + same)
    assert len(all_of(reader)) == 101
    assert len(reader.reports) == 1
    reader.close()


@pytest.mark.parametrize("packed", [b"none", gzip.compress(os.urandom(300_000))[:200_000]], ids=["no", "cut"])
def test_a_damaged_rotated_file_is_reported_and_what_comes_after_it_is_read(log: Log, packed: bytes) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    log.rename()
    log.path.with_name("app.log.2.gz").write_bytes(packed)
    log.write(b"two\n")
    found = all_of(reader)
    assert found[-1] == b"two"
    assert packed == b"none" or len(b"\n".join(found)) > 100_000
    assert [report.what.split(",")[0][-10:] for report in reader.reports] == ["is damaged"]
    assert all_of(reader) == []
    reader.close()
