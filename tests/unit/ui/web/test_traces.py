"""Traces by REST: pages of messages, a tree in slices, and the order to trace more."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from acktree.traces.trace import Trace
from acktree.ui.tracing import opened_at_first
from tests.unit.traces.facts import record
from tests.unit.traces.test_trace import MESSAGE, SIBLING

MINE = "/api/acktree/v1/topologies"


@pytest.fixture(scope="module")
def root(running):
    root = str(record(running.run.traces))
    running.door._observer.forget()
    return root


def test_a_failed_message_is_found_with_its_tree(page, topology_id, root):
    found = page.json(f"{MINE}/{topology_id}/traces?verdict=FAILED&component=double&reason=no%20word")
    assert [message["root"] for message in found["messages"]] == [root]
    whole = page.json(f"{MINE}/{topology_id}/traces/{root}")
    assert whole["message"]["verdict"] == "FAILED"
    assert [line["alike"] for line in whole["tree"]["lines"]] == [1, 3]
    edge = whole["tree"]["edge"]
    assert page.json(f"{MINE}/{topology_id}/traces/{root}?edge={edge}")["tree"] == whole["tree"]
    for edge, below in whole["slices"].items():
        assert page.json(f"{MINE}/{topology_id}/traces/{root}?edge={edge}")["tree"] == below


@pytest.mark.parametrize(
    ("fate", "opened"),
    [
        ("acked", 5),  # the first few
        ("held", 25),  # those that lead to what was not acked
    ],
)
def test_the_first_few_slices_are_opened_and_those_with_something_not_acked(fate, opened):
    """The message has 30 tuples below it, with one below each."""
    above = [replace(SIBLING, edge=2 + n) for n in range(30)]
    below = [replace(SIBLING, edge=100 + n, parents=[2 + n], fate=fate) for n in range(30)]
    assert opened_at_first(Trace(MESSAGE, above + below)) == [each.edge for each in above[:opened]]


def test_pages_of_messages_follow_by_key(page, topology_id, root):
    seen, after = [], ""
    while after is not None:
        part = page.json(f"{MINE}/{topology_id}/traces?limit=3&after={after}")
        seen += [message["root"] for message in part["messages"]]
        after = part["after"]
    assert len(seen) == len(set(seen)) == 10
    assert root in seen


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/1", 404),
        ("/x", 404),
        ("?root=x", 400),
        ("?verdict=LOST", 400),
        ("?after=1", 400),
        ("?since=" + "9" * 30, 400),
    ],
)
def test_what_there_is_not_and_what_cannot_be_asked_is_refused(page, topology_id, path, status):
    assert page.ask(f"{MINE}/{topology_id}/traces{path}")[0] == status


def test_the_rate_is_an_order(page, topology_id, running):
    def order(body):
        return page.ask(f"{MINE}/{topology_id}/trace", "POST", body, X_Acktree="1")[0]

    assert order('{"rate": 0.5}') == 200
    assert running.handle.traces.rate == 0.5
    assert order('{"rate": 7}') == 400
    assert order('{"rate": "x"}') == 400


def test_messages_to_be_traced_are_an_order(page, topology_id, running, caplog):
    def order(body):
        status, _, answer = page.ask(f"{MINE}/{topology_id}/trace", "POST", body, X_Acktree="1")
        return status, json.loads(answer)

    with caplog.at_level("INFO", "acktree"):
        status, done = order('{"message_ids": ["line-7", 8], "secs": 60}')
    assert status == 200
    assert done["watched"].keys() == running.handle.traces.watched.keys() == {"line-7", "8"}
    assert "order=trace" in caplog.text
    assert "line-7" in caplog.text
    for body, why in (
        ("{}", "neither a rate nor message ids"),
        ('{"secs": 5}', "neither a rate nor message ids"),
        ('{"rate": 0.5, "message_ids": ["a"]}', "a rate and message ids"),
        ('{"rate": 0.5, "secs": 5}', "until the run ends"),
        ('{"message_ids": "a"}', "no list of message ids"),
        ('{"message_ids": ["a", null]}', "no list of message ids"),
        ('{"message_ids": [true]}', "no list of message ids"),
        ('{"message_ids": [["a"]]}', "no list of message ids"),
        ('{"message_ids": []}', "no message id"),
        ('{"message_ids": ["a"], "secs": -1}', "no time to watch"),
        ('{"message_ids": ["a"], "secs": NaN}', "no time to watch"),
        ('{"message_ids": ["a"], "sec": 1}', "there is no 'sec'"),
        (json.dumps({"message_ids": [*range(101)]}), "can be at a time"),
    ):
        status, said = order(body)
        assert (status, why in str(said)) == (400, True), (body, said)
    assert running.handle.traces.watched.keys() == {"line-7", "8"}


def test_what_became_of_traces_is_in_the_metrics_of_prometheus(page, root, running):
    assert running.handle.stats().traces.messages == 10
    lines = page.ask("/metrics")[2].decode().splitlines()
    assert 'acktree_trace_messages_total{topology="numbers"} 10.0' in lines
    for why in ("queue_full", "store_failed", "bounds", "not_exported"):
        assert f'acktree_trace_dropped_total{{topology="numbers",why="{why}"}} 0.0' in lines
    for why in ("queue_full", "bounds"):
        assert f'acktree_event_log_dropped_total{{topology="numbers",why="{why}"}} 0.0' in lines
