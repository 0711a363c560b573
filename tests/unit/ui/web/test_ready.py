"""Whether the page is ready: not before it has looked at the topologies, and not while it stops."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

pytest.importorskip("starlette")

from acktree.ui.snapshot import Snapshot
from acktree.ui.web.serve import Options, serve
from acktree.ui.web.sources import Sources
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_at

pytestmark = pytest.mark.usefixtures("own_runtime")

READY, ALIVE = "/api/acktree/v1/readyz", "/api/acktree/v1/healthz"


@contextmanager
def paged():
    serving = serve(Options())
    try:
        yield page_at(next(serving))
    finally:
        serving.close()


@pytest.fixture
def slow_look(monkeypatch):
    """The first look begins, and goes on when it is let go."""
    begun, go_on, look = Event(), Event(), Sources._seen

    def slow(self):
        begun.set()
        assert go_on.wait(120)
        return look(self)

    monkeypatch.setattr(Sources, "_seen", slow)
    return begun, go_on


def told(page):
    status, _, said = page.ask(READY)
    return status, json.loads(said).get("errorMessage")


def test_a_page_is_ready_once_it_has_looked_also_where_nothing_runs():
    with paged() as page:
        assert told(page) == (200, None)
        assert page.json(READY) == {"ok": True}
        assert page.ask(READY, token=None)[0] == 401


def test_before_the_first_look_is_made_it_lives_and_is_not_ready(slow_look):
    begun, go_on = slow_look
    with paged() as page, ThreadPoolExecutor() as threads:
        first = threads.submit(told, page)
        assert begun.wait(120)
        assert told(page) == (503, "the topologies are being looked at for the first time")
        assert page.json(ALIVE) == {"ok": True}
        go_on.set()
        assert first.result(120) == (200, None)
        assert told(page) == (200, None)


def test_while_it_stops_it_is_not_ready(slow_look):
    begun, go_on = slow_look
    serving = serve(Options())
    page = page_at(next(serving))
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(told, page)
        assert begun.wait(120)
        threads.submit(lambda: go_on.wait(0.5) or go_on.set())
        serving.close()
        assert asked.result(120) == (503, "the page stops")


def test_where_topologies_cannot_be_looked_at_it_says_why_until_they_can(own_runtime):
    own_runtime.mkdir(mode=0o755)
    with paged() as page:
        status, _, said = page.ask(READY)
        assert status == 503
        assert json.loads(said)["errorMessage"] == "other users have rights in the folder for sockets"
        assert f"chmod 700 {own_runtime}" in json.loads(said)["fix"]
        own_runtime.chmod(0o700)
        assert told(page) == (200, None)


def test_a_driver_that_hangs_later_does_not_make_the_page_unready(tmp_path, monkeypatch):
    monkeypatch.setattr("acktree.ui.web.sources._FRESH_SECS", 0.0)
    with started(tmp_path / "cp"), paged() as page:
        assert told(page) == (200, None)

        def asked_again(*_):
            raise AssertionError("a driver was asked")

        monkeypatch.setattr(Snapshot, "from_json", asked_again)
        assert told(page) == (200, None)
