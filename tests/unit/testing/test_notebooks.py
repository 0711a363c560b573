"""What notebooks show: static, escaped, complete; and the progress of a topology that is awaited."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import BasicBolt, Config, Retry, RunningTopology, SpoutNumbers, Stats, TopologyBuilder, markup
from acktree.core.stats.counters import Counters
from acktree.driver.logs.progress_line import progress_shown
from acktree.testing import FeederSpout, LocalCluster
from acktree.topology.drawing import html_of

EVIL = "<script>alert(1)</script>\x1b[2J\u202e\"'&"
PRINTABLE = "<script>alert(1)</script>"
ALLOWED = {"div", "b", "table", "tr", "th", "td", "svg", "path", "rect", "text"}


class Read(HTMLParser):
    """The tags, attributes and text of a piece of HTML."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words = [], set(), ""
        self.depth = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.depth += tag not in ("path", "rect")

    def handle_endtag(self, tag):
        self.depth -= 1

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.words += data


def checked(page: str) -> Read:
    read = Read(page)
    assert set(read.tags) <= ALLOWED
    assert not {name for name in read.attributes if name.startswith("on") or name in {"href", "src"}}
    assert read.depth == 0
    assert read.words.isprintable()
    return read


class Raises(BasicBolt):
    outputs = ["n"]

    def prepare(self, config, context):
        self.seen = context.register_counter(f"seen {PRINTABLE}")

    def execute(self, tup, collector):
        self.seen.inc()
        raise ValueError(tup["n"])


def run():
    builder, feeder = TopologyBuilder(f"evil {PRINTABLE}"), FeederSpout(["n"])
    builder.set_spout("numbers", feeder, retry=Retry(max_attempts=1))
    builder.set_bolt(f"bolt {PRINTABLE}", Raises()).shuffle_grouping("numbers")
    topology = builder.create_topology()
    with LocalCluster() as cluster:
        running = cluster.submit(topology)
        feeder.feed([EVIL], message_id=EVIL)
        cluster.advance()
        return topology, running


def test_all_that_a_notebook_shows_is_text():
    topology, running = run()
    assert isinstance(running, RunningTopology)
    shown = checked(topology._repr_html_())
    assert "evil <script>" in shown.words
    assert "numbers by shuffle" in shown.words
    assert checked(topology.describe()._repr_html_()).words == shown.words
    numbers = checked(running._repr_html_())
    assert "over" in numbers.words
    assert "seen <script>" in numbers.words
    assert "error component=bolt <script>" in numbers.words
    assert checked(running.stats()._repr_html_()).words in numbers.words
    letters = checked(running.dead_letters._repr_html_())
    assert "1 dead letters" in letters.words
    assert "ValueError: <script>" in letters.words


def trace_of(build, values, **config):
    """The trace of one message."""
    builder, feeder = TopologyBuilder("traced"), FeederSpout(["n"])
    builder.set_spout(f"numbers {PRINTABLE}", feeder)
    build(builder, f"numbers {PRINTABLE}")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(trace_sample_rate=1, **config))
        feeder.feed([values], message_id=EVIL)
        cluster.advance()
        (message,) = running.traces.find()
        return running.traces.get(message.root)


class Spreads(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        for _ in range(3):
            collector.emit([tup["n"]])


def test_a_trace_is_a_table_of_its_tree_and_is_text():
    def build(builder, spout):
        builder.set_bolt("spreads", Spreads()).shuffle_grouping(spout)
        builder.set_bolt(f"bolt {PRINTABLE}", Raises()).shuffle_grouping("spreads")

    trace = trace_of(build, EVIL)
    shown = checked(trace._repr_html_())
    assert f"root {trace.message.root}: FAILED in bolt <script>" in shown.words
    assert "reason: ValueError: <script>" in shown.words
    assert "raise ValueError(tup[" in shown.words
    assert "\u00b7 spreads" in shown.words
    assert f"\u00b7 \u00b7 bolt {PRINTABLE} x 3" in shown.words


class Widens(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        for number in range(300):
            collector.emit([number])


def test_of_a_large_trace_a_notebook_shows_the_first_tuples_and_how_many_there_are_more():
    def build(builder, spout):
        builder.set_bolt("widens", Widens()).shuffle_grouping(spout)
        builder.set_bolt("passes", Spreads()).shuffle_grouping("widens")
        builder.set_bolt("ends", Spreads()).shuffle_grouping("passes")

    trace = trace_of(build, "x")
    assert trace.more
    shown = checked(trace._repr_html_())
    assert shown.tags.count("tr") == 202
    assert "lines more: print it" in shown.words
    assert "not recorded" in shown.words


@given(
    st.lists(st.lists(st.text() | st.none() | st.integers(), min_size=2, max_size=2), max_size=3), st.text()
)
def test_any_text_stays_text(rows, title):
    read = checked(markup.block(title, markup.table(("one", "two"), rows), markup.note(title)))
    assert read.tags.count("tr") == len(rows) + 1
    assert read.words.startswith(markup.printable(markup.bounded(title, 200)))


def test_a_topology_that_warms_up_says_so():
    shown = checked(Stats.of(Counters(), warming_up_secs=7.2)._repr_html_())
    assert shown.words == "warming up for 7 s"
    assert checked(Stats.of(Counters(), spouts={"numbers": SpoutNumbers(0)})._repr_html_()).tags


def test_a_topology_of_many_components_is_a_table_alone():
    builder = TopologyBuilder("many")
    builder.set_spout("numbers", FeederSpout(["n"]))
    for number in range(70):
        builder.set_bolt(f"bolt-{number}", Raises()).shuffle_grouping("numbers")
    topology = builder.create_topology()
    shown = checked(topology._repr_html_())
    assert "svg" not in shown.tags
    assert shown.tags.count("tr") == 72
    few = {**topology.describe().data, "components": {}, "subscriptions": [], "levels": []}
    assert "svg" in checked(html_of(few)).tags


def test_progress_is_a_line_each_second_and_one_at_the_end(capsys):
    said = iter(range(1000))
    came = Event()

    def line():
        number = next(said)
        if number == 2:
            came.set()
        return f"line {number}"

    with progress_shown(line, secs=0.001):
        assert came.wait(120)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert len(lines) >= 4
    with progress_shown(lambda: "the end", secs=60):
        pass
    assert capsys.readouterr().err == "the end\n"


def test_on_a_terminal_it_is_one_line_that_changes(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress_shown(lambda: "acked=7 [bold]", secs=60):
        pass
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "acked=7 [bold]" in shown


def test_a_closed_stderr_stops_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress_shown(lambda: "nobody reads this", secs=0.001):
        Thread(target=lambda: None).start()


def test_a_local_topology_says_it_once(capsys):
    builder, feeder = TopologyBuilder("once"), FeederSpout(["n"])
    builder.set_spout("numbers", feeder)
    feeder.feed([1], message_id=1)
    feeder.end()
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        assert running.await_termination(progress=True)
    assert "once: 1 components, acked=1" in capsys.readouterr().err
