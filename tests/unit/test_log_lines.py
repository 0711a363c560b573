"""Each line of the log says where in the topology it was logged, in user code too, and cannot be forged."""

from __future__ import annotations

import io
import json
import logging
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

import acktree
from acktree import BasicBolt, Bolt, Config, ConfigError, LogFormatter, TopologyBuilder, bolt
from acktree.logs.log_lines import Place, standing
from acktree.logs.loggers import logger, print_by_default
from acktree.testing import FeederSpout, LocalCluster

FORGED = 'x\n2026-11-22T10:31:07.120Z INFO shop component=safe task=1 | all is well\r\x1b[2J\u202e\u2028"}{'
log = logging.getLogger("acktree_tests.shop")


@contextmanager
def logged(log_format):
    """The lines that a handler with our formatter writes."""
    handler, level = logging.StreamHandler(io.StringIO()), log.level
    handler.setFormatter(LogFormatter(log_format))
    loggers = (log, logging.getLogger("acktree"))
    for each in loggers:
        each.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield lambda: handler.stream.getvalue().split("\n")[:-1]
    finally:
        for each in loggers:
            each.removeHandler(handler)
        log.setLevel(level)


class Spout(FeederSpout):
    def open(self, config, context, collector):
        log.info("open")
        super().open(config, context, collector)

    def next_tuple(self):
        if self._fed:
            log.info("next")
        super().next_tuple()

    def ack(self, message_id):
        log.info("ack %s", message_id)

    def close(self):
        log.info("close")


class Split(BasicBolt):
    outputs = ["word"]

    def prepare(self, config, context):
        log.info("prepare")

    def execute(self, tup, collector):
        log.info("split %s", tup["line"])
        for word in tup["line"].split():
            collector.emit([word])


class Pair(Bolt):
    """Joins two tuples: what it emits has two roots."""

    outputs = ["words"]
    remembers = ["held"]
    held = None

    def prepare(self, config, context, collector):
        self.collector, self.held = collector, []

    def execute(self, tup):
        log.info("pair %s", tup["word"])
        self.held.append(tup)
        if len(self.held) == 2:
            self.collector.emit(["+".join(each["word"] for each in self.held)], anchors=self.held)
            for each in self.held:
                self.collector.ack(each)
            self.held = []


@bolt(max_concurrency=5)
async def on_the_loop(tup):
    log.info("loop %s", tup["words"])


@bolt(threads=3)
def on_threads(tup):
    log.info("thread %s", tup["words"])


class Batches(acktree.ArrowBolt):
    outputs = []

    def execute_batch(self, batch, collector):
        log.info("batch %d", batch.num_rows)

    def flush(self, collector):
        log.info("flush")


def run(lines):
    builder, feeder = TopologyBuilder("shop"), Spout(["line"])
    builder.set_spout("lines", feeder)
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("pair", Pair()).shuffle_grouping("split")
    builder.set_bolt("loop", on_the_loop).shuffle_grouping("pair")
    builder.set_bolt("threads", on_threads).shuffle_grouping("pair")
    builder.set_bolt("batches", Batches()).shuffle_grouping("pair")
    topology = builder.create_topology()
    with LocalCluster() as cluster:
        running = cluster.submit(topology, config=Config(trace_sample_rate=1))
        for number, line in enumerate(lines):
            feeder.feed([line], message_id=number)
        cluster.advance()
        roots = {message.message_id: str(message.root) for message in running.traces.find()}
    log.info("outside")
    return topology.tasks, roots


def test_each_line_of_user_code_names_topology_component_task_micro_batch_and_root():
    with logged("json") as lines:
        tasks, roots = run(["a", "b"])
    said = {each["message"]: each for each in map(json.loads, lines())}
    both = ",".join(sorted(roots.values(), key=int))
    expected = {
        "open": ("lines", None, None), "next": ("lines", None, None), "ack 0": ("lines", None, None),
        "close": ("lines", None, None), "prepare": ("split", 0, None), "split a": ("split", 0, roots["0"]),
        "split b": ("split", 0, roots["1"]), "pair a": ("pair", 0, roots["0"]),
        "pair b": ("pair", 0, roots["1"]), "loop a+b": ("loop", 0, both), "thread a+b": ("threads", 0, both),
        "batch 1": ("batches", 0, None), "flush": ("batches", 0, None),
    }  # fmt: skip
    for message, (component, micro_batch, root) in expected.items():
        found = said[message]
        assert (found["topology"], found["component"], found.get("micro_batch"), found.get("root")) == (
            "shop", component, micro_batch, root,
        ), message  # fmt: skip
        assert found["task"] in tasks[component]
    assert {"topology", "component", "task", "root"}.isdisjoint(said["outside"])


def test_as_text_the_place_is_key_and_value_before_the_message():
    with logged("text") as lines:
        tasks, roots = run(["a", "b"])
    (line,) = [line for line in lines() if line.endswith("split b")]
    place = f"topology=shop component=split task={tasks['split'][0]} micro_batch=0 root={roots['1']}"
    assert line.split(" ", 2)[2] == f"INFO acktree_tests.shop {place} | split b"
    assert lines()[-1].split(" ", 2)[2] == "INFO acktree_tests.shop outside"


def fail(text):
    raise ValueError(text)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_value_writes_a_line_of_the_log(log_format):
    records = []

    def noting(record):
        records.append(record)
        return True

    log.addFilter(noting)
    with logged(log_format) as lines:
        run([FORGED, FORGED])
        try:
            fail(FORGED)
        except ValueError:
            log.exception("raised %s", FORGED, stack_info=True)
    log.removeFilter(noting)
    own = [line for line in lines() if not line.startswith("  ")]
    assert all(line.isprintable() for line in lines())
    assert len(own) == len(records)
    if log_format == "json":
        assert own == lines()
        assert "ValueError: x\n2026" in json.loads(own[-1])["traceback"]
    else:
        assert all(line.split(" ")[3] == "acktree_tests.shop" for line in own)
        assert "component=safe" not in "".join(line.split(" | ")[0] for line in own[:-1])


@given(st.text(), st.text())
def test_any_text_is_one_line_that_json_reads(name, message):
    record = logging.LogRecord(name, logging.INFO, "", 1, "%s", (message,), None)
    with standing(Place(name, message, 1, 2), lambda: [7]):
        line = LogFormatter("json").format(record)
        assert LogFormatter().format(record).isprintable()
    assert line.isascii()
    assert line.isprintable()
    read = json.loads(line)
    assert (read["logger"], read["message"]) == (name, message)
    assert (read["topology"], read["component"], read["micro_batch"], read["root"]) == (name, message, 2, "7")


def test_of_acktrees_own_lines_json_has_the_keys_that_they_name():
    with logged("json") as lines:
        template = "topology=%s is 100%% warm, component=%s task=%d n=%.1f"
        logger("acktree").warning(template, "t\n", "c", 3, 0.5)
    (line,) = map(json.loads, lines())
    assert (line["topology"], line["component"], line["task"]) == ("t\\n", "c", 3)
    assert line["message"] == "topology=t\\n is 100% warm, component=c task=3 n=0.5"


def test_a_thread_of_user_code_has_no_place_in_the_driver():
    with logged("json") as lines, standing(Place("t", "c", 1)):
        thread = threading.Thread(target=lambda: log.info("x"))
        thread.start()
        thread.join()
    assert "component" not in json.loads(lines()[0])


def test_the_setting_is_text_or_json_and_holds_for_what_is_printed_by_default(capsys, monkeypatch):
    with pytest.raises(ConfigError, match="log_format"):
        Config(log_format="xml")
    assert Config.from_mapping({"acktree.log.format": "json"}).log_format == "json"
    ours, root = logging.getLogger("acktree"), logging.getLogger()
    last = logging.StreamHandler()
    last.setLevel(logging.WARNING)
    monkeypatch.setattr(logging, "lastResort", last)
    before = ours.handlers[:], ours.level, root.handlers[:]
    ours.handlers[:], root.handlers[:] = [], []
    try:
        print_by_default("json")
        logger("acktree").info("topology=%s", "t")
        print_by_default()
        logger("acktree").info("topology=%s", "t")
        last.setStream(io.StringIO())
        with standing(Place("t", "spout", 1)):
            logging.getLogger("acktree_tests.other").warning("w")
    finally:
        ours.handlers[:], root.handlers[:] = before[0], before[2]
        ours.setLevel(before[1])
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["topology"] == "t"
    assert second.endswith(" INFO acktree topology=t")
    assert last.stream.getvalue().endswith(" topology=t component=spout task=1 | w\n")
