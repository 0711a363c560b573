"""Orders over dead letters of a topology that nobody runs: REST does what the command line does."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import pytest

pytest.importorskip("starlette")

from acktree.checkpoint.folder import Checkpoint
from acktree.dead_letters.store import DeadLetters
from acktree.ui.web.serve import Options, serve
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.web.asking import page_at

NUMBERS = count(1)


@pytest.fixture
def stopped(tmp_path):
    """The checkpoint of a stopped topology with four letters, a page that shows it, and its path there."""
    name = f"stopped{next(NUMBERS)}"
    with started(tmp_path / "cp", name) as topology:
        letter = replace(LETTER, topology=name, spout="source")
        topology.letters.put([replace(letter, root=root) for root in range(1, 5)])
    serving = serve(Options())
    yield tmp_path / "cp", page_at(next(serving)), f"/api/acktree/v1/topologies/{name}"
    serving.close()


def told(page, path, order, given):
    status, _, said = page.ask(f"{path}/dead-letters/{order}", "POST", json.dumps(given))
    return status, json.loads(said)


def test_letters_are_ordered_for_the_next_run(stopped):
    folder, page, path = stopped
    assert page.json(f"{path}/dead-letters")["ordered"] == 0
    assert told(page, path, "redrive", {"ids": [2]}) == (200, {"done": True, "redriven": 0, "ordered": 1})
    assert told(page, path, "redrive", {"all": True, "expected_count": 3})[0] == 409
    assert told(page, path, "redrive", {"spout": "source", "expected_count": 4})[1]["ordered"] == 4
    assert told(page, path, "redrive", {"ids": [99]})[0] == 400
    assert told(page, path, "redrive", {"spot": "source", "expected_count": 4})[0] == 400
    assert page.json(f"{path}/dead-letters")["ordered"] == 4
    held = Checkpoint(folder)
    assert sorted(held.letters_to_redrive) == [1, 2, 3, 4]
    held.close()


def test_letters_are_deleted_with_the_count_that_was_seen(stopped):
    folder, page, path = stopped
    assert told(page, path, "purge", {"all": True, "expected_count": 3})[0] == 409
    assert told(page, path, "purge", {"ids": [1]}) == (200, {"done": True, "purged": 1})
    assert told(page, path, "purge", {"all": True, "expected_count": 3})[1]["purged"] == 3
    with DeadLetters(folder / "dead_letters.sqlite", create=True) as store:
        assert len(store) == 0


def test_a_checkpoint_that_a_driver_has_taken_is_refused_and_so_are_orders_to_a_driver(stopped):
    folder, page, path = stopped
    held = Checkpoint(folder)
    try:
        assert told(page, path, "redrive", {"ids": [2]})[0] in (400, 409)
    finally:
        held.close()
    assert page.ask(f"{path}/activate", "POST", b"{}")[0] == 409
