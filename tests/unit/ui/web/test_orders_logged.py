"""Orders of the page are logged, by ``acktree ui`` too, of topologies that run and of stopped ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("starlette")

from acktree.ui.web.serve import Options, serve
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import Page, page_at

pytestmark = pytest.mark.usefixtures("own_runtime")


@pytest.fixture
def stopped(tmp_path):
    """The checkpoint of a stopped topology with four letters."""
    with started(tmp_path / "cp", "stopped") as topology:
        letter = replace(LETTER, topology="stopped", spout="source", reason="S3cr3t")
        topology.letters.put([replace(letter, root=root) for root in range(1, 5)])
    return tmp_path / "cp"


def purge(page, **given):
    path = "/api/acktree/v1/topologies/stopped/dead-letters/purge"
    return page.ask(path, "POST", json.dumps(given))[0]


def test_what_the_page_does_to_a_stopped_topology_is_logged_once_with_its_outcome(stopped, caplog):
    caplog.set_level("INFO", "acktree")
    serving = serve(Options())
    page = page_at(next(serving))
    assert purge(page, ids=[1]) == 200
    assert purge(page, all=True, expected_count=9) == 409
    serving.close()
    head = f"topology=stopped order=dead-letters/purge by=page checkpoint={stopped} given="
    counted = "(all=True, expected_count=9) outcome=refused: 3 dead letters match now, and not 9"
    assert [each.getMessage() for each in caplog.records if " order=" in each.getMessage()] == [
        f"{head}(ids=[1]) outcome=done purged=1",
        f"{head}{counted}",
    ]


def test_a_driver_logs_that_an_order_came_by_the_page(tmp_path, caplog):
    caplog.set_level("INFO", "acktree")
    with started(tmp_path / "cp", "runs"):
        serving = serve(Options())
        page = page_at(next(serving))
        assert page.ask("/api/v1/topology/runs/deactivate", "POST", b"")[0] == 200
        serving.close()
    driver, of_page = [each.getMessage() for each in caplog.records if " order=" in each.getMessage()]
    assert driver == of_page
    assert driver == (
        f"topology=runs order=deactivate by=page checkpoint={tmp_path / 'cp'} given=() outcome=done"
    )


def test_acktree_ui_prints_the_line(stopped):
    command = [sys.executable, "-m", "acktree", "ui", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as ui:
        try:
            about = json.loads(ui.stdout.readline())
            status = purge(Page(about["url"], about["token"]), ids=[2])
        finally:
            ui.send_signal(signal.SIGTERM)
        said = ui.stderr.read()
    assert status == 200
    (line,) = said.splitlines()
    assert "INFO acktree topology=stopped order=dead-letters/purge by=page " in line
    assert line.endswith(f"checkpoint={stopped} given=(ids=[2]) outcome=done purged=1")
