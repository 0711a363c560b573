"""Messages are those of spouts; what passes gates has numbers of its own at every door."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette")

from acktree import Retry, Sink, TopologyBuilder
from acktree.cli.main import main
from acktree.cli.run import _account
from acktree.core.stats.counters import Counters
from acktree.topology.layout import layout
from acktree.ui.client import find
from acktree.ui.places import SNAPSHOT
from acktree.ui.snapshot import ALL_TIME, RUN, Snapshot
from acktree.ui.web.metrics import exposed
from acktree.ui.web.ours import overview
from acktree.ui.web.ours import topology as whole
from acktree.ui.web.sources import Seen
from acktree.ui.web.storm import topology_page
from acktree.ui.web.storm_visualization import visualization
from tests.unit.ui.driver_without_spark import Double, NothingPasses, Numbers, started

GATE, ROWS = "__gate/count/double/default", "__gate/table/count/default"
SPOUT = {"emitted": 100, "acked": 90, "failed": 6, "timed_out": 3}
OF_GATES = {"emitted": 50, "acked": 40, "failed": 7, "timed_out": 2, "superseded": 11}


class Table(Sink):
    latest_by = ("n",)

    def open(self, config, context):
        pass

    def last_mark(self):
        pass

    def write(self, batch, mark):
        return {}


def topology():
    builder = TopologyBuilder("gated")
    builder.set_spout("source", Numbers(), retry=Retry(max_attempts=2))
    builder.set_bolt("double", Double(), 2).shuffle_grouping("source")
    builder.set_bolt("count", Double(), exactly_once=True).fields_grouping("double", ["n"])
    builder.set_sink("table", Table()).fields_grouping("count", ["n"])
    return builder.create_topology()


def counts():
    """Of the spout as in SPOUT; of each of two gates half of OF_GATES, and the rest."""
    found = Counters()
    tasks = topology().tasks
    for what, n in SPOUT.items():
        found.add("source", tasks["source"][0], "default", what, n)
    for what, n in OF_GATES.items():
        found.add(GATE, tasks[GATE][0], "default", what, n // 2)
        found.add(ROWS, tasks[ROWS][0], "default", what, n - n // 2)
    for bolt, n in (("double", 100), ("count", 25)):
        found.add(bolt, tasks[bolt][0], "default", "emitted", n)
        found.add(bolt, tasks[bolt][0], "default", "transferred", n)
    found.add("count", tasks["count"][0], "double:default", "executed", 20)
    return found


@pytest.fixture
def running(tmp_path):
    with started(tmp_path / "cp", "gated", given=topology()) as found:
        found.fill()
        found.count(counts())
        yield found


def snapshot_of(running):
    running.door._observer.forget()
    return Snapshot.from_json(running.door._observer.latest(0))


def test_an_account_counts_the_messages_of_spouts_and_that_of_gates_what_passed(running):
    snapshot = snapshot_of(running)
    assert (snapshot.spouts, snapshot.gates) == (("source",), (GATE, ROWS))
    assert snapshot.account() == {**SPOUT, "dead_letters": 0, "open": 10}
    assert snapshot.gate_account() == {**OF_GATES, "open": 0, "waiting": 14}
    assert snapshot.accounts[ALL_TIME]["acked"] == SPOUT["acked"]
    assert snapshot.gate_accounts[ALL_TIME] == snapshot.gate_accounts[RUN]
    assert snapshot.total("acked") == SPOUT["acked"]
    assert running.run.account().acked == SPOUT["acked"]
    # The history, from which the page draws messages a second.
    history = running.door._observer.history
    assert history._point(0, 0, counts()).acked == SPOUT["acked"]


def test_what_waits_is_that_of_the_moment_of_the_snapshot_also_of_the_last_one(running, monkeypatch):
    for count in (3, 60_000):
        monkeypatch.setattr(NothingPasses, "waiting", lambda *_, count=count: count)
        assert snapshot_of(running).gate_account()["waiting"] == 2 * count
    monkeypatch.setattr(NothingPasses, "waiting", lambda *_: 0)
    running.handle.kill(wait_secs=0)
    last = Snapshot.from_json((running.held.folder / SNAPSHOT).read_bytes())
    assert (last.status, last.gate_account()["waiting"]) == ("STOPPED", 0)


def test_the_table_has_gates_of_their_own(running):
    lines = running.handle.stats().table().splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith(("spout ", "gate ", "bolt "))]
    assert [lines[at].split()[0] for at in heads] == ["spout", "gate", "bolt"]
    assert "superseded" in lines[heads[1]]
    assert [line.split()[:4] for line in lines[heads[1] + 1 : heads[2]]] == [
        [GATE, "25", "20", "5"], [ROWS, "25", "20", "6"],
    ]  # fmt: skip
    assert not [line for line in lines[heads[0] : heads[1]] if "__gate" in line]


def test_commands_say_both(running, capsys):
    snapshot_of(running)
    assert main(["stats", "gated", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["account"]["acked"], said["gates"][RUN]["superseded"]) == (90, 11)
    assert said["components"][ROWS]["total"]["superseded"] == 6
    assert main(["stats", "gated"]) == 0
    text = capsys.readouterr().out
    assert "this run: emitted 100  acked 90  failed 6  timed_out 3  dead_letters 0  open 10\n" in text
    assert "gates, this run: emitted 50  acked 40  failed 7  timed_out 2  superseded 11  open 0" in text
    assert main(["top", "gated", "--count", "1"]) == 0
    assert "\ngates: emitted 50  acked 40" in capsys.readouterr().out
    main(["health", "gated", "--json"])
    (checks,) = json.loads(capsys.readouterr().out)["topologies"].values()
    names = {check["name"] for check in checks}
    assert {"verdicts of spout source", f"verdicts of gate {GATE}", f"calls of gate {ROWS}"} <= names


def test_a_run_prints_both_and_the_letters_of_both(running):
    found, tasks = Counters(), topology().tasks
    for name in ("source", GATE):
        found.add(name, tasks[name][0], "default", "dead_lettered", 2)
    running.count(found)
    answer = _account(running.handle, None, None)
    assert {what: answer.data[what] for what in SPOUT} == SPOUT
    assert answer.data["new_dead_letters"] == 4
    assert answer.data["gates"] == {**OF_GATES, "open": 0}
    assert answer.text.splitlines()[-1].startswith("gates: emitted 50  acked 40  failed 7")


@pytest.mark.parametrize(
    ("spout", "gate", "is_ok"), [((0, 100_000), (100, 100), False), ((9, 0), (9, 9), True)]
)
def test_health_judges_the_letters_of_gates_by_what_passed_gates(running, capsys, spout, gate, is_ok):
    found, tasks = Counters(), topology().tasks
    for name, (letters, acked) in (("source", spout), (GATE, gate)):
        found.add(name, tasks[name][0], "default", "dead_lettered", letters)
        found.add(name, tasks[name][0], "default", "acked", acked)
    running.count(found)
    snapshot_of(running)
    main(["health", "gated", "--json"])
    (checks,) = json.loads(capsys.readouterr().out)["topologies"].values()
    assert [check["is_ok"] for check in checks if check["name"] == "dead letters"] == [is_ok]


def test_rest_and_metrics_keep_them_apart(running):
    seen = Seen(find("gated"), snapshot_of(running), is_running=True)
    (ours,) = json.loads(overview([seen]))["topologies"]
    assert (ours["account"]["acked"], ours["gates"]["superseded"]) == (90, 11)
    assert (ours["components"][GATE]["gate_of"], ours["components"]["source"]["gate_of"]) == ("double", None)
    storm = topology_page(seen, ALL_TIME)
    (stats,) = (row for row in storm["topologyStats"] if row["window"] == ALL_TIME)
    assert (stats["emitted"], stats["transferred"], stats["acked"], stats["failed"]) == (225, 125, 90, 9)
    gates = {row["spoutId"]: row["gateOf"] for row in storm["spouts"]}
    assert gates == {GATE: "double", ROWS: "count", "source": ""}
    text = exposed([seen], "1", "")[0].decode()
    assert 'acktree_messages_acked_total{spout="source",stream="default",topology="gated"} 90.0' in text
    superseded = [each for each in text.splitlines() if "superseded" in each and not each.startswith("#")]
    assert [each for each in superseded if "_created" not in each] == [
        f'acktree_messages_superseded_total{{spout="{GATE}",stream="default",topology="gated"}} 5.0',
        f'acktree_messages_superseded_total{{spout="{ROWS}",stream="default",topology="gated"}} 6.0',
        f'acktree_all_time_messages_total{{spout="{GATE}",topology="gated",what="superseded"}} 5.0',
        f'acktree_all_time_messages_total{{spout="{ROWS}",topology="gated",what="superseded"}} 6.0',
    ]


def test_what_goes_through_a_gate_is_an_edge_of_the_graph(running):
    seen = Seen(find("gated"), snapshot_of(running), is_running=True)
    columns = {name: column for name, (column, _) in whole(seen)["places"].items()}
    assert columns == {"source": 0, "double": 1, GATE: 2, "count": 3, ROWS: 4, "table": 5}
    (read,) = visualization(seen, ALL_TIME)[GATE][":inputs"]
    assert (read[":component"], read[":grouping"]) == ("double", "gate")
    assert layout({"components": {"a": {}, "g": {"gate_of": "a"}}, "subscriptions": []})["g"][0] == 1
