"""``check(config, context)`` of components is asked once, before anything runs; its errors have a place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from acktree import (
    BasicBolt,
    Bolt,
    Config,
    ConfigError,
    ConnectorError,
    IterableSpout,
    TopologyBuilder,
)
from acktree.cli.main import main
from acktree.tasks.component_checks import checks_of, refuse_unusable
from acktree.testing import FeederSpout, LocalCluster

MISSING = ConnectorError("there is no queue 'q'", "localhost", "create it")
AWAY = ConnectorError("no connection", "localhost", "start it", can_retry=True)
ASKED = []


class Checked(BasicBolt):
    outputs = ["n"]

    def __init__(self, error=None):
        self.error = error

    def check(self, config, context):
        self.was_asked = True
        ASKED.append((context.component_id, dict(context.input_fields), config.debug))
        if self.error is not None:
            raise self.error

    def execute(self, tup, collector):
        pass


class OtherCheck(BasicBolt):
    """It has a helper of the same name."""

    outputs = []

    def check(self, order, customer):
        raise AssertionError

    def execute(self, tup, collector):
        pass


def topology_of(*errors):
    builder = TopologyBuilder("t")
    builder.set_spout("source", IterableSpout(range(3), ["n"]))
    last = "source"
    for number, error in enumerate(errors):
        before, last = last, f"b{number}"
        builder.set_bolt(last, Checked(error), parallelism=2).shuffle_grouping(before)
    builder.set_bolt("other", OtherCheck()).shuffle_grouping(last)
    return builder.create_topology()


def test_each_component_is_asked_once_with_the_fields_that_it_gets_and_stays_as_it_is():
    ASKED.clear()
    topology = topology_of(None, None)
    assert [*checks_of(topology, Config(debug=True))] == [("b0", None), ("b1", None)]
    assert ASKED == [("b0", {("source", "default"): ("n",)}, True), ("b1", {("b0", "default"): ("n",)}, True)]
    assert not hasattr(topology.components["b0"].user_object, "was_asked")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MISSING, "there is no queue 'q'"),
        (ConfigError("no column 'n'", "table 't'", "add it"), "no column 'n'"),
        (ValueError("broken"), "check() raised ValueError: broken"),
        (ModuleNotFoundError("no module 'pika'"), "check() raised ModuleNotFoundError: no module 'pika'"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(error, what):
    with pytest.raises((ConfigError, ConnectorError)) as refused:
        refuse_unusable(topology_of(None, error), Config())
    assert refused.value.what == what
    assert refused.value.where.startswith("bolt 'b1'")


class SaysLittle(BasicBolt):
    """Its error has one part only."""

    def execute(self, tup, collector):
        pass

    def check(self, config, context):
        raise ConfigError("no password")


def test_an_error_that_says_only_what_gets_its_place():
    builder = TopologyBuilder("t")
    builder.set_spout("source", FeederSpout(["n"]))
    builder.set_bolt("b", SaysLittle()).shuffle_grouping("source")
    with pytest.raises(ConfigError) as refused:
        refuse_unusable(builder.create_topology(), Config())
    assert str(refused.value) == "no password\n  where: bolt 'b'"


def test_of_several_the_others_are_notes():
    with pytest.raises(ConnectorError) as refused:
        refuse_unusable(topology_of(MISSING, ConfigError("no column", "table", "add it")), Config())
    assert "no column" in refused.value.__notes__[0]


def test_what_is_away_refuses_nothing_and_is_logged(caplog):
    refuse_unusable(topology_of(AWAY), Config())
    assert "component=b0 no connection" in caplog.text


def test_submit_asks_before_it_makes_a_checkpoint_or_a_session(tmp_path):
    pytest.importorskip("pyspark")
    from acktree import submit  # noqa: PLC0415

    with pytest.raises(ConnectorError, match="there is no queue"):
        submit(topology_of(MISSING), checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with a topology whose sink has no column for a field; returns its target."""
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    database = tmp_path / "shop.db"
    import sqlite3  # noqa: PLC0415

    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    Path("shop_topology.py").write_text(
        "from acktree import IterableSpout, TopologyBuilder\n"
        "from acktree.connectors.sql import SqlSink\n"
        "builder = TopologyBuilder('shop')\n"
        "builder.set_spout('source', IterableSpout([[1, 2]], ['id', 'total']))\n"
        f"sink = SqlSink('sqlite:///{database}', 'orders', key='id')\n"
        "builder.set_bolt('store', sink).shuffle_grouping('source')\n"
        "topology = builder.create_topology()\n"
    )
    yield "shop_topology:topology", database
    sys.modules.pop("shop_topology", None)


def test_a_dry_run_and_doctor_say_what_a_sink_lacks(module, capsys):
    target, database = module
    assert main(["run", target, "--dry-run", "--json"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["name"] == "store"
    assert "the table has no column 'total'" in check["found"]
    assert main(["doctor", target, "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks[-1]["name"] == "store"
    import sqlite3  # noqa: PLC0415

    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE orders ADD COLUMN total INTEGER")
    assert main(["run", target, "--dry-run"]) == 0
    assert "store: what it needs is there" in capsys.readouterr().out


def test_a_configuration_error_met_later_stops_the_topology_and_makes_no_letter(tmp_path):
    pytest.importorskip("sqlalchemy")
    from acktree.connectors.sql import SqlSink  # noqa: PLC0415

    feeder = FeederSpout(["id"])
    builder = TopologyBuilder("t")
    builder.set_spout("source", feeder)
    sink = SqlSink(f"sqlite:///{tmp_path / 'shop.db'}", "nothing", key="id")
    builder.set_bolt("store", sink).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        feeder.feed([1], message_id=1)
        with pytest.raises(ConnectorError, match="there is no table 'nothing'") as stopped:
            cluster.advance()
        assert stopped.value.where.startswith("bolt 'store'")
        assert feeder.failed == []
        assert len(running.dead_letters) == 0


class Wrong(Bolt):
    outputs = []

    def prepare(self, config, context, collector):
        raise ConfigError("no such model", "model 'x'", "name one that is there")

    def execute(self, tup):
        pass


class Value(Wrong):
    def prepare(self, config, context, collector):
        pass

    def execute(self, tup):
        raise ConnectorError("this value cannot be sent", "field 'id'", "emit a text")


class Unlucky(Wrong):
    def prepare(self, config, context, collector):
        raise ConnectorError("no such model", "a server", "put it there")


class Late(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass

    def flush(self, collector):
        raise ConfigError("no such model", "model 'x'", "name one that is there")


class Dumb(Wrong):
    def prepare(self, config, context, collector):
        error = ConfigError("no such model", "model 'x'", "name one that is there")
        error.held = object.__new__(Unpicklable)
        raise error


class Unpicklable:
    def __reduce__(self):
        raise TypeError("it cannot be sent")


@pytest.mark.parametrize(
    ("bolt", "stops"),
    [
        (Wrong(), ConfigError),
        (Late(), ConfigError),
        (Dumb(), ConfigError),
        (Unlucky(), ConnectorError),
        (Value(), None),
    ],
)
def test_prepare_and_flush_speak_for_the_bolt_and_execute_for_its_tuple(bolt, stops):
    """The topology stops with an error of the class that the bolt raised."""
    feeder = FeederSpout(["id"])
    builder = TopologyBuilder("t")
    builder.set_spout("source", feeder)
    builder.set_bolt("b", bolt).shuffle_grouping("source")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        feeder.feed([1], message_id=1)
        if stops:
            with pytest.raises(stops, match="no such model") as stopped:
                cluster.advance()
            assert type(stopped.value) is stops
        else:
            cluster.advance()
        assert bool(feeder.failed) is (stops is None)
