"""The page in the user's own process."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette")

import acktree
from acktree import ConfigError, ConnectorError
from tests.unit.forked import child, descriptors_of
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_at


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory, monkeypatch):
    """A runtime folder of the test's own."""
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))


def test_a_program_shows_its_own_topology_and_takes_orders_behind_the_same_guard(tmp_path):
    with started(tmp_path / "cp") as topology, acktree.serve_page() as page:
        topology.fill()
        asked = page_at(page)
        (about,) = asked.json("/api/acktree/v1/topologies")["topologies"]
        assert (about["name"], about["status"]) == ("numbers", "ACTIVE")
        assert asked.ask(f"/api/v1/topology/{about['id']}/deactivate", "POST", b"")[0] == 200
        assert not any(thread.is_wanted for thread in topology.run.threads.by_task.values())
        assert page.url.startswith("http://127.0.0.1:")
        for token in (None, "Bearer wrong"):
            assert asked.ask("/api/acktree/v1/topologies", token=token)[0] == 401
        assert asked.ask("/api/acktree/v1/topologies", Host="evil.example")[0] == 403
        assert page.address == f"{page.url}/?token={page.token}"
        assert page.token not in f"{page!r}{page}"
    with pytest.raises(ConnectionRefusedError):
        asked.ask("/")
    page.close()


def test_it_is_read_only_and_shows_a_stopped_checkpoint_if_asked(tmp_path):
    with started(tmp_path / "cp"):
        pass
    with acktree.serve_page(read_only=True, checkpoints=[str(tmp_path / "cp")]) as page:
        asked = page_at(page)
        assert asked.json("/api/acktree/v1/page")["read_only"]
        (about,) = asked.json("/api/acktree/v1/topologies")["topologies"]
        assert asked.ask(f"/api/v1/topology/{about['id']}/kill/0", "POST", b"")[0] == 403


def test_it_stays_although_nobody_keeps_it():
    page = acktree.serve_page()
    asked = page_at(page)
    del page
    gc.collect()
    assert asked.json("/api/acktree/v1/healthz") == {"ok": True}
    for kept in list(sys.modules["acktree.ui.page"]._open):
        kept.close()


def test_a_token_file_is_used_and_a_port_that_is_taken_is_said(tmp_path):
    file = tmp_path / "token"
    with acktree.serve_page(token_file=str(file)) as page:
        assert file.read_text().strip() == page.token
        assert file.stat().st_mode & 0o777 == 0o600
        port = int(page.url.rpartition(":")[2])
        with pytest.raises(ConnectorError, match="cannot listen"):
            acktree.serve_page(port=port)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "0.0.0.0"}, "reached from other machines"),
        ({"host": "0.0.0.0", "token_file": "token"}, "reached from other machines"),
        ({"checkpoints": "checkpoints/orders"}, "list"),
        ({"port": 99999}, "is no port"),
        ({"port": "x"}, "is no port"),
    ],
)
def test_what_is_not_safe_and_what_is_meant_otherwise_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        acktree.serve_page(**given)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "acktree.ui.web.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"acktree\[ui\]"):
        acktree.serve_page()


def test_a_page_is_asked_while_an_event_loop_runs_in_the_program():

    async def notebook():
        with acktree.serve_page() as page:
            return page_at(page).json("/api/acktree/v1/healthz")

    assert asyncio.run(notebook()) == {"ok": True}


def test_a_process_that_user_code_forks_does_not_keep_its_port():
    with acktree.serve_page() as page:
        port = int(page.url.rpartition(":")[2])
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (listening,) = {f"socket:[{each[9]}]" for each in lines if each[1].endswith(f":{port:04X}")}
        assert listening in descriptors_of(os.getpid())
        with child() as pid:
            deadline = time.monotonic() + 5
            while listening in descriptors_of(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert listening not in descriptors_of(pid)


def test_a_page_is_closed_by_several_threads_at_once():
    page = acktree.serve_page()
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: page.close(), range(4))] == [None] * 4
