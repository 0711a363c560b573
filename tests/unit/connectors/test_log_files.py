"""A log is read line by line, each once and in order, whatever rotation and restarts do."""

from __future__ import annotations

import errno
import gzip
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.connectors.log_files import LogReader
from acktree.connectors.log_folder import Position
from tests.drawn import drawn
from tests.unit.connectors.log_model import LAYOUTS, Log, number_of


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


class Follower:
    """A reader with the position that a checkpoint would have: the one after the last lines it was given."""

    def __init__(self, log: Log, most: int = 1000) -> None:
        self.log, self.most = log, most
        self.found: list[tuple[int, bytes]] = []
        self.reports = 0
        self.saved: tuple | None = None
        self.start()

    def start(self) -> None:
        position = None if self.saved is None else Position.of(self.saved, "the log")
        self.reader = LogReader(self.log.path, wait_secs=0, position=position)

    def read(self) -> bool:
        lines = self.reader.read(self.most)
        self.reports += len(self.reader.reports)
        self.reader.reports.clear()
        self.found += lines
        if lines:
            self.saved = self.reader.position.plain()
        return bool(lines)

    def read_all(self) -> None:
        while self.read():
            pass

    def crash(self, *, has_read: bool = False) -> None:
        """Start again; what was read last may not have been saved."""
        if has_read:
            self.reader.read(self.most)
            self.reports += len(self.reader.reports)
        self.reader.close()
        self.start()

    def fail(self) -> None:
        """Read, and go back, as a spout does that could not emit."""
        before = self.reader.position
        self.reader.read(self.most)
        self.reader.go_back(before)

    @property
    def lines(self) -> list[bytes]:
        return [line for _, line in self.found]


def numbers_of(lines: list[bytes]) -> list[int]:
    return [number_of(line) for line in lines]


ACTIONS = [
    *["lines", "lines", "part", "read", "read", "read", "rotate", "rotate", "truncate", "truncate in use"],
    *["compress", "replace", "edit", "delete", "restore", "times", "restart", "crash", "fail"],
]


@settings(max_examples=min(10_000, drawn(300)))
@given(
    st.lists(st.sampled_from(ACTIONS), max_size=30),
    st.sampled_from(LAYOUTS),
    st.integers(1, 4),
    st.integers(0, 1 << 16),
)
def test_every_line_is_read_once_and_in_order_whatever_is_done_to_the_files(
    tmp_path_factory, actions, layout, most, seed
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, chance = Log(folder, layout, seed), random.Random(seed)
    log.write_lines(1)
    follower = Follower(log, most)
    follower.read()
    does = {
        "lines": lambda: log.write_lines(chance.randint(1, 4)),
        "part": log.write_part,
        "read": follower.read,
        "rotate": log.rotate,
        "truncate": lambda: log.copy_and_truncate(appends=chance.random() < 0.7),
        "truncate in use": lambda: [
            follower.read_all(),
            log.copy_and_truncate(follower.read, chance.randrange(3)),
        ],
        "compress": log.compress,
        "replace": log.replace,
        "edit": lambda: [
            (log.partial or log.is_copy) and follower.read_all(),  # else the end of the old file is a line
            log.edit(in_place=chance.random() < 0.5),
        ],
        "delete": lambda: log.delete({*numbers_of(follower.lines)}),
        "restore": log.restore,
        "times": log.set_times,
        "restart": follower.crash,
        "crash": lambda: follower.crash(has_read=True),
        "fail": follower.fail,
    }
    for action in actions:
        does[action]()
    follower.read_all()
    follower.reader.close()
    shutil.rmtree(folder)
    check(log, follower)


def check(log: Log, follower: Follower) -> None:
    found = numbers_of(follower.lines)
    first = list(dict.fromkeys(found))
    wanted = [number for number in numbers_of(log.lines) if number in first or number not in log.optional]
    assert first == wanted
    again = {number for number in first if found.count(number) > 1}
    assert again <= log.repeated
    assert not again or follower.reports
    assert not follower.reports or log.may_report
    texts = {number_of(line): line for line in log.lines}
    assert {line.replace(b"edited ", b"") for line in follower.lines} == {texts[number] for number in first}
    offsets = [offset for offset, _ in follower.found]
    assert offsets == sorted(set(offsets))


def test_places_are_those_of_one_endless_log(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert reader.read(9) == [(0, b"one"), (4, b"two")]
    log.rotate()
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
    log.rotate()
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
    log.rotate()
    log.write(b"started\n")
    reader = reader_of(log, reader.position)
    assert all_of(reader) == [b"started"]
    log.rotate()
    log.write(b"started\n")
    log.rotate()
    log.write(b"started\n")
    assert all_of(reader) == [b"started", b"started"]
    assert reader.reports == []
    reader.close()


def test_a_file_that_was_renamed_is_read_until_it_has_not_changed_for_a_while(log: Log) -> None:
    log.write(b"one\n")
    reader = LogReader(log.path, wait_secs=3600)
    assert all_of(reader) == [b"one"]
    log.rotate()
    log.write(b"new\n")
    with log.older(1).open("ab") as file:
        file.write(b"late\n")
    assert all_of(reader) == [b"late"]
    reader.close()


TEXTS = st.text(st.sampled_from("a\r\0é€😀\ufeff"), max_size=20)


@given(
    st.lists(TEXTS, max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 30),
    st.sampled_from(["utf-8", "latin-1", "gb18030", "shift-jis"]),
    st.binary(max_size=3),
)
def test_pieces_of_a_long_line_end_between_characters_and_joined_they_are_the_line(
    tmp_path_factory, texts, end, most, encoding, broken
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    texts = [text.encode(encoding, "ignore") + broken.replace(b"\n", b"") for text in texts]
    lines = [b"first", *(text.rstrip(b"\r") for text in texts)]
    log.path.write_bytes(b"".join(line + end.encode() for line in lines))
    reader = reader_of(log, max_line_bytes=most, encoding=encoding)
    placed = []
    while found := reader.read(1000):
        placed += found
    reader.close()
    at = 0
    for line in lines:
        pieces = [piece for offset, piece in placed if at <= offset <= at + len(line)]
        assert b"".join(pieces) == line
        assert all(pieces) or line == b""
        decoded = [piece.decode(encoding, "backslashreplace") for piece in pieces]
        assert "".join(decoded) == line.decode(encoding, "backslashreplace")
        assert all(len(piece) <= most or len(text) <= 8 for piece, text in zip(pieces, decoded, strict=True))
        assert len(pieces) == 1 or len(line) > most
        at += len(line) + len(end)


def test_a_long_line_is_cut_where_it_is_too_long_however_it_was_written(log: Log) -> None:
    reader = reader_of(log, max_line_bytes=1 << 20)
    log.path.write_bytes(b"x" * (1 << 20) + b"\n" + b"y" * (1 << 20))
    found = all_of(reader)
    with log.path.open("ab") as file:
        file.write(b"y" * (1 << 19) + b"\r\nshort\n")
    found += all_of(reader)
    assert [(line[:1], len(line)) for line in found] == [
        (b"x", 1 << 20),
        (b"y", 1 << 20),
        (b"y", 1 << 19),
        (b"s", 5),
    ]
    reader.close()


@pytest.mark.parametrize("layout", ["numbers", "dates"])
def test_rotated_files_are_read_in_the_order_of_their_names_whatever_their_times_are(
    tmp_path: Path, layout
) -> None:
    log = Log(tmp_path, layout)
    log.write_lines(1)
    reader = reader_of(log)
    found = all_of(reader)
    for hours in range(4):
        log.rotate()
        log.write_lines(1)
        os.utime(log.path, (1_700_000_000 - 3600 * hours,) * 2)
    assert found + all_of(reader) == log.lines
    assert reader.reports == []
    reader.close()


def test_zeros_that_a_truncated_log_begins_with_are_no_line(log: Log) -> None:
    log.write(b"x" * 3_000_000 + b"\n")
    reader = reader_of(log)
    assert b"".join(all_of(reader)) == b"x" * 3_000_000
    log.copy_and_truncate(appends=False)
    log.write(b"two\0\n")
    assert all_of(reader) == [log.lines[1], b"two\0"]
    assert ["zeros" in report.what for report in reader.reports] == [True]
    reader.close()


def test_lines_between_a_copy_and_its_truncation_are_read_or_reported(log: Log) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    log.copy_and_truncate(lambda: log.write(b"read meanwhile\n") or all_of(reader))
    log.write(b"three\n")
    assert all_of(reader) == [b"three"]
    log.copy_and_truncate(lambda: log.write(b"not read\n"))
    log.write(b"five\n")
    assert all_of(reader) == [b"five"]
    reader.close()


def test_a_link_that_goes_back_to_an_earlier_file_goes_on_in_it(log: Log) -> None:
    first, second = log.path.with_name("app-1.log"), log.path.with_name("app-2.log")
    beside = log.path.with_name("beside")
    found = []
    reader = None
    for target, text in ((first, "one\n"), (second, "two\n"), (first, "three\n"), (second, "four\n")):
        with target.open("a") as file:
            file.write(text)
        beside.symlink_to(target.name)
        beside.rename(log.path)
        reader = reader or reader_of(log, rotated="app-*.log")
        found += all_of(reader)
    assert found == [b"one", b"two", b"three", b"four"]
    assert reader.reports == []
    reader.close()


def test_lines_that_are_written_late_into_a_rotated_file_come_with_the_next_rotation(log: Log) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    log.rotate()
    log.write(b"two\n")
    assert all_of(reader) == [b"two"]
    with log.older(1).open("ab") as file:
        file.write(b"late\n")
    assert all_of(reader) == []
    log.rotate()
    log.write(b"three\n")
    assert all_of(reader) == [b"late", b"three"]
    reader.close()


def test_a_rotated_file_is_known_though_it_is_compressed_in_several_parts(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one", b"two"]
    log.rotate()
    packed = log.older(1).with_name("app.log.1.gz")
    packed.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    log.older(1).unlink()
    log.write(b"three\n")
    assert all_of(reader) == [b"three"]
    log.rotate()
    assert all_of(reader) == []
    reader.close()


def test_a_mirrored_log_is_read_to_its_end_from_the_copy_that_was_rotated(log: Log) -> None:
    def sync(path: Path, text: bytes) -> None:
        beside = path.with_name(".beside")
        beside.write_bytes(text)
        beside.rename(path)

    sync(log.path, b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    sync(log.older(1), b"one\ntwo\n")
    sync(log.path, b"three\n")
    assert all_of(reader) == [b"two", b"three"]
    sync(log.path, b"three\nfour\n")
    assert all_of(reader) == [b"four"]
    assert reader.reports == []
    reader.close()


def test_a_file_that_replaced_an_edited_log_is_reported(log: Log) -> None:
    log.write(b"one\ntwo\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one", b"two"]
    log.edit(in_place=False)
    assert all_of(reader) == [b"edited one", b"two"]
    assert ["lines come again" in report.what for report in reader.reports] == [True]
    reader.close()


def test_other_files_beside_the_log_are_not_read(log: Log) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    for name in ("app.log.bak", "app.log.swp", "app.log2", "xapp.log.1", "app.log.1.zip"):
        log.path.with_name(name).write_bytes(b"other\n")
    log.rotate()
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
    log.rotate()
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
    log.rotate()
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


PACKED_AND_CUT = gzip.compress(random.Random(1).randbytes(300_000))[:200_000]


@pytest.mark.parametrize("packed", [b"none", PACKED_AND_CUT], ids=["no", "cut"])
def test_a_damaged_rotated_file_is_reported_and_what_comes_after_it_is_read(log: Log, packed: bytes) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    log.rotate()
    log.path.with_name("app.log.2.gz").write_bytes(packed)
    log.write(b"two\n")
    found = all_of(reader)
    assert found[-1] == b"two"
    assert packed == b"none" or len(b"\n".join(found)) > 100_000
    assert [report.what.split(",")[0][-10:] for report in reader.reports] == ["is damaged"]
    assert all_of(reader) == []
    reader.close()


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="no file whose bytes cannot be read (Linux has one)"
)
def test_a_disk_that_cannot_be_read_for_a_while_is_an_error_and_no_line_comes_again(log: Log) -> None:
    log.write(b"one\n")
    reader = reader_of(log)
    assert all_of(reader) == [b"one"]
    position = reader.position
    reader.close()
    log.rotate()
    rotated = log.path.with_name("app.log.1")
    packed = rotated.with_name("app.log.1.gz")
    packed.symlink_to("/proc/self/mem")  # a regular file; to read it fails with EIO
    content = rotated.read_bytes()
    rotated.unlink()
    log.write(b"two\n")
    reader = reader_of(log, position)
    with pytest.raises(OSError) as raised:  # noqa: PT011  # its number is looked at
        all_of(reader)
    assert raised.value.errno == errno.EIO
    packed.unlink()
    packed.write_bytes(gzip.compress(content + b"last\n"))
    assert all_of(reader) == [b"last", b"two"]
    reader.close()
