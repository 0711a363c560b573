"""The event log: whole trees are sampled, from the order on, and its files are bounded."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import closing

import pytest

from acktree import Config, EventLogger
from acktree.cli import events as events_command
from acktree.cli.events import _events
from acktree.cli.main import main
from acktree.core.data.frames import Kind, WireRow
from acktree.errors import ConfigError, MisuseError
from acktree.testing import FeederSpout, LocalCluster
from acktree.topology import TopologyBuilder
from acktree.traces.events import Event, EventFiles, EventLog, event_files, read_events
from tests.in_module import replace
from tests.unit.traces.test_traces import Picky, Split
from tests.unit.ui.driver_without_spark import started


class Kept(EventLogger):
    def __init__(self):
        self.seen, self.said = [], []

    def open(self, topology):
        self.said.append(topology)

    def log(self, events):
        self.seen += events

    def close(self):
        self.said.append("closed")


def topology(feeder):
    builder = TopologyBuilder("words")
    builder.set_spout("source", feeder)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("source")
    builder.set_bolt("picky", Picky(), 2).fields_grouping("split", ["word"])
    return builder.create_topology()


@pytest.mark.parametrize("partitions", [1, 2])
def test_whole_trees_are_logged_from_the_order_on_and_no_longer_than_it_holds(partitions):
    feeder, kept = FeederSpout(["line"]), Kept()
    with LocalCluster() as cluster:
        running = cluster.submit(topology(feeder), config=Config(partitions=partitions), event_logger=kept)

        def feed(count):
            for number in range(count):
                feeder.feed([f"a{number} b{number}"], message_id=number)
            cluster.advance()

        feed(10)
        assert not running.events()
        running.debug(percent=20)
        feed(200)
        by_root = {}
        for event in running.events(1000):
            by_root.setdefault(event.root, []).append(event.component)
        assert 20 < len(by_root) < 60
        assert {tuple(sorted(names)) for names in by_root.values()} == {
            ("picky", "picky", "source", "split", "split")
        }
        running.debug(on=False)
        count = len(kept.seen)
        feed(10)
        assert len(kept.seen) == count == sum(map(len, by_root.values()))
        running.debug(component="split")
        feed(3)
        assert {event.component for event in kept.seen[count:]} == {"split"}
        assert running.events(2, "split") == kept.seen[-2:]
    assert kept.said == ["words", "closed"]


def test_what_cannot_be_logged_is_refused():
    with LocalCluster() as cluster:
        running = cluster.submit(topology(FeederSpout(["line"])), config=Config(eventlogger_executors=0))
        with pytest.raises(MisuseError, match="ever logged"):
            running.debug()
        other = cluster.submit(topology(FeederSpout(["line"])))
        with pytest.raises(MisuseError, match="no component 'splot'"):
            other.debug(component="splot")
        with pytest.raises(MisuseError, match="percentage"):
            other.debug(percent=0)
    assert Config.from_mapping({"topology.eventlogger.executors": 2}).eventlogger_executors == 2
    with pytest.raises(ConfigError):
        Config(eventlogger_executors=-1)


def event(number, at_ms=0):
    return Event(at_ms, "split", 3, "default", -(2**62) - number, [f"word {number}", None, 1.5])


def test_files_are_rotated_by_size_and_day_and_the_oldest_are_deleted(tmp_path):
    files = EventFiles(tmp_path / "events", most_bytes=300, kept=3)
    files.log([event(number) for number in range(20)])
    assert len(event_files(tmp_path / "events")) == 3
    assert all(file.stat().st_size <= 300 for file in event_files(tmp_path / "events"))
    assert {file.stat().st_mode & 0o777 for file in event_files(tmp_path / "events")} == {0o600}
    files.log([event(99, at_ms=90_000_000)])
    files.close()
    assert [file.name for file in event_files(tmp_path / "events")][-1].startswith("events-1970-01-02")
    assert read_events(tmp_path / "events", 2) == [event(19), event(99, at_ms=90_000_000)]
    assert read_events(tmp_path / "events", 5, "count") == []
    with event_files(tmp_path / "events")[-1].open("a") as file:
        file.write('{"half')
    assert read_events(tmp_path / "events", 1) == [event(99, at_ms=90_000_000)]


def test_a_file_that_is_not_acktrees_is_neither_read_nor_deleted(tmp_path):
    others = [
        tmp_path / name for name in ("events-1970-01-01-000001 (copy).jsonl", "events-old.jsonl", "notes")
    ]
    for other in others:
        other.touch()
    files = EventFiles(tmp_path, most_bytes=300, kept=1)
    files.log([event(number) for number in range(20)])
    files.close()
    assert [file for file in tmp_path.iterdir() if file not in others] == event_files(tmp_path)
    assert read_events(tmp_path, 1) == [event(19)]
    assert all(other.exists() for other in others)


def test_a_logger_that_raises_stops_nothing_and_is_counted():
    class Raising(EventLogger):
        def log(self, events):
            raise OSError("no room")

    log = EventLog(Raising(), "words")
    body = json.dumps({"events": [[0, "split", 3, "default", 5, ["a"]]], "dropped": 2}).encode()
    for _ in range(3):
        log.add([WireRow(0, 0, Kind.EVENTS, 0, 0, 0, b"", body)])
    assert len(log.recent(10)) == 3
    assert (log.dropped, log.left_out) == (3, 6)
    log.close()


def test_the_command_line_gives_the_order_and_shows_the_events(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with started(tmp_path / "cp") as running:
        assert main(["debug", "numbers", "on", "double", "25"]) == 0
        assert running.run.orders.order.debug == {"double": 0.25}
        assert main(["debug", "numbers", "on", "50"]) == 0
        assert running.run.orders.order.debug == {"": 0.5, "double": 0.25}
        assert main(["debug", "numbers", "off"]) == 0
        assert running.run.orders.order.debug == {}
        assert running.run.inbox.has_watch
        assert main(["debug", "numbers", "on", "nothing"]) == 1
    files = EventFiles(tmp_path / "cp" / "events")
    files.log([event(1), event(2)])
    files.close()
    capsys.readouterr()
    assert main(["events", str(tmp_path / "cp"), "--limit", "1"]) == 0
    assert "split,3,default,-4611686018427387906,('word 2', None, 1.5)" in capsys.readouterr().out
    assert main(["debug", str(tmp_path / "cp"), "on"]) == 3


def test_following_begins_with_the_last_events_goes_on_with_new_ones_and_ends_with_the_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files = EventFiles(tmp_path / "cp" / "events")
    given = Namespace(topology=str(tmp_path / "cp"), limit=3, follow=True, component=None, timeout=None)
    with started(tmp_path / "cp"):
        files.log([event(number) for number in range(30)])
        printed = (answer.text for answer in _events(given))
        assert [next(printed).split("word ")[1].split("'")[0] for _ in range(3)] == ["27", "28", "29"]
        files.log([event(30), event(31)])
        assert ["word 30" in next(printed), "word 31" in next(printed)] == [True, True]
        files.log([event(32)])
    assert ["word 32" in text for text in printed] == [True]
    assert capsys.readouterr().err == "no driver of topology 'numbers' answers any more\n"
    files.close()


def instead_of_sleeping(monkeypatch, *steps):
    """Let a command that follows do these, one after the other, where it would sleep until its next read."""
    left = iter(steps)
    replace(monkeypatch, events_command, "time", sleep=lambda _: next(left)())


def end_of(running):
    running.door.close(None)
    running.door.leave()


def test_what_is_logged_between_the_last_look_and_the_end_of_the_run_is_printed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files = EventFiles(tmp_path / "cp" / "events")
    given = Namespace(topology=str(tmp_path / "cp"), limit=3, follow=True, component=None, timeout=None)
    with started(tmp_path / "cp") as running, closing(files):
        files.log([event(1)])
        instead_of_sleeping(monkeypatch, lambda: (files.log([event(2)]), end_of(running)))
        assert [answer.data["values"][0] for answer in _events(given)] == ["word 1", "word 2"]
    assert capsys.readouterr().err == "no driver of topology 'numbers' answers any more\n"


def test_what_a_driver_logs_after_its_last_answer_is_printed(tmp_path, monkeypatch, capsys):
    """It answers no more, then logs what is queued, then releases the checkpoint."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files = EventFiles(tmp_path / "cp" / "events")
    given = Namespace(topology=str(tmp_path / "cp"), limit=3, follow=True, component=None, timeout=None)
    with started(tmp_path / "cp") as running, closing(files):
        files.log([event(1)])
        instead_of_sleeping(
            monkeypatch,
            lambda: running.door.close(None),
            lambda: (files.log([event(2)]), running.door.leave()),
        )
        assert [answer.data["values"][0] for answer in _events(given)] == ["word 1", "word 2"]
    assert capsys.readouterr().err == "no driver of topology 'numbers' answers any more\n"


def test_following_a_run_that_logged_nothing_ends_with_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    given = Namespace(topology=str(tmp_path / "cp"), limit=3, follow=True, component=None, timeout=None)
    with started(tmp_path / "cp") as running:
        instead_of_sleeping(monkeypatch, lambda: running.door.close(None), running.door.leave)
        assert [*_events(given)] == []
    assert capsys.readouterr().err.endswith("no driver of topology 'numbers' answers any more\n")


def test_an_answer_without_events_says_why(tmp_path, capsys, monkeypatch):
    for folder in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(folder, str(tmp_path))

    def why(*words):
        assert main(["events", "numbers", *words]) == 0
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err

    with started(tmp_path / "cp") as running:
        assert why() == "no tuple is logged: acktree debug numbers on\n"
        assert main(["events", "numbers", "duble"]) == 1
        refused = capsys.readouterr().err
        assert "the topology has no component 'duble'" in refused
        assert "fix:   did you mean 'double'?" in refused
        running.handle.debug(on=True, component="double")
        running.door._observer.forget()
        assert why("double") == why() == "no tuple is logged yet\n"
        assert why("source") == "no tuple is logged: acktree debug numbers on\n"
    assert why() == "no tuple was logged\n"
