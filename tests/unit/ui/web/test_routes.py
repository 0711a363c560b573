"""The routes: Storm's, ours, and metrics, all of one snapshot. Storm's fields: test_storm_fields.py."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace

import pytest

pytest.importorskip("starlette")

from acktree.cli.main import main
from acktree.core.data.instruments import Increment
from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import Stats
from acktree.topology.layout import layout
from acktree.ui.client import DoorError, find
from acktree.ui.snapshot import Snapshot, Window
from acktree.ui.web import ours
from acktree.ui.web.sources import Seen


@pytest.fixture(scope="module")
def counted(running, page):
    """Numbers for every kind of count, as a micro-batch brings them."""
    counters = Counters()
    for task in (1, 2):
        counters.add("double", task, "source:default", "executed", 7)
        counters.add("double", task, "source:default", "acked", 6)
        counters.add("double", task, "source:default", "failed", 1)
        counters.add("double", task, "default", "emitted", 6)
        counters.add_latency("double", task, "source:default", "execute_ms", 10.5, 7)
    counters.add("source", 3, "default", "emitted", 14)
    counters.add("source", 3, "default", "acked", 12)
    counters.add("source", 3, "default", "timed_out", 1)
    counters.add("source", 3, "default", "failed", 1)
    counters.add_latency("source", 3, "default", "complete_ms", 24.0, 12)
    running.count(counters)
    (about,) = page.json("/api/v1/topology/summary")["topologies"]
    page.ask(f"/api/v1/topology/{about['id']}/activate", "POST", b"")  # what is asked next is new
    return running


def test_stats_the_socket_rest_and_metrics_agree(page, topology_id, counted):
    stats = counted.handle.stats()
    told = page.json(f"/api/v1/topology/{topology_id}")
    bolt, spout = told["bolts"][0], told["spouts"][0]
    assert (bolt["executed"], bolt["acked"], bolt["failed"]) == (14, 12, 2)
    assert bolt["executeLatency"] == f"{stats['double'].total.execute_ms:.3f}" == "1.500"
    assert (spout["acked"], spout["failed"], spout["timedOut"], spout["open"]) == (12, 2, 1, 10)
    assert told["topologyStats"][-1]["completeLatency"] == "2.000"
    assert find("numbers").door.snapshot().stats["double"] == stats["double"]
    ours = page.json(f"/api/acktree/v1/topologies/{topology_id}/components/double")
    assert ours["tasks"]["1"]["executed"] == 7
    exposed = page.ask("/metrics")[2].decode()
    labels = 'component="double",source="source",stream="default",topology="numbers"'
    assert f"acktree_tuples_executed_total{{{labels}}} 14.0\n" in exposed
    assert (
        'acktree_messages_timed_out_total{spout="source",stream="default",topology="numbers"} 1.0\n'
        in exposed
    )
    assert 'acktree_dead_letters{state="waiting",topology="numbers"} 4.0\n' in exposed


def test_metrics_come_as_the_scraper_asks(page):
    assert page.ask("/metrics", Accept="text/plain")[1]["Content-Type"].startswith("text/plain")
    _, headers, said = page.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert said.endswith(b"# EOF\n")


def test_what_is_not_there_is_404_and_what_is_not_allowed_says_so(page, topology_id):
    for path in (
        "/api/v1/topology/none",
        f"/api/v1/topology/{topology_id}/component/none",
        "/api/v1/nothing",
        f"/api/acktree/v1/topologies/{topology_id}/dead-letters/999",
    ):
        status, _, said = page.ask(path)
        assert status == 404
        assert set(json.loads(said)) >= {"error", "errorMessage"}
    assert page.ask(f"/api/v1/topology/{topology_id}?window=7")[0] == 400
    assert page.ask(f"/api/v1/topology/{topology_id}/rebalance/0", "POST", b"")[0] == 409
    debug = f"/api/v1/topology/{topology_id}/debug"
    assert page.json(f"{debug}/enable/10", method="POST", body=b"")["status"] == "success"
    assert page.json(f"{debug}/disable/0", method="POST", body=b"")["status"] == "success"
    assert page.ask(f"{debug}/enable/200", "POST", b"")[0] == 400
    assert page.ask(f"/api/v1/topology/{topology_id}/kill/soon", "POST", b"")[0] == 400


def test_an_order_with_a_field_that_it_does_not_take_is_refused_and_logged(page, topology_id, caplog):
    caplog.set_level("INFO", "acktree")
    path = f"/api/acktree/v1/topologies/{topology_id}/activate"
    assert page.ask(path, "POST", b'{"x": "S3cr3t"}')[0] == 400
    logged = [each.getMessage() for each in caplog.records if "order=activate" in each.getMessage()]
    assert ["by=page" in line and "(1 unknown name) outcome=refused: " in line for line in logged] == [True]
    assert "S3cr3t" not in logged[0]


def test_a_metric_of_the_users_own_has_one_value_at_every_door(page, running, topology_id, capsys):
    running.measure(
        "double", 1, {"lines": Increment("counter", count=41), "took": Increment("timer", 1, 1500)}
    )
    page.ask(f"/api/v1/topology/{topology_id}/activate", "POST", b"")  # what is asked next is new
    snapshot = find("numbers").door.snapshot(0)
    metrics = running.handle.stats()["double"].metrics
    assert snapshot.stats["double"].metrics == metrics
    assert metrics["lines"].count == 41
    shown = page.json(f"/api/acktree/v1/topologies/{topology_id}/components/double")["metrics"]
    assert (shown["lines"]["kind"], shown["lines"]["count"], shown["took"]["count"]) == ("counter", 41, 1)
    sample = 'acktree_user_lines_total{component="double",task="1",topology="numbers"} 41.0'
    assert sample in page.ask("/metrics")[2].decode()
    assert main(["stats", "numbers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["components"]["double"]["metrics"]
    assert told["lines"]["count"] == 41
    assert main(["stats", "numbers"]) == 0
    assert "double lines  counter     41" in capsys.readouterr().out


def test_storms_log_levels_are_set_shown_and_taken_back(page, topology_id):
    path, name = f"/api/v1/topology/{topology_id}/logconfig", "acktree.tests.levels"

    def told(given):
        status, _, said = page.ask(path, "POST", json.dumps({"namedLoggerLevels": given}).encode())
        return status, json.loads(said)

    status, shown = told({name: {"target_level": "WARN", "timeout": 60}})
    assert status == 200
    assert shown == page.json(path)
    level = shown["namedLoggerLevels"][name]
    assert (level["target_level"], level["reset_level"], level["timeout"]) == ("WARN", "NOTSET", 60)
    assert level["timeout_epoch"] > 1_700_000_000_000
    assert logging.getLogger(name).level == logging.WARNING
    assert told({"acktree.none": {"target_level": None}}) == (200, shown)  # as in Storm
    assert told({name: {"target_level": None}}) == (200, {"namedLoggerLevels": {}})
    assert logging.getLogger(name).level == logging.NOTSET
    assert told({name: {"target_level": "LOUD"}})[0] == 400
    assert told([])[0] == told({name: "DEBUG"})[0] == 400


def test_storms_orders_are_carried_out(page, running, topology_id):
    done = json.loads(page.ask(f"/api/v1/topology/{topology_id}/deactivate", "POST", b"")[2])
    assert done == {"topologyOperation": "deactivate", "topologyId": topology_id, "status": "success"}
    assert page.json(f"/api/v1/topology/{topology_id}")["status"] == "INACTIVE"
    assert page.ask(f"/api/v1/topology/{topology_id}/activate", "POST", b"")[0] == 200
    assert page.json("/api/acktree/v1/topologies")["topologies"][0]["status"] == "ACTIVE"


def test_a_redrive_names_the_count_that_was_seen(page, running, topology_id):
    path = f"/api/acktree/v1/topologies/{topology_id}/dead-letters"
    assert page.json(path)["count"] == 4
    assert page.json(f"{path}/1")["traceback"]
    order = json.dumps({"all": True, "expected_count": 3})
    assert page.ask(f"{path}/redrive", "POST", order)[0] == 409
    assert running.sent == []
    assert json.loads(page.ask(f"{path}/redrive", "POST", json.dumps({"ids": [2]}))[2])["redriven"] == 1
    assert [letter.id for letter in running.sent] == [2]


OURS = "/api/acktree/v1/topologies/{id}"
STORMS = "/api/v1/topology/{id}"


@pytest.mark.parametrize("order", ["redrive", "purge"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"componet": "store", "expected_count": 4}, "did you mean 'component'?"),
        ({"component": "parse", "setled": True, "expected_count": 4}, "did you mean 'settled'?"),
        ({"expected_count": 4}, '"all": true'),
        ({"topology": "numbers", "expected_count": 4}, '"all": true'),
        ({"component": "", "expected_count": 4}, '"all": true'),
        ({"component": None, "all": False, "expected_count": 4}, '"all": true'),
        ({"all": "yes", "expected_count": 4}, "true or false"),
        ({"all": True}, "expected_count"),
        ({"all": True, "component": "parse", "expected_count": 4}, "ids, or filters, or all"),
        ({"ids": [1], "component": "store"}, "ids, or filters, or all"),
    ],
)
def test_an_order_over_letters_that_could_mean_more_than_it_names_is_refused(
    page, running, topology_id, order, body, said
):
    path = f"{OURS}/dead-letters/{order}".format(id=topology_id)
    running.sent.clear()
    status, _, answer = page.ask(path, "POST", json.dumps(body))
    assert (status, json.loads(answer)["fix"].count(said)) == (400, 1)
    door = find("numbers").door
    with pytest.raises(DoorError) as refused:  # whoever asks the driver itself
        door.order(f"dead-letters/{order}", body)
    assert refused.value.status == 400
    assert len(running.letters) == 4
    assert running.sent == []


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (f"{OURS}/dead-letters?componet=store", None, "did you mean 'component'?"),
        (f"{OURS}/dead-letters?component=a&component=b", None, "give it once"),
        (f"{OURS}/dead-letters/1?values=true", None, "leave it out"),
        (f"{OURS}/dead-letters/purge?component=store", {"all": True, "expected_count": 4}, "leave it out"),
        (f"{OURS}?window=600", None, "leave it out"),
        (f"{OURS}/components/double?windw=600", None, "did you mean 'window'?"),
        (f"{OURS}/open?limt=1", None, "did you mean 'limit'?"),
        (f"{OURS}/events?limt=1", None, "did you mean 'limit'?"),
        (f"{OURS}/traces?verdit=acked", None, "did you mean 'verdict'?"),
        (f"{OURS}/traces/1?egde=1", None, "did you mean 'edge'?"),
        (f"{OURS}/trace", {"rat": 0.1}, "did you mean 'rate'?"),
        (f"{OURS}/debug", {"on": True, "componet": "double"}, "did you mean 'component'?"),
        (f"{OURS}/debug", {"on": "false"}, "true or false"),
        (f"{OURS}/kill", {"wait_sec": 60}, "did you mean 'wait_secs'?"),
        (f"{OURS}/activate", {"component": "double"}, "leave it out"),
        ("/api/acktree/v1/snapshot?topolgy=numbers", None, "topology"),
        (f"{STORMS}/kill/30?wait=5", {}, "there are"),
        (f"{STORMS}/deactivate", {"wait_secs": 5}, "leave it out"),
        (f"{STORMS}/debug/enable/10", {"component": "double"}, "leave it out"),
        (f"{STORMS}/logconfig", {"namedLoggerLevels": {"a": {"targetLevel": "INFO"}}}, "did you mean"),
        (f"{STORMS}/logconfig", {"namedLoggerLevels": {}, "ROOT": {}}, "namedLoggerLevels"),
    ],
)
def test_a_name_that_a_route_does_not_take_is_refused(page, topology_id, running, path, body, said):
    method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
    status, _, answer = page.ask(path.format(id=topology_id), method, sent)
    assert status == 400, answer
    assert said in json.loads(answer)["fix"]
    assert not running.run.kill.is_given


def test_what_storms_clients_add_is_not_refused(page, topology_id):
    assert page.json(f"{STORMS}?sys=false&windw=600".format(id=topology_id))["id"] == topology_id
    order = f"{STORMS}/activate?doAsUser=me".format(id=topology_id)
    assert page.json(order, method="POST", body=b"")["status"] == "success"


def test_all_letters_are_ordered_by_name(page, running, topology_id):
    running.sent.clear()
    order = json.dumps({"all": True, "expected_count": 4})
    done = page.json(f"{OURS}/dead-letters/redrive".format(id=topology_id), method="POST", body=order)
    assert done["redriven"] == 4
    assert [letter.id for letter in running.sent] == [1, 2, 3, 4]


def test_the_stream_sends_the_newest_numbers(page, topology_id):
    stream = page.stream()
    for _ in range(2):
        event, told = next(stream)
        assert event == "snapshot"
        assert told["topologies"][0]["id"] == topology_id
        assert told["topologies"][0]["account"]["open"] == 10


def test_a_stream_that_names_a_topology_has_all_that_its_view_draws(page, topology_id):
    stream = page.stream(topology_id)
    told = dict(itertools.islice(stream, 2))
    assert list(told) == ["topology", "snapshot"]  # the overview comes last: it says that all is there
    asked = page.json(OURS.format(id=topology_id))
    assert told["topology"].keys() == {*asked, "oldest"}
    lasting = ("id", "graph", "places", "config", "errors", "account", "pid")
    assert [told["topology"][key] for key in lasting] == [asked[key] for key in lasting]
    oldest = page.json(f"{OURS}/open?limit=8".format(id=topology_id))["open"]
    assert [each["root"] for each in told["topology"]["oldest"]] == [each["root"] for each in oldest]


def test_a_stream_that_names_no_topology_here_has_the_overview(page):
    assert next(page.stream("nobody's"))[0] == "snapshot"


def test_a_drawing_has_no_component_left_of_what_it_reads():
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")]
    graph = {
        "components": {name: {} for name in "abcd"},
        "subscriptions": [{"source": source, "subscriber": reader} for source, reader in edges],
    }
    places = layout(graph)
    assert all(places[source][0] < places[reader][0] for source, reader in edges)
    assert len(set(places.values())) == 4


def test_debug_and_its_percentage_are_the_order_in_force(page, running, topology_id):
    storm = STORMS.format(id=topology_id)

    def shown():
        whole, double, source = (
            page.json(path) for path in (storm, f"{storm}/component/double", f"{storm}/component/source")
        )
        return [(each["debug"], each["samplingPct"]) for each in (whole, double, source)]

    def order(**given):
        page.json(f"{OURS}/debug".format(id=topology_id), method="POST", body=json.dumps(given))

    assert shown() == [(False, 10)] * 3
    order(on=True, component="double", percent=5)
    assert shown() == [(False, 10), (True, 5), (False, 10)]
    assert page.json("/api/acktree/v1/topologies")["topologies"][0]["debug"] == {"double": 5}
    order(on=True, percent=0.5)
    assert shown() == [(True, 0.5), (True, 5), (True, 0.5)]
    order(on=False, component="double")
    assert shown() == [(True, 0.5), (False, 10), (True, 0.5)]
    page.json(f"{storm}/debug/disable/0", method="POST", body=b"")
    assert shown() == [(False, 10)] * 3
    assert running.run.orders.order.debug == {}


def test_a_snapshot_of_a_release_without_debug_is_read(running):
    told = json.loads(running.door._observer.latest())
    del told["debug"]
    old = Snapshot.of(told)
    assert old.debug == {}
    assert old.debug_percent("double") == 0


@pytest.mark.parametrize("what", ["start/here-6700/60", "dumpjstack/here-6700", "stop/here-6700"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_profiling_is_not_implemented_and_says_so_in_one_line(page, topology_id, method, what):
    status, _, said = page.ask(f"{STORMS}/profiling/{what}".format(id=topology_id), method)
    told = json.loads(said)
    assert (status, told["error"]) == (501, "501 Not Implemented")
    assert told["errorMessage"] == "acktree profiles no worker"
    assert page.ask(f"/api/v1/topology/none/profiling/{what}", method)[0] == 404


def test_names_with_numbers_are_drawn_and_listed_by_their_numbers():
    names = [f"bolt-{level}-{at}" for level in range(2) for at in range(12)]
    edges = [("source", name) for name in names]
    graph = {
        "components": {name: {} for name in sorted(["source", *names])},
        "subscriptions": [{"source": source, "subscriber": reader} for source, reader in edges],
    }
    places = layout(graph)
    assert sorted(names, key=places.__getitem__) == names


def test_the_overview_lists_components_by_their_numbers(running):
    snapshot = Snapshot.from_json(running.door._observer.latest())
    names = [f"double{at}" for at in (1, 2, 10)]
    about, stats = snapshot.graph["components"], snapshot.stats.components
    graph = snapshot.graph | {"components": about | dict.fromkeys(reversed(names), about["double"])}
    more = Stats(stats | dict.fromkeys(names, stats["double"]))
    windows = dict.fromkeys(snapshot.windows, Window(1.0, more))
    seen = Seen(find("numbers"), replace(snapshot, graph=graph, windows=windows), is_running=False)
    (shown,) = json.loads(ours.overview([seen]))["topologies"]
    assert [*shown["components"]] == ["double", *names, "source"]


def test_a_drawing_leaves_the_order_of_names_for_fewer_crossings_alone():
    edges = [(f"a-{at}", f"b-{11 - at}") for at in range(12)]
    graph = {
        "components": {name: {} for edge in edges for name in edge},
        "subscriptions": [{"source": source, "subscriber": reader} for source, reader in edges],
    }
    places = layout(graph)
    assert [places[source][1] for source, _ in edges] == [places[reader][1] for _, reader in edges]
    rings = [(f"a-{at}", f"b-{(at + step) % 12}") for at in range(12) for step in range(3)]
    graph["subscriptions"] = [{"source": source, "subscriber": reader} for source, reader in rings]
    places = layout(graph)
    assert len(set(places.values())) == 24
