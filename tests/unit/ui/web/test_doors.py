"""What must be at no door of the operators, and what no door may do, asked at all of them."""

from __future__ import annotations

import json
import logging
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from acktree import BasicBolt, Config, ConnectorError, Retry, Spout, TopologyBuilder
from acktree.cli.main import main
from acktree.connectors.nats import JetStreamSpout
from acktree.connectors.rabbitmq import RabbitMQSpout
from acktree.connectors.redis import RedisStreamSpout
from acktree.connectors.sql import SqlSink
from acktree.testing import FeederSpout, LocalCluster
from acktree.traces.of_run import refuse_missing_exporter
from tests.unit.dead_letters.letters import LETTER, payload_of
from tests.unit.traces.facts import record
from tests.unit.ui.driver_without_spark import Double, started
from tests.unit.ui.web.asking import page_of
from tests.unit.ui.web.doors import asked_by_cli, asked_by_rest

SECRET = "S3cr3t"
DATABASE = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db"
CONFIG = Config(
    dead_letters_url=DATABASE, otlp_endpoint=f"http://me:{SECRET}@127.0.0.1:1", max_spout_pending=10
)

pytestmark = pytest.mark.usefixtures("own_runtime")


def topology_id(page) -> str:
    (about,) = page.json("/api/acktree/v1/topologies")["topologies"]
    return about["id"]


class Table(SqlSink):
    """Its messages do not wait until the database is there: they fail with what it says."""

    def flush(self, collector):
        try:
            super().flush(collector)
        except ConnectorError as error:
            raise ValueError(str(error)) from error


def refused_by_a_database():
    """Dead letters and errors of a topology whose database is not there."""
    builder, feeder = TopologyBuilder("numbers"), FeederSpout(["n"])
    builder.set_spout("source", feeder, retry=Retry(max_attempts=1))
    builder.set_bolt("table", Table(DATABASE, "orders", key="n", patience_secs=0)).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=CONFIG)
        feeder.feed([1], message_id=1)
        cluster.advance()
        return list(running.dead_letters), running.errors


def of_brokers():
    """A topology whose brokers are not there."""
    builder = TopologyBuilder("numbers")
    away = f"{SECRET}@127.0.0.1:1"
    builder.set_spout("rabbit", RabbitMQSpout(f"amqp://guest:{away}/", "orders"))
    builder.set_spout("redis", RedisStreamSpout(f"redis://:{away}/0", "orders", "readers"))
    builder.set_spout("nats", JetStreamSpout(f"nats://reader:{away}", "ORDERS", "readers"))
    builder.set_bolt("double", Double()).shuffle_grouping("redis")
    return builder.create_topology()


def test_no_secret_of_a_broker_a_database_or_a_collector_is_at_any_door(tmp_path, capsys, caplog):
    caplog.set_level(logging.DEBUG, "acktree")
    refuse_missing_exporter(CONFIG, "submit")
    letters, errors = refused_by_a_database()
    assert letters
    assert errors
    checkpoint = tmp_path / "cp"
    said = {}
    with started(checkpoint, config=CONFIG, given=of_brokers()) as topology:
        topology.letters.put([replace(each, spout="redis") for each in letters])
        for error in errors:
            topology.run.errors.add(error)
        tasks = [thread.task for thread in topology.run.threads.by_task.values()]
        end = time.monotonic() + 60
        while not all(task.outages for task in tasks):
            assert time.monotonic() < end
            time.sleep(0.01)
        with page_of(checkpoint) as page:
            answers = asked_by_rest(page, topology_id(page), ["rabbit", "redis", "nats", "double"])
            said |= {path: body.decode() for path, (_, body) in answers.items()}
        said |= asked_by_cli(capsys, "numbers", checkpoint)
        said["repr"] = f"{topology.handle!r}{topology.handle.stats().table()}{topology.handle._repr_html_()}"
        said["outages"] = "".join(f"{task.outages}" for task in tasks)
    with page_of(checkpoint) as page:
        answers = asked_by_rest(page, topology_id(page))
        said |= {f"stopped {path}": body.decode() for path, (_, body) in answers.items()}
    said |= {
        f"stopped {name}": text for name, text in asked_by_cli(capsys, str(checkpoint), checkpoint).items()
    }
    said["log"] = caplog.text + "".join(f"{record.__dict__}" for record in caplog.records)
    said |= {
        str(file): file.read_bytes().decode("latin-1")
        for file in checkpoint.rglob("*")
        if file.is_file() and not file.name.startswith("plan-")
    }
    assert [where for where, text in said.items() if SECRET in text] == []
    assert "***@127.0.0.1:1" in said["show numbers"]  # the settings are shown without the secret
    assert "127.0.0.1" in said["get-errors numbers"]
    assert "127.0.0.1" in said["dead-letters show numbers 1"]
    assert "NATS" in said["outages"]


@pytest.mark.parametrize(
    "command",
    [
        f"dead-letters list numbers --store {DATABASE}",
        f"dead-letters list hdfs://me:{SECRET}@host/cp",
        f"stats s3a://key:{SECRET}@bucket/cp",
        f"health s3a://key:{SECRET}@bucket/cp",
        f"doctor hdfs://me:{SECRET}@host/cp",
        f"run nothing.py --checkpoint hdfs://me:{SECRET}@host/cp",
        f"run nothing.py --checkpoint cp -c dead_letters_url=postgressql//me:{SECRET}@host/db",
        f"run nothing.py --checkpoint cp -c otlp_endpoint=ftp://me:{SECRET}@host",
        f"submit nothing.py --checkpoint cp -c acktree.otlp.endpoint=ftp://me:{SECRET}@host",
        f"rebalance hdfs://me:{SECRET}@host/cp --partitions 2",
    ],
)
def test_no_command_that_fails_repeats_a_secret(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (command.split(), [*command.split(), "--json"]):
        assert main(given) in {1, 2, 3}
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
        assert printed.out + printed.err


class Mark:
    """A value that leaves a mark if it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)

    def __repr__(self) -> str:
        return "<a mark>"


class Marks(Spout):
    """Emits values that must not be unpickled."""

    outputs = ["value"]
    redelivers = True

    def __init__(self, file: Path) -> None:
        self.file = file

    def open(self, config, context, collector):
        self.collector, self.left = collector, 10

    def next_tuple(self):
        if self.left:
            self.left -= 1
            self.collector.emit([Mark(self.file)], message_id=("id", self.left))


def test_no_command_and_no_route_unpickles_what_a_letter_a_trace_or_the_inbox_holds(tmp_path, capsys):
    mark, checkpoint = tmp_path / "left-a-mark", tmp_path / "cp"
    builder = TopologyBuilder("numbers")
    builder.set_spout("source", Marks(mark), retry=Retry(max_attempts=2))
    builder.set_bolt("double", Double(), parallelism=2).shuffle_grouping("source")
    made = builder.create_topology()
    letter = replace(LETTER, topology="numbers", spout="source", payload=payload_of("UA", Mark(mark)))
    with started(checkpoint, config=Config(max_spout_pending=10), given=made) as topology:
        topology.letters.put([replace(letter, root=root) for root in range(1, 6)])
        topology.fill()
        record(topology.run.traces)
        with page_of(checkpoint) as page:
            topology_named = topology_id(page)
            answers = asked_by_rest(page, topology_named, ["source", "double"])
            assert {status for status, _ in answers.values()} <= {200, 404}
            for order, letter_id in (("purge", 5), ("redrive", 3)):
                path = f"/api/acktree/v1/topologies/{topology_named}/dead-letters/{order}"
                assert page.ask(path, "POST", json.dumps({"ids": [letter_id]}).encode())[0] == 200
        asked_by_cli(capsys, "numbers", checkpoint)
        assert main(["dead-letters", "redrive", "numbers", "4", "--yes"]) == 0
        (traced, *_) = topology.handle.traces.find()
        assert main(["trace", "numbers", str(traced.root)]) == 0
        assert main(["dead-letters", "export", "numbers", str(tmp_path / "letters.parquet")]) == 0
        files = [file for file in checkpoint.rglob("*") if file.is_file()]
        stored = {file for file in files if mark.name.encode() in file.read_bytes()}
        places = {file.relative_to(checkpoint).parts[0] for file in stored}
        assert "inbox" in places
        assert any(place.startswith("dead_letters.sqlite") for place in places)
    asked_by_cli(capsys, str(checkpoint), checkpoint)
    with page_of(checkpoint) as page:
        asked_by_rest(page, topology_id(page))
    assert main(["dead-letters", "purge", str(checkpoint), "1", "--yes"]) == 0
    assert not mark.exists()
    with pytest.raises(TypeError):  # what a mark is unpickled to is no value
        raise TypeError(replace(letter, root=1).values)
    assert mark.exists()  # the pickle does what it says


@pytest.mark.parametrize(
    "name",
    [
        "snapshot.json",
        "control.json",
        "acktree.json",
        "traces.sqlite",
        "dead_letters.sqlite",
        "events/x.jsonl",
    ],
)
def test_a_pickle_in_place_of_a_file_of_the_checkpoint_is_not_unpickled_and_is_said(name, tmp_path, capsys):
    mark, checkpoint = tmp_path / "mark", tmp_path / "cp"
    with started(checkpoint) as topology:
        topology.fill()
    file = checkpoint / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(pickle.dumps(Mark(mark), protocol=0) + b"\n")
    said = asked_by_cli(capsys, str(checkpoint), checkpoint)
    assert not any("Traceback (most" in text for text in said.values())
    with page_of(checkpoint) as page:
        for route in ("topologies", "snapshot"):
            assert page.ask(f"/api/acktree/v1/{route}")[0] == 200
    assert not mark.exists()


NAMES = (
    "../../../etc/passwd", "a/b?c=d&e#f;g|h=i,j k", "%2e%2e%2f%00",
    "<img src=x onerror=alert(1)>'\"`$(touch x)",
    "--json", "-h", "numbers ", "\u05d0\u05d1[bold red]x[/]{0.__class__}%s%n",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_any_printable_character_is_a_name_at_every_door(name, tmp_path, capsys):
    builder = TopologyBuilder(name)
    builder.set_spout("source", Marks(tmp_path / "mark"))
    builder.set_bolt(name, Double()).shuffle_grouping("source")
    checkpoint = tmp_path / "cp"
    with started(
        checkpoint, given=builder.create_topology(), config=Config(max_spout_pending=10)
    ) as topology:
        topology.fill()
        topology.letters.put([replace(LETTER, topology=name, spout="source", component=name, root=1)])
        with page_of() as page:
            answers = asked_by_rest(page, topology_id(page), [name])
            assert {path: status for path, (status, _) in answers.items() if status != 200} == {}
            (about,) = page.json("/api/acktree/v1/topologies")["topologies"]
            assert about["name"] == name
        said = asked_by_cli(capsys, str(checkpoint), checkpoint)
        assert all(line.isprintable() for text in said.values() for line in text.splitlines())
        assert name in said[f"show {checkpoint}"]
        assert json.loads(said["list --json"].splitlines()[-1])["topologies"][0]["topology"] == name
    assert not (tmp_path / "mark").exists()


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202e\u2028<script>alert(1)</script>\x00\ud800"


class Raises(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        raise ValueError(HOSTILE)


def test_hostile_ids_reasons_and_values_drive_no_terminal_and_no_browser_at_any_door(tmp_path, capsys):
    checkpoint = tmp_path / "cp"
    letter = replace(
        LETTER, topology="numbers", spout="source", reason=HOSTILE, traceback=HOSTILE,
        message_id_repr=HOSTILE, exception_type=HOSTILE, component=HOSTILE,
        payload=payload_of("UA\x1b[2J", "\x1b[31m<b>"),
    )  # fmt: skip
    builder, feeder = TopologyBuilder("numbers"), FeederSpout(["n"])
    builder.set_spout("source", feeder)
    builder.set_bolt("raises", Raises()).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=1))
        feeder.feed([HOSTILE], message_id=HOSTILE)
        cluster.advance()
        errors = running.errors
    with started(checkpoint) as topology:
        topology.fill()
        topology.letters.put([letter])
        for error in errors:
            topology.run.errors.add(error)
        said = asked_by_cli(capsys, "numbers", checkpoint)
        with page_of() as page:
            answers = asked_by_rest(page, topology_id(page), ["source", "double"])
            status, headers, _ = page.ask(f"/api/acktree/v1/topologies/{topology_id(page)}/errors")
    for command, text in said.items():
        assert all(line.isprintable() for line in text.split("\n")), command
    assert "\\x1b[2J" in said["get-errors numbers"]
    assert "\\x1b[2J" in said["dead-letters show numbers 1"]
    assert {path: status for path, (status, _) in answers.items() if status not in {200, 404}} == {}
    for path, (_, body) in answers.items():
        if path != "/":
            assert b"\x1b" not in body, path  # JSON escapes it
            assert b"\x00" not in body, path
    assert (status, headers["Content-Type"], headers["X-Content-Type-Options"]) == (
        200, "application/json", "nosniff",
    )  # fmt: skip
