"""Each order is logged by the process that carries it out: by which door, on what, with what outcome."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from acktree.cli.main import main
from acktree.errors import AcktreeError, ConfigError
from acktree.ui.client import DoorError, find
from acktree.ui.door_routes import RefusedError
from acktree.ui.order_log import Order
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import started


@pytest.fixture
def lines(caplog):
    """What was logged of orders so far; asked again: since then."""
    caplog.set_level("INFO", "acktree")

    def asked():
        found = [each.getMessage() for each in caplog.records if " order=" in each.getMessage()]
        caplog.clear()
        return found

    return asked


def with_letters(topology):
    letter = replace(LETTER, topology="numbers", spout="source", reason="S3cr3t", traceback="S3cr3t")
    topology.letters.put([replace(letter, root=root) for root in range(1, 5)])


def test_the_driver_logs_each_order_with_its_door_and_outcome(running, lines, tmp_path):
    with_letters(running)
    place = f"checkpoint={tmp_path / 'cp'}"
    door = find("numbers").door
    door.order("deactivate")
    door.order("debug", {"component": "double", "percent": 5})
    assert main(["activate", "numbers"]) == 0
    assert main(["dead-letters", "redrive", "numbers", "1", "2", "--yes"]) == 0
    assert main(["dead-letters", "purge", "numbers", "--all", "--yes"]) == 0
    assert main(["kill", "numbers", "-w", "0"]) == 0
    head = "topology=numbers order="
    assert lines() == [
        f"{head}deactivate by=socket {place} given=() outcome=done",
        f"{head}debug by=socket {place} given=(component='double', percent=5) outcome=done",
        f"{head}activate by=cli {place} given=() outcome=done",
        f"{head}dead-letters/redrive by=cli {place} given=(ids=[1, 2]) outcome=done redriven=2",
        f"{head}dead-letters/purge by=cli {place} given=(all=True, expected_count=4) outcome=done purged=4",
        f"{head}kill by=cli {place} given=(wait_secs=0.0) outcome=done wait_secs=0.0",
    ]


def test_the_orders_of_a_run_are_kept_with_what_was_logged_of_them(running, lines):
    door = find("numbers").door
    door.order("deactivate")
    with pytest.raises(DoorError):
        door.order("kill", {"wait_secs": -1})
    with pytest.raises(DoorError):
        door.order("nonsense")
    kept = door.get("audit")["orders"]
    head = f"topology=numbers order={{order}} by={{by}} checkpoint={find('numbers').checkpoint} "
    said = [(head + "given={given} outcome={outcome}").format(**order) for order in reversed(kept)]
    assert said == lines()
    assert [order["order"] for order in kept] == ["nonsense", "kill", "deactivate"]
    assert all(abs(order["at_ms"] / 1000 - time.time()) < 60 for order in kept)
    assert door.get("audit", {"limit": 1})["orders"] == kept[:1]
    for _ in range(600):
        door.order("activate")
    assert len(door.get("audit", {"limit": 1000})["orders"]) == 500


SECRET = "https://u:S3cr3t@h/x?token=S3cr3t"


@pytest.mark.parametrize(
    ("order", "given"),
    [
        ("debug", {"on": True, "component": SECRET}),
        ("debug", {"on": True, "component": f"see {SECRET}"}),
        ("debug", {SECRET: 1}),
        ("debug", {f"see {SECRET}": 1}),
        ("debug", {"x" * 50 + SECRET: 1}),
        ("debug", {"https://u:a'S3cr3t@h/x": 1}),
        ("debug", {"https://u:a'\"S3cr3t@h/x": 1}),
        ("debug", {"\x1b[31m" * 9999: 1}),
        ("debug", {"component": "see https://u:a'S3cr3t@h/x"}),
        ("dead-letters/redrive", {"ids": [SECRET]}),
        ("log-levels", {"set": {SECRET: {"level": "DEBUG", "secs": 5}}}),
        ("log-levels", {"set": {"x": {"level": SECRET}}}),
        (f"\x1b[31m{SECRET}", {}),
    ],
)
def test_neither_the_log_nor_the_audit_has_a_secret_of_a_url_or_a_control_character(
    running, lines, order, given
):
    with suppress(AcktreeError, RefusedError, ValueError):
        running.door._routes.post(f"/v1/{order}", given)
    kept = running.door._routes.get("/v1/audit", {}).decode()
    for text in (*lines(), kept):
        assert "S3CR3T" not in text.upper()
        assert len(text) < 1000
        assert "\\u001b" not in text
        assert text.isprintable()


def test_a_text_of_a_megabyte_is_shortened_and_holds_nothing_up(lines):
    for text in ("a" * 1_000_000, "a://" + "'" * 1_000_000 + "b"):
        Order("debug", "socket", "numbers", "/cp", {"component": text}).is_done({})
    assert all(len(line) < 400 for line in lines())


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no component 'see https://u:S3cr3t@h/x'", "no component 'see https://***'"),
        ("see (amqp://u:S3cr3t@h), or 'b'", "see (amqp://***), or 'b'"),
        ("amqp://u:S3'cr3t@h", "amqp://***"),
    ],
)
def test_of_a_url_in_a_reason_the_scheme_is_left_and_what_is_around_it(said, shown, lines):
    def refuse():
        raise ConfigError(said, "", "")

    with pytest.raises(ConfigError):
        Order("debug", "socket", "numbers", "/cp", {}).carry_out(refuse)
    assert [line.partition("refused: ")[2] for line in lines()] == [shown]


def test_an_order_that_is_refused_is_logged_with_the_reason_and_without_what_no_order_takes(running, lines):
    door = find("numbers").door
    for order, given in (
        ("kill", {"wait_secs": -1}),
        ("activate", {"pass": "S3cr3t"}),
        ("trace", {"rate": "S3cr3t"}),
        ("dead-letters/purge", {"ids": [9]}),
    ):
        with pytest.raises(DoorError):
            door.order(order, given)
    refused = [line.partition(" by=socket ")[2].partition(" given=")[2] for line in lines()]
    assert refused == [
        "(wait_secs=-1) outcome=refused: -1 is no number of seconds",
        "(1 unknown name) outcome=refused: there is no 'pass'",
        "(rate='S3cr3t') outcome=refused: 'S3cr3t' is no number",
        "(ids=[9]) outcome=refused: there is no dead letter 9",
    ]


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        (
            "trace",
            {"message_ids": ["amqp://me:S3cr3t@h/q", "a\nb"]},
            "(message_ids=[amqp://***@h/q, 'a\\nb'])",
        ),
        ("trace", {"message_ids": [*range(99)]}, "(message_ids=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...])"),
        ("foo", {"a) outcome=done x=1": 1, "b": 2}, "(2 unknown names)"),
    ],
)
def test_urls_in_lists_are_masked_and_names_that_no_order_takes_are_counted(name, given, shown, lines):
    Order(name, "socket", "numbers", "/cp", given).is_done({})
    assert lines() == [f"topology=numbers order={name} by=socket checkpoint=/cp given={shown} outcome=done"]


def test_what_the_command_line_does_to_a_stopped_topology_is_logged(lines, tmp_path):
    with started(tmp_path / "cp") as topology:
        with_letters(topology)
    store = f"sqlite:///{tmp_path / 'cp' / 'dead_letters.sqlite'}"
    assert main(["dead-letters", "redrive", "numbers", "2", "--yes"]) == 0
    assert main(["dead-letters", "purge", str(tmp_path / "cp"), "--spout", "source", "--yes"]) == 0
    assert main(["dead-letters", "purge", "numbers", "--store", store, "--all", "--yes"]) == 0
    place = f"checkpoint={tmp_path / 'cp'}"
    head = "topology=numbers order=dead-letters/"
    by_spout = "(spout='source', expected_count=4)"
    assert lines() == [
        f"{head}redrive by=cli {place} given=(ids=[2]) outcome=done redriven=0 ordered=1",
        f"{head}purge by=cli {place} given={by_spout} outcome=done purged=4",
        f"{head}purge by=cli checkpoint={store} given=(all=True, expected_count=0) outcome=done purged=0",
    ]


@pytest.mark.usefixtures("runtime")
def test_a_command_prints_the_line_to_stderr_and_none_of_a_letter(tmp_path):
    with started(tmp_path / "cp") as topology:
        with_letters(topology)
    command = [sys.executable, "-m", "acktree", "dead-letters", "purge", "numbers", "1", "--yes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    (line,) = done.stderr.splitlines()
    assert "INFO acktree topology=numbers order=dead-letters/purge by=cli " in line
    assert line.endswith("given=(ids=[1]) outcome=done purged=1")
    assert "S3cr3t" not in done.stdout + done.stderr
    refused = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert refused.returncode == 1
    assert refused.stderr.startswith('{"error": ')  # one object, as all refusals of --json


def test_a_line_has_no_secret_of_a_url(lines):
    url = "postgresql://me:S3cr3t@host/db"
    Order("dead-letters/purge", "cli", None, url, {"spout": url}).is_done({"done": True, "purged": 1})
    (line,) = lines()
    assert "S3cr3t" not in line
    assert line.startswith("topology=? order=dead-letters/purge by=cli checkpoint=postgresql://***@host/db ")


def test_what_is_done_to_a_checkpoint_that_nobody_runs_is_logged(lines, tmp_path):
    pytest.importorskip("pyspark")
    with started(tmp_path / "cp"):
        pass
    place = str(tmp_path / "cp")
    assert main(["reset-state", place]) == 0
    assert main(["rebalance", place, "--partitions", "3"]) == 0
    assert lines() == [
        f"topology=numbers order=reset-state by=cli checkpoint={place} given=() outcome=done",
        f"topology=numbers order=rebalance by=cli checkpoint={place} given=(partitions=3) outcome=done",
    ]
