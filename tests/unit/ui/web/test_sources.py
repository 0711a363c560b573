"""Which topologies the page shows, and which one is meant."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from acktree import TopologyBuilder

pytest.importorskip("starlette")

from acktree.driver.run import Run
from acktree.errors import MisuseError
from acktree.ui.client import DoorClient, Found
from acktree.ui.web import serve
from acktree.ui.web.sources import Sources, UnknownTopologyError
from tests.unit.ui.driver_without_spark import Double, Numbers, first_kept, started
from tests.unit.ui.web.asking import page_at


def test_a_checkpoint_that_is_not_there_hides_no_other_and_is_said_once(running, tmp_path, caplog):
    sources = Sources([str(tmp_path / "gone")])
    for _ in range(2):
        assert [seen.snapshot.topology for seen in sources.all()] == ["numbers"]
        sources.forget()
    assert caplog.text.count("there is no topology and no checkpoint") == 1


def test_a_stopped_topology_is_read_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    many, read = 40, []  # as many as a machine of a developer knows
    for number in range(many):
        with started(tmp_path / f"cp{number}", f"t{number:02}"):
            pass
    last_snapshot = Found.last_snapshot
    monkeypatch.setattr(Found, "last_snapshot", lambda found: read.append(found) or last_snapshot(found))
    sources = Sources()
    before = sources.all()
    assert (len(before), len(read)) == (many, many)
    sources.forget()
    assert list(map(id, sources.all())) == list(map(id, before))
    assert len(read) == many
    with started(tmp_path / "cp7", "t07"):
        pass
    sources.forget()
    changed = [now.snapshot.topology for now in sources.all() if now not in before]
    assert changed == ["t07"]


def test_a_topology_that_is_named_like_a_path_of_another_has_its_own_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    serving = serve.serve(serve.Options())
    builder = TopologyBuilder("one/open")
    builder.set_spout("source", Numbers())
    builder.set_bolt("double", Double()).shuffle_grouping("source")
    with started(tmp_path / "a", "one"), started(tmp_path / "b", given=builder.create_topology()):
        try:
            page = page_at(next(serving))
            mine = "/api/acktree/v1/topologies"
            assert "open" in page.json(f"{mine}/one/open")
            assert "open" not in page.json(f"{mine}/one%2Fopen")
            assert page.json(f"{mine}/one%2Fopen")["name"] == "one/open"
        finally:
            serving.close()


def test_five_tabs_ask_the_driver_once(running, monkeypatch):
    asked, oldest_open = [], Run.oldest_open
    monkeypatch.setattr(Run, "oldest_open", lambda run, most: asked.append(most) or oldest_open(run, most))
    monkeypatch.setattr("acktree.ui.web.sources._FRESH_SECS", 600.0)
    serving = serve.serve(serve.Options())
    try:
        page = page_at(next(serving))
        tabs = [page.stream("numbers") for _ in range(5)]
        assert len({json.dumps([next(tab) for _ in range(4)]) for tab in tabs}) == 1
        assert asked == [8]
    finally:
        serving.close()


def test_a_name_that_several_have_names_none_of_them(running, tmp_path):
    with started(tmp_path / "other"):
        sources = Sources()
        assert len(sources.all()) == 2
        with pytest.raises(MisuseError, match="2 topologies are called 'numbers'"):
            sources.one("numbers")
    with pytest.raises(UnknownTopologyError):
        Sources().one("nobody")


def test_a_name_that_one_running_topology_has_means_that_one(running, tmp_path):
    with started(tmp_path / "other"):
        pass
    sources = Sources()
    assert any(not seen.is_running for seen in sources.all())
    assert sources.one("numbers").is_running


def test_a_driver_that_does_not_answer_is_not_said_to_have_died(running, tmp_path, monkeypatch):
    monkeypatch.setattr("acktree.ui.web.sources._DOOR_SECS", 0.05)
    with started(tmp_path / "other", "silent") as other:
        other.door._observer.latest()
        first_kept(tmp_path / "other")
        monkeypatch.setattr(other.door._observer, "latest", lambda *_: time.sleep(1))
        assert Sources().one("silent").status == "UNKNOWN"
    assert Sources().one("silent").status == "STOPPED"


def test_a_driver_that_stops_while_it_is_asked_runs_no_more_for_an_order_either(tmp_path, monkeypatch):
    with started(tmp_path / "cp", "stopping"):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(DoorClient, "is_answering", lambda _: True)  # as a moment before it stopped
        seen = Sources().one("stopping")
    assert [seen.is_running, seen.found.is_running, seen.status] == [False, False, "STOPPED"]


def test_a_rebalance_of_what_nobody_runs_names_the_command(tmp_path):
    serve = pytest.importorskip("acktree.ui.web.serve")
    place = tmp_path / "cp"
    with started(place, "stopped"):
        pass
    serving = serve.serve(serve.Options())
    page = page_at(next(serving))
    status, _, said = page.ask("/api/v1/topology/stopped/rebalance/0", "POST", b"")
    serving.close()
    told = json.loads(said)
    assert status == 409
    assert told["errorMessage"].startswith("nobody runs the topology")
    assert told["fix"].startswith(f"acktree rebalance {place}")


def test_while_the_drivers_are_asked_others_have_the_last_answers(running, monkeypatch):
    sources = Sources()
    last = sources.all()
    assert sources.all() is last
    monkeypatch.setattr("acktree.ui.web.sources._FRESH_SECS", 0.0)
    is_asked, may_answer = Event(), Event()

    def found():
        is_asked.set()
        assert may_answer.wait(120)
        return []

    monkeypatch.setattr(sources, "_found", found)
    with ThreadPoolExecutor(2) as threads:
        asking = threads.submit(sources.all)
        assert is_asked.wait(120)
        assert sources.all() is last
        monkeypatch.setattr("acktree.ui.web.sources._USABLE_SECS", 0.0)
        waiting = threads.submit(sources.all)
        may_answer.set()
        assert asking.result() == waiting.result() == ()


def test_after_an_order_nobody_has_the_last_answers(running):
    sources = Sources()
    last = sources.all()
    sources.forget()
    assert sources.all() is not last
