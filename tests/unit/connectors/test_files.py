"""Logs and folders of files, with real files and without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from acktree import (
    ConfigError,
    ConnectorError,
    SpoutError,
    TopologyBuilder,
    bolt,
)
from acktree.connectors.files import FolderSpout, FollowFileSpout
from acktree.tasks.spouts.keys.labels import label_of
from acktree.testing import SPOUT_CHECKS, Broker, LocalCluster, SpoutHarness, check_spout

# --- a log ----------------------------------------------------------------------------------------------


def lines_of(harness: SpoutHarness) -> list[str]:
    return [each.values[0] for each in harness.arrived]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def test_lines_are_emitted_as_they_come_whatever_bytes_they_are_of(log: Path) -> None:
    log.write_bytes(b"one\r\ncaf\xc3\xa9\nbro\xffken\n\npart")
    with SpoutHarness(FollowFileSpout(log)) as harness:
        harness.step()
        assert lines_of(harness) == ["one", "café", "bro\\xffken", ""]
        assert [each.message_id for each in harness.arrived] == [0, 5, 11, 19]
        with log.open("ab") as file:
            file.write(b"ial\n")
        harness.until(lambda: len(harness.arrived) == 5, 5, "the fifth line comes")
        assert lines_of(harness)[4] == "partial"
        harness.ack(harness.arrived)
        assert harness.task.is_idle


def test_another_encoding_is_read_as_it(log: Path) -> None:
    log.write_bytes(b"caf\xe9\n")
    with SpoutHarness(FollowFileSpout(log, encoding="latin-1")) as harness:
        harness.step()
        assert lines_of(harness) == ["café"]


def test_no_more_lines_are_open_than_allowed(log: Path) -> None:
    log.write_text("".join(f"{n}\n" for n in range(100)))
    with SpoutHarness(FollowFileSpout(log), max_spout_pending=7) as harness:
        at = 0
        while at < 100:
            harness.step()
            fresh, at = harness.arrived[at:], len(harness.arrived)
            harness.ack(fresh)
        assert lines_of(harness) == [str(n) for n in range(100)]
        assert harness.most_open == 7
        assert harness.spout.lag() == 0


def test_a_restart_resumes_after_the_last_emitted_line_through_a_rotation(log: Path) -> None:
    log.write_text("one\ntwo\n")
    with SpoutHarness(FollowFileSpout(log, rotate_wait_secs=0), max_spout_pending=1) as harness:
        harness.step()
        assert lines_of(harness) == ["one"]
        position = harness.spout.position
    log.rename(log.with_name("app.log.1"))
    log.write_text("three\n")
    again = FollowFileSpout(log, rotate_wait_secs=0)
    again.position = position  # as a checkpoint sets what a spout remembers
    with SpoutHarness(again) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 5, "the other lines come")
        assert lines_of(harness) == ["two", "three"]
        assert not harness.reports


def test_a_log_that_is_not_there_is_reported_once_and_read_when_it_is(log: Path) -> None:
    with SpoutHarness(FollowFileSpout(log)) as harness:
        harness.rest(0.3)
        [report] = harness.reports
        assert (report.exception.can_retry, str(log) in report.reason) == (True, True)
        log.write_text("one\n")
        harness.until(lambda: lines_of(harness) == ["one"], 5, "the line comes")


def test_a_fifo_in_the_place_of_a_log_is_reported_and_nothing_waits_for_its_writer(log: Path) -> None:
    os.mkfifo(log)
    with SpoutHarness(FollowFileSpout(log)) as harness:
        harness.step()
        [report] = harness.reports
        assert "not a file but a FIFO" in report.reason
        log.unlink()
        log.write_text("one\n")
        harness.until(lambda: lines_of(harness) == ["one"], 5, "the line comes")


def test_a_position_of_another_version_is_refused(log: Path) -> None:
    log.write_text("one\n")
    spout = FollowFileSpout(log)
    spout.position = (0, 4, b"one\n", b"one\n", 1_000_000_000, 17)
    with pytest.raises(ConnectorError, match="new checkpoint"), SpoutHarness(spout):
        pass


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "UTF8"])
def test_a_byte_order_mark_belongs_to_no_line(log: Path, encoding: str) -> None:
    log.write_bytes("\ufeffid,name\r\n\ufeff1,Zoë\r\n".encode())
    with SpoutHarness(FollowFileSpout(log, encoding=encoding, rotate_wait_secs=0)) as harness:
        harness.step()
        assert lines_of(harness) == ["id,name", "\ufeff1,Zoë"]
        log.rename(log.with_name("app.log.1"))
        log.write_bytes("\ufeffnext\n".encode())
        harness.until(lambda: lines_of(harness)[2:] == ["next"], 5, "the next file comes")
        assert not harness.reports


def test_a_log_that_can_never_be_read_stops_it(log: Path) -> None:
    log.mkdir()
    with (
        SpoutHarness(FollowFileSpout(log)) as harness,
        pytest.raises(ConnectorError, match="right to it"),
    ):
        harness.step()


def test_lines_that_may_be_missing_are_reported(log: Path) -> None:
    log.write_text("one\n")
    with SpoutHarness(FollowFileSpout(log)) as harness:
        harness.step()
        log.write_text("this is longer\n")
        harness.until(lambda: len(harness.arrived) == 2, 5, "the second line comes")
        [report] = harness.reports
        assert "truncated" in report.reason


def test_several_tasks_of_one_log_are_refused(log: Path) -> None:
    builder = TopologyBuilder("log")
    builder.set_spout("lines", FollowFileSpout(log), parallelism=2)
    builder.set_bolt("swallow", bolt()(lambda tup: None)).shuffle_grouping("lines")
    with LocalCluster() as cluster, pytest.raises(SpoutError, match="parallelism to 1"):
        cluster.submit(builder.create_topology())


@pytest.mark.parametrize(
    "arguments",
    [
        *[{"encoding": name} for name in ("utf-16", "utf-16-le", "utf-32", "cp037", "nothing", "hex")],
        {"rotate_wait_secs": -1},
        {"max_line_bytes": 0},
        {"max_line_bytes": 1 << 31},
    ],
)
def test_a_log_is_followed_with_arguments_that_make_sense(arguments) -> None:
    with pytest.raises(ConfigError):
        FollowFileSpout("app.log", **arguments)


# --- a folder -------------------------------------------------------------------------------------------


class Folder(Broker):
    """A folder as a queue: nothing of it can be cut, stopped or killed."""

    redelivery_secs = 0.2
    shortest_lease_secs = 0.1
    acks_belong_to_connection = False

    def __init__(self, folder: Path, given_up: str = "dead_letter") -> None:
        self.folder, self.given_up = folder / "in", given_up
        self.done, self.bad = folder / "done", folder / "bad"

    def make_spout(self) -> FolderSpout:
        bad = self.bad if self.given_up == "reject" else None
        return FolderSpout(self.folder, done=self.done, given_up=bad, settle_secs=0)

    def put(self, bodies):
        for body in bodies:
            beside = self.folder / f".{body.decode()}"
            beside.write_bytes(body)
            beside.rename(self.folder / body.decode())

    def body_of(self, values):
        return values[1]

    def count(self):
        return len(list(self.folder.iterdir()))

    def cut(self): ...
    def stop(self): ...
    def kill(self): ...
    def start(self): ...

    def drop_queue(self):
        for file in self.folder.iterdir():
            file.unlink()
        self.folder.rmdir()

    def clear(self):
        for folder in (self.folder, self.done, self.bad):
            folder.mkdir(exist_ok=True)
            for file in folder.iterdir():
                file.unlink()

    def dead_letters(self):
        return [file.read_bytes() for file in self.bad.iterdir()]

    def misconfigured(self):
        nowhere, away = self.folder / "nowhere", self.folder / "away"
        return {
            "no folder": (lambda: FolderSpout(nowhere, done=None), False),
            "no folder for what is done": (lambda: FolderSpout(self.folder, done=away), False),
        }


CHECKS = [
    (name, "dead_letter") for name in SPOUT_CHECKS if not {"server", "cut", "connection"} & {*name.split()}
]
CHECKS += [("what is given up has one copy", "reject")]


@pytest.mark.parametrize(("check", "given_up"), CHECKS)
def test_a_folder_keeps_the_contract_of_a_queue(tmp_path: Path, check: str, given_up: str) -> None:
    folder = Folder(tmp_path, given_up)
    check_spout(folder.make_spout, folder, only=[check])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.clear()
    return made


def test_a_file_is_moved_when_it_is_done_and_no_earlier_one_of_its_name_is_lost(folder: Folder) -> None:
    for body in (b"first", b"second"):
        (folder.folder / "orders.csv").write_bytes(body)
        with SpoutHarness(folder.make_spout()) as harness:
            harness.until(lambda h=harness: len(h.arrived) == 1, 5, "the file comes")
            [arrived] = harness.arrived
            assert arrived.values == (str(folder.folder / "orders.csv"), body)
            harness.ack([arrived])
    assert {file.name: file.read_bytes() for file in folder.done.iterdir()} == {
        "orders.csv": b"first",
        "orders.csv.1": b"second",
    }
    assert folder.count() == 0


def test_a_file_may_be_deleted_when_it_is_done(folder: Folder) -> None:
    folder.put([b"one"])
    with SpoutHarness(FolderSpout(folder.folder, done=None, settle_secs=0)) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 5, "the file comes")
        harness.ack(harness.arrived)
    assert folder.count() == 0


def test_a_file_that_cannot_be_read_is_reported_and_the_others_go_on(folder) -> None:
    (folder.folder / "broken").symlink_to("/proc/self/mem")  # reading it from its beginning is an error
    (folder.folder / "good").write_bytes(b"good")
    with SpoutHarness(FolderSpout(folder.folder, done=None, settle_secs=0)) as harness:
        harness.until(lambda: harness.arrived, 5, "the other comes")
        harness.rest(0.2)
        assert [each.values[1] for each in harness.arrived] == [b"good"]
        [reported] = harness.reports
        assert "a file cannot be read: Input/output error" in reported.reason
        assert str(folder.folder / "broken") in reported.reason
        (folder.folder / "broken").unlink()
        (folder.folder / "broken").write_bytes(b"mended")
        harness.until(lambda: len(harness.arrived) == 2, 5, "it comes when it is mended")


def test_a_file_that_was_replaced_while_it_was_open_stays_and_is_a_new_message(folder: Folder) -> None:
    (folder.folder / "a").write_bytes(b"older")
    with SpoutHarness(folder.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 5, "the file comes")
        (folder.folder / "a").write_bytes(b"the newer")
        harness.ack(harness.arrived)
        harness.until(lambda: len(harness.arrived) == 2, 5, "the new file comes")
        assert harness.arrived[1].values[1] == b"the newer"


def test_a_file_is_not_taken_for_one_of_its_name_size_and_time(folder: Folder) -> None:
    file, beside = folder.folder / "a", folder.done / "beside"
    for path, body in ((file, b"older"), (beside, b"newer")):
        path.write_bytes(body)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    with SpoutHarness(FolderSpout(folder.folder, done=None, settle_secs=0)) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 5, "the file comes")
        time.sleep(0.02)  # the system's clock for files is coarse
        beside.rename(file)
        harness.ack(harness.arrived)
        harness.until(lambda: len(harness.arrived) == 2, 5, "the new file comes")
        assert harness.arrived[1].values[1] == b"newer"


def raise_once(harness: SpoutHarness, method: str) -> None:
    """Let the collector of a spout refuse what is emitted next."""
    emit, raised = getattr(harness.spout._collector, method), [MemoryError("no room")]

    def refuse(*given, **named):
        if raised:
            raise raised.pop()
        emit(*given, **named)

    setattr(harness.spout._collector, method, refuse)


def test_what_could_not_be_emitted_is_emitted_by_the_next_try(folder: Folder, log: Path) -> None:
    folder.put([b"one"])
    with SpoutHarness(folder.make_spout()) as harness:
        raise_once(harness, "emit")
        harness.until(lambda: len(harness.arrived) == 1, 5, "the file comes")
    log.write_text("one\ntwo\n")
    with SpoutHarness(FollowFileSpout(log)) as harness:
        raise_once(harness, "emit_batch")
        harness.until(lambda: len(harness.arrived) == 2, 5, "the lines come")
        assert [each.message_id for each in harness.arrived] == [0, 4]


def test_only_files_that_are_complete_and_match_are_taken(folder: Folder) -> None:
    for name in ("a.csv", "b.txt", ".c.csv", "_d.csv"):
        (folder.folder / name).write_bytes(b"x")
    (folder.folder / "folder.csv").mkdir()
    os.mkfifo(folder.folder / "fifo.csv")
    written = folder.folder / "written.csv"

    def has_arrived_while_another_is_written(name: str) -> bool:
        with written.open("ab") as file:
            file.write(b"more")
        return name in names_of(harness)

    with SpoutHarness(FolderSpout(folder.folder, pattern="*.csv", done=None, settle_secs=0.1)) as harness:
        harness.until(lambda: has_arrived_while_another_is_written("a.csv"), 5, "the complete file comes")
        assert names_of(harness) == ["a.csv"]
        harness.until(lambda: len(harness.arrived) == 2, 5, "the other comes")
        assert harness.arrived[1].values == (str(written), written.read_bytes())


def names_of(harness: SpoutHarness) -> list[str]:
    return [Path(each.values[0]).name for each in harness.arrived]


@pytest.mark.parametrize("ahead_secs", [-1e9, 1e9])
def test_a_file_is_taken_whatever_its_time_is(folder: Folder, ahead_secs: float) -> None:
    folder.put([b"one"])
    os.utime(folder.folder / "one", (time.time() + ahead_secs,) * 2)
    with SpoutHarness(FolderSpout(folder.folder, done=None, settle_secs=0.01)) as harness:
        harness.until(lambda: names_of(harness) == ["one"], 5, "the file comes")


@pytest.mark.parametrize("given_up", ["reject", "dead_letter"])
def test_a_file_that_is_too_large_is_reported_and_not_read_and_the_others_go_on(
    tmp_path: Path, given_up: str
) -> None:
    folder = Folder(tmp_path, given_up)
    folder.clear()
    large = folder.folder / "a"
    with large.open("wb") as file:
        file.truncate(1 << 31)
    folder.put([b"good"])
    with SpoutHarness(folder.make_spout()) as harness:
        harness.until(lambda: harness.arrived, 5, "the other comes")
        harness.rest(0.2)
        assert names_of(harness) == ["good"]
        [reported] = harness.reports
        assert "2,147,483,648 bytes, more than one message may have" in reported.reason
        assert str(large) in reported.reason
    assert (folder.bad / "a").exists() == (given_up == "reject")
    assert large.exists() == (given_up != "reject")


def test_a_folder_is_never_its_own_folder_of_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="emitted again"):
        FolderSpout(tmp_path, done=tmp_path)


def named_by(spout, count):
    with SpoutHarness(spout) as harness:
        harness.until(lambda: harness.task.open_count == count, 10, f"{count} come")
        return [(label_of(each.message_id), each.message_id) for each in harness.task.oldest_open(count)]


def test_a_line_is_named_from_its_json_or_by_a_function(tmp_path):
    log = tmp_path / "log"
    log.write_text('{"order": "A-17"}\nno JSON\n{"order": "A-17"}\n')
    found = named_by(FollowFileSpout(log, label="body:order", key=lambda row: row["line"]), 3)
    assert [label for label, _ in found] == ["A-17", None, "A-17"]
    keys = [each.key for _, each in found]
    assert (keys[0] == keys[2], keys[0] == keys[1]) == (True, False)
    assert [each.message_id for _, each in found] == [0, 18, 26]


def test_a_line_whose_label_cannot_be_shown_has_none_and_goes_on(tmp_path):
    log = tmp_path / "log"
    log.write_text("a\nb\n")
    found = named_by(FollowFileSpout(log, label=lambda row: 10**5000 if row["line"] == "a" else 17), 2)
    assert [label for label, _ in found] == [None, "17"]


def test_a_file_is_named_by_its_name(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1")
    spout = FolderSpout(tmp_path, done=None, settle_secs=0, label="name", key="name")
    [(label, message_id)] = named_by(spout, 1)
    assert (label, message_id.message_id[0], len(message_id.key)) == ("a.csv", "a.csv", 16)


@pytest.mark.parametrize("place", ["header:x", "name", "line"])
def test_a_line_has_no_such_name(tmp_path, place):
    with pytest.raises(ConfigError, match="label is"):
        FollowFileSpout(tmp_path / "log", label=place)
