"""What is logged cannot forge a line of the log."""

from __future__ import annotations

import io
import logging
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import acktree
from acktree import TopologyBuilder, bolt
from acktree.logs.loggers import logger, print_by_default
from acktree.testing import FeederSpout, LocalCluster
from acktree.texts import MOST_REASON

FORGED = "x\n2026-11-22 INFO acktree all is well\x1b[2J\u202e"


@pytest.fixture
def written():
    """What a plain handler writes."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log = logging.getLogger("acktree")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler.stream.getvalue
    log.removeHandler(handler)
    log.setLevel(level)


def test_what_is_logged_of_an_argument_is_one_printable_line(written):
    logger("acktree").info("a=%s b=%r n=%d f=%g none=%s", FORGED, Exception(FORGED), 3, 0.5, None)
    (line,) = written().splitlines()
    assert line.isprintable()
    assert "n=3 f=0.5 none=None" in line


def test_the_template_of_a_record_stays_as_it_is():
    record = logging.LogRecord("acktree", logging.INFO, "", 1, "x=%s", (FORGED,), None)
    assert logger("acktree").filter(record)
    assert record.msg == "x=%s"
    assert len(record.args) == 1


def test_a_traceback_keeps_its_lines_and_none_begins_like_a_record(written):
    def fail():
        raise ValueError(FORGED)

    try:
        fail()
    except ValueError:
        logger("acktree").exception("broken: %s", FORGED)
    first, *traceback = written().splitlines()
    assert first.startswith("ERROR broken")
    assert len(traceback) > 3
    assert all(line.startswith("  ") and line.isprintable() for line in traceback)


def test_an_argument_of_any_size_is_a_short_line(written):
    logger("acktree").info("%s", "x" * 10**6)
    assert len(written()) < MOST_REASON + 100


def test_the_same_logger_escapes_once():
    assert logger("acktree") is logger("acktree")
    assert len(logger("acktree").filters) == 1


def test_every_logger_of_the_package_is_made_here():
    folder = Path(acktree.__file__).parent
    users = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.py")
        if re.search(r"getLogger|^import logging|^from logging", file.read_text(), re.MULTILINE)
    }
    # Three connectors and the page silence or pass on the own logger of their library; a worker prints what
    # user code logs, and the levels of users' loggers can be set. Components of pystorm have its loggers;
    # holders.py makes none, and knows one by its class.
    assert users == {
        "logs/log_levels.py", "logs/log_lines.py", "logs/loggers.py", "connectors/kafka/client.py",
        "connectors/rabbitmq.py",
        "connectors/sql.py", "spark/worker/printing.py", "ui/web/connections.py", "multilang/hosts.py",
        "pystorm/component.py", "pystorm/holders.py", "pystorm/hosted.py",
        "pystorm/serializers/json_serializer.py", "pystorm/serializers/serializer.py",
        "streamparse/testing.py",
    }  # fmt: skip


@contextmanager
def bare_program():
    """The loggers of a program that has set up nothing."""
    ours, root = logging.getLogger("acktree"), logging.getLogger()
    before = ours.handlers[:], ours.level, root.handlers[:]
    ours.handlers[:], root.handlers[:] = [], []
    ours.setLevel(logging.NOTSET)
    try:
        yield ours
    finally:
        ours.handlers[:], root.handlers[:] = before[0], before[2]
        ours.setLevel(before[1])


def test_lines_are_printed_by_default_once(capsys):
    with bare_program():
        print_by_default()
        print_by_default()
        logger("acktree").info("topology=%s is warm", "orders")
        logger("acktree").debug("no")
        (line,) = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"[0-9-]+ [0-9:,]+ INFO acktree topology=orders is warm", line)


def test_the_applications_own_logging_comes_first_also_if_it_is_set_up_later(capsys):
    with bare_program() as bare:
        own = logging.StreamHandler(io.StringIO())
        logging.getLogger().addHandler(own)
        print_by_default()
        assert (bare.handlers, bare.level) == ([], logging.NOTSET)
        logging.getLogger().handlers[:] = []
        print_by_default()
        logging.getLogger().addHandler(own)
        logger("acktree").info("once")
        assert (own.stream.getvalue(), capsys.readouterr().err) == ("once\n", "")


def test_a_closed_stderr_raises_no_error(monkeypatch):
    with bare_program():
        print_by_default()
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, "stderr", closed)
        logger("acktree").info("x")


def test_what_an_exception_quotes_cannot_write_a_line_of_the_log(written):
    @bolt()
    def parse(tup):
        raise ValueError(f"bad record {tup['x']}")

    feeder = FeederSpout(["x"])
    builder = TopologyBuilder("forge")
    builder.set_spout("s", feeder)
    builder.set_bolt("p", parse).shuffle_grouping("s")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        feeder.feed([FORGED], message_id=1)
        cluster.advance(0)
    lines = written().splitlines()
    assert any("bad record" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith(("WARNING component=p ", "INFO topology=forge ")) for line in lines)


@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway"])
def test_calls_of_sparks_jvm_are_not_logged_unless_the_application_has_set_their_level(name):
    calls = logging.getLogger(name)
    before = calls.level
    try:
        for level, wanted in ((logging.NOTSET, logging.WARNING), (logging.DEBUG, logging.DEBUG)):
            calls.setLevel(level)
            print_by_default()
            assert calls.level == wanted
    finally:
        calls.setLevel(before)
