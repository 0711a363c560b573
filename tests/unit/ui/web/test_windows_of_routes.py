"""Every window and number is taken by every route that takes one."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from acktree.core.data.frames import Kind, WireRow
from acktree.ui.known_names import limit_of
from acktree.ui.snapshot import WINDOWS
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_of


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("route", ["", "/metrics", "/component/source", "/component/double"])
def test_storms_routes_know_every_window(page, topology_id, route, window):
    assert page.json(f"/api/v1/topology/{topology_id}{route}?window={window}&sys=true")


@pytest.mark.parametrize("name", ["since", "before"])
@pytest.mark.parametrize("number", [10**20, -(10**20)])
def test_numbers_of_any_size_are_times(page, topology_id, name, number):
    assert "points" in page.json(f"/api/acktree/v1/topologies/{topology_id}/history?{name}={number}")


MOST = {"history": 2000, "open": 1000, "dead-letters": 500, "audit": 500, "traces": 500, "events": 1000}


NO_LIMITS = ["0", "00", "-1", "1.5", "many", "\u0663", "0" * 5000]


@pytest.mark.parametrize("route", MOST)
@pytest.mark.parametrize("limit", NO_LIMITS)
def test_a_limit_that_is_no_whole_number_above_0_is_refused(page, topology_id, route, limit):
    status, _, answer = page.ask(f"/api/acktree/v1/topologies/{topology_id}/{route}?limit={quote(limit)}")
    assert (status, json.loads(answer)["where"]) == (400, "limit=")
    assert json.loads(answer)["fix"] == f"give a whole number above 0; {MOST[route]:,} are listed at most"


@pytest.mark.usefixtures("own_runtime")
def test_where_nobody_runs_it_too(tmp_path):
    with started(tmp_path / "cp"):
        pass
    with page_of(tmp_path / "cp") as page:
        for route in MOST.keys() - {"open"}:
            asked = f"/api/acktree/v1/topologies/numbers/{route}?limit="
            assert [page.ask(asked + quote(limit))[0] for limit in NO_LIMITS] == [400] * len(NO_LIMITS)
            assert page.json(asked)


@pytest.mark.parametrize("route", MOST)
@pytest.mark.parametrize("limit", ["1", "007", "2001", str(10**20), "9" * 5000, ""])
def test_a_limit_that_is_too_large_counts_as_the_largest(page, topology_id, route, limit):
    assert page.json(f"/api/acktree/v1/topologies/{topology_id}/{route}?limit={limit}")


@pytest.mark.parametrize("limit", [None, "", "1", "03", "499", "500", "501", "9" * 5000])
def test_a_limit_is_what_was_given_but_no_more_than_the_largest(limit):
    wanted = 50 if not limit else min(int(limit[-4:]), 500)
    assert limit_of({"limit": limit}, 50, 500) == wanted


def test_as_many_logged_tuples_are_listed_as_the_command_asks_for(page, topology_id, running):
    tuples = [[number, "double", 1, "default", 5, ["a"]] for number in range(1001)]
    body = json.dumps({"events": tuples, "dropped": 0}).encode()
    running.run.events.add([WireRow(0, 0, Kind.EVENTS, 0, 0, 0, b"", body)])
    events = page.json(f"/api/acktree/v1/topologies/{topology_id}/events?limit=1000")["events"]
    assert [event["time_ms"] for event in events] == [*range(1, 1001)]
