"""Every window and number is taken by every route that takes one."""

from __future__ import annotations

import pytest

from acktree.ui.snapshot import WINDOWS


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("route", ["", "/metrics", "/component/source", "/component/double"])
def test_storms_routes_know_every_window(page, topology_id, route, window):
    assert page.json(f"/api/v1/topology/{topology_id}{route}?window={window}&sys=true")


@pytest.mark.parametrize("name", ["since", "before", "limit"])
@pytest.mark.parametrize("number", [10**20, -(10**20)])
def test_numbers_of_any_size_are_times(page, topology_id, name, number):
    assert "points" in page.json(f"/api/acktree/v1/topologies/{topology_id}/history?{name}={number}")
