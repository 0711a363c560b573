from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.runtime_folders import used
from tests.unit.ui.web.asking import page_at
from tests.unit.ui.web.frozen import Frozen, counted

NASTY = "<img src=x onerror=alert(1)>\x1b[31m\u202e\x00\ud800"


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory):
    """A runtime folder of the module's own."""
    with pytest.MonkeyPatch.context() as patched:
        yield used(tmp_path_factory.mktemp("r"), patched)


@pytest.fixture
def own_runtime(tmp_path_factory, monkeypatch):
    """A runtime folder of the test's own."""
    return used(tmp_path_factory.mktemp("r"), monkeypatch)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A running topology with four dead letters."""
    with started(tmp_path_factory.mktemp("cp")) as topology:
        nasty = replace(LETTER, topology="numbers", spout="source", reason=NASTY, message_id_repr=NASTY)
        topology.letters.put([replace(nasty, root=root) for root in range(1, 5)])
        topology.fill()
        yield topology


@pytest.fixture(scope="module")
def page(running):
    """A page over the running topology."""
    serve = pytest.importorskip("acktree.ui.web.serve")
    serving = serve.serve(serve.Options())
    yield page_at(next(serving))
    serving.close()


@pytest.fixture(scope="module")
def topology_id(page):
    (about,) = page.json("/api/v1/topology/summary")["topologies"]
    return about["id"]


@pytest.fixture(scope="module")
def frozen_running(tmp_path_factory):
    """A running topology with numbers of every kind."""
    with counted(tmp_path_factory.mktemp("frozen")) as topology:
        yield topology


@pytest.fixture(scope="module")
def frozen(frozen_running):
    """One snapshot of it, which every question is answered with."""
    return Frozen(frozen_running.door._observer)


@pytest.fixture
def frozen_page(frozen):
    """A page that has seen no other."""
    serve = pytest.importorskip("acktree.ui.web.serve")
    serving = serve.serve(serve.Options())
    yield page_at(next(serving))
    serving.close()
