"""The page in a real browser, over drivers that have no Spark: hostile texts, and much to draw."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from acktree import BasicBolt, Config, Spout, TopologyBuilder
from acktree.core.stats.numbers import ReportedError
from tests.browser.browsers import tab
from tests.unit.dead_letters.letters import LETTER, payload_of
from tests.unit.traces import facts
from tests.unit.ui.driver_without_spark import Double, Numbers, started, wide

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=alert(1)>"
NASTY = f"{MARKUP}\x1b[31m\u202e"
LEVELS, WIDE = 10, 20


def hostile():
    """A topology whose names are markup. Other characters than printable ones are refused in names."""
    builder = TopologyBuilder(MARKUP)
    builder.set_spout("source", Numbers())
    builder.set_bolt(f"double {MARKUP}", Double()).shuffle_grouping("source")
    return builder.create_topology()


def test_markup_and_escapes_in_names_values_and_reasons_are_shown_as_text(browser, shown, tmp_path):
    with started(tmp_path, MARKUP, given=hostile()) as topology, tab(browser, shown.url) as page:
        dialogs = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        bolt = f"double {MARKUP}"
        nasty = replace(LETTER, topology=MARKUP, spout="source", component=bolt, reason=NASTY)
        topology.letters.put([replace(nasty, message_id_repr=NASTY, payload=payload_of(NASTY, 1))])
        topology.run.errors.add(ReportedError(bolt, 1, NASTY, time.time_ns() // 1_000_000, NASTY))
        topology.fill()
        root = facts.record(topology.run.traces)
        page.goto(shown.address)

        def shows(count):
            """As text, this often at least; and nothing of it is an element."""
            page.wait_for_function(
                "([text, count]) => document.body.innerText.split(text).length > count", arg=[MARKUP, count]
            )
            assert page.locator("img, script:not([src]), #main b").count() == 0
            assert MARKUP not in page.content()

        shows(1)
        page.get_by_role("link", name=MARKUP, exact=True).first.click()
        page.locator("svg .name").first.wait_for()
        shows(3)
        page.get_by_role("link", name=bolt, exact=True).first.click()
        page.get_by_role("heading", name=bolt).wait_for()
        page.locator("details summary").first.click()
        assert page.locator("pre").first.inner_text() == NASTY
        page.get_by_role("link", name=MARKUP, exact=True).click()
        page.locator(".tiles a[href$=letters]").click()
        page.locator("tbody summary").first.click()
        shows(4)
        page.get_by_role("link", name=MARKUP, exact=True).click()
        page.get_by_role("link", name="search").click()
        page.locator(f"tbody a[href$='{root}']").click()
        page.locator("ul.tree").first.wait_for()
        shows(4)
        assert dialogs == []


def test_a_tab_that_shows_a_topology_asks_for_nothing_else_than_its_stream(browser, shown, tmp_path):
    with (
        started(tmp_path / "a", "first") as first,
        started(tmp_path / "b", "second") as second,
        tab(browser, shown.url) as page,
    ):
        asked = []
        page.on("request", lambda request: asked.append(request.url.partition("/api/acktree/v1/")[2]))
        page.goto(shown.address)
        for name, topology, news in (("first", first, "a"), ("second", second, "b"), ("first", first, "c")):
            topology.fill()
            page.get_by_role("link", name=name, exact=True).first.click()
            page.locator("svg .name").first.wait_for()
            page.wait_for_timeout(1500)  # it draws its history, and follows its stream
            del asked[:]
            topology.run.errors.add(ReportedError("double", 1, f"news {news}", time.time_ns() // 10**6, ""))
            page.get_by_text(f"news {news}").first.wait_for()
            assert asked == []
            page.go_back()


def tree_of(recorder, parents):
    """Record a message's tuples; ``parents`` has each one's parent by number, -1 for the message."""
    message = facts.first_message(recorder)
    root, task, links, executions = message["root"], message["task_id"], [], []
    for n, parent in enumerate(parents):
        edge, above = root + 1 + n, root if parent < 0 else root + 1 + parent
        bolt = f"bolt-{n % LEVELS}-0"
        links.append([root, edge, [above], "source", task, "default", bolt, n, [f"value {n}"]])
        executions.append([root, edge, bolt, n, message["emitted_ms"] + 5, 1.5, 1, "acked", ""])
    facts.fail(recorder, message, facts.tell(recorder, message, links, executions))
    return root


TREES = {
    "bushes": [-1 if n % 25 == 0 else n - n % 25 for n in range(1000)],  # 40 with 24 below each
    "binary": [(n - 1) // 2 for n in range(1000)],
    "star": [-1] * 1000,
    "chain": [n - 1 for n in range(1000)],
    "binary of 100,000": [(n - 1) // 2 for n in range(100_000)],
}
"""The most tuples that are stored of a message, in different forms; one has more, which are counted."""


class Costs:
    """What the browser does while something is drawn."""

    def __init__(self, page) -> None:
        self.page, self._session = page, page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def _now(self):
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in metrics}

    def of(self, what, selector, count):
        """Run a script and wait for a number of elements; returns ms, CPU of the tab, layouts, elements."""
        before = self._now()
        script = """([selector, count]) => new Promise((done, refuse) => {
            const began = performance.now();
            const found = () => document.querySelectorAll(selector).length;
            const look = () => {
                if (found() >= count) requestAnimationFrame(() => done(performance.now() - began));
                else if (performance.now() - began > 20000) refuse(new Error(`${found()} ${selector}`));
                else requestAnimationFrame(look);
            };
            WHAT;
            look();
        })""".replace("WHAT", what)
        ms = self.page.evaluate(script, [selector, count])
        after = self._now()
        return {
            "ms": round(ms),
            "cpu_secs": round(after["TaskDuration"] - before["TaskDuration"], 3),
            "layouts": after["LayoutCount"] - before["LayoutCount"],
            "elements": self.page.evaluate("document.querySelectorAll('*').length"),
        }


def test_200_components_are_drawn_within_a_second(browser, shown, tmp_path, record_property):
    """Of time only the tab's own CPU is asserted, ten times what it takes: the machine may be busy."""
    with (
        started(tmp_path, "large", given=wide("large", LEVELS, WIDE)) as topology,
        tab(browser, shown.url) as page,
    ):
        topology.fill()
        page.goto(shown.address)
        link = page.get_by_role("link", name="large", exact=True).first
        link.wait_for()
        costs, address = Costs(page), link.get_attribute("href")
        graph = costs.of(f"location.hash = '{address}'", "svg a", LEVELS * WIDE + 1)
        system = costs.of(
            "document.querySelector('input[type=checkbox]').click()", "svg a", LEVELS * WIDE + 2
        )
        for name, cost in {"graph": graph, "with the acker": system}.items():
            record_property(name, cost)
            assert cost["elements"] < 15_000, (name, cost)
            assert cost["cpu_secs"] < 1, (name, cost)
            assert cost["layouts"] < 10, (name, cost)


@pytest.mark.parametrize("form", TREES)
def test_the_largest_tree_is_opened_within_a_second_and_stays_readable(
    browser, shown, tmp_path, record_property, form
):
    """All of its branches at once. Readable: nothing is wider than the page, on a telephone too."""
    with (
        started(tmp_path, "large", given=wide("large", LEVELS, 1)) as topology,
        tab(browser, shown.url, "phone") as page,
    ):
        topology.fill()
        root = tree_of(topology.run.traces, TREES[form])
        page.goto(shown.address)
        link = page.get_by_role("link", name="large", exact=True).first
        link.wait_for()
        costs, address = Costs(page), link.get_attribute("href")
        tree = costs.of(f"location.hash = '{address}/trace/{root}'", "ul.tree li", 1)
        # Alike siblings without anything below are one line: each tuple here has values of its own.
        whole = costs.of("document.querySelector('#open-all').click()", "ul.tree li strong", 1000)
        page.wait_for_timeout(1500)  # drawn again by an event of the stream
        for name, cost in {"tree": tree, "whole tree": whole}.items():
            record_property(name, cost)
            assert cost["elements"] < 15_000, (name, cost)
            assert cost["cpu_secs"] < 1, (name, cost)
            assert cost["layouts"] < 20, (name, cost)
        assert page.locator("ul.tree details:not([open])").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        widths = (
            "[...document.querySelectorAll('ul.tree .values')].map((each) => each.parentElement.clientWidth)"
        )
        assert page.evaluate(f"Math.min(...{widths}) >= 200")
        for n in (0, 500, 999):
            line = page.get_by_text(f"(value {n})", exact=True)
            line.scroll_into_view_if_needed()
            assert line.is_visible()
        more = page.get_by_text(
            re.compile(r"^[\d,]+ more tuples at bolt-\d-0 are not recorded\.$")
        ).all_inner_texts()
        assert sum(int(line.split()[0].replace(",", "")) for line in more) == len(TREES[form]) - 1000
        page.get_by_role("button", name="Close all").click()
        page.wait_for_function("() => !document.querySelector('ul.tree details[open]')")


def test_a_late_answer_does_not_close_what_was_opened_meanwhile(browser, shown, tmp_path):
    """The page asks for a tree when it is opened, and at each event of the stream until it has an answer."""
    with (
        started(tmp_path, "large", given=wide("large", LEVELS, 1)) as topology,
        tab(browser, shown.url) as page,
    ):
        topology.fill()
        root = tree_of(topology.run.traces, TREES["bushes"])
        late = []
        page.route(f"**/traces/{root}", lambda asked: asked.continue_() if late else late.append(asked))
        page.goto(shown.address)
        link = page.get_by_role("link", name="large", exact=True).first
        link.wait_for()
        page.evaluate(f"location.hash = '{link.get_attribute('href')}/trace/{root}'")
        page.locator("ul.tree li").first.wait_for()
        page.get_by_role("button", name="Open all").click()
        page.get_by_text("(value 999)", exact=True).wait_for()
        with page.expect_response(f"**/traces/{root}"):
            late[0].continue_()
        page.wait_for_timeout(1500)  # drawn again by an event of the stream
        assert page.locator("ul.tree .values").count() == 1000


TUPLES = 100_000
STAGES = 9


class One(Spout):
    """Emits one message."""

    outputs = ["n"]
    redelivers = True

    def open(self, config, context, collector):
        self.collector, self.has_emitted = collector, False

    def next_tuple(self):
        if not self.has_emitted:
            self.has_emitted = True
            self.collector.emit([-1], message_id="large")


class Split(BasicBolt):
    """Makes many of one."""

    outputs = ["n"]

    def execute(self, tup, collector):
        for n in range((TUPLES - 1) // STAGES):
            collector.emit([n])


class Stage(BasicBolt):
    outputs = ["n"]

    def execute(self, tup, collector):
        collector.emit([tup["n"]])


class Last(BasicBolt):
    """Fails one of many."""

    outputs = []

    def execute(self, tup, collector):
        if tup["n"] == 7777:
            raise ValueError("the last of its path")


def many_tuples(name):
    """A topology whose one message has 100,000 tuples, of which one fails."""
    builder = TopologyBuilder(name)
    builder.set_spout("source", One())
    builder.set_bolt("split", Split()).shuffle_grouping("source")
    before = "split"
    for n in range(1, STAGES):
        builder.set_bolt(f"stage-{n}", Stage()).shuffle_grouping(before)
        before = f"stage-{n}"
    builder.set_bolt("last", Last()).shuffle_grouping(before)
    return builder.create_topology()


@pytest.mark.parametrize("look", ["light", "phone"])
def test_a_message_of_100_000_tuples_is_shown_within_a_second_and_stays_readable(
    browser, shown, tmp_path, record_property, look
):
    """Really executed and recorded: 1,000 of them are stored, those that failed among them, and the others
    are counted by component."""
    config = Config(trace_sample_rate=1.0)
    with (
        started(tmp_path, "many", config, many_tuples("many")) as topology,
        tab(browser, shown.url, look) as page,
    ):
        recorder = topology.run.traces
        facts.first_message(recorder)
        topology.run_inbox()
        assert topology.handle.stats()["last"].total.executed == (TUPLES - 1) // STAGES
        assert recorder.settle()
        (trace,) = topology.handle.traces.find()
        trace = topology.handle.traces.get(trace.root)
        assert trace.message.verdict == "FAILED"
        assert len(trace.tuples) + sum(trace.more.values()) == TUPLES + 1  # with the spout's own
        assert len(trace.tuples) <= 1100
        page.goto(shown.address)
        link = page.get_by_role("link", name="many", exact=True).first
        link.wait_for()
        costs, address = Costs(page), link.get_attribute("href")
        tree = costs.of(f"location.hash = '{address}/trace/{trace.message.root}'", "ul.tree li", 1)
        whole = costs.of("document.querySelector('#open-all').click()", "ul.tree li strong", 1)
        page.wait_for_timeout(1500)  # drawn again by an event of the stream
        for name, cost in {"tree": tree, "whole tree": whole}.items():
            record_property(name, cost)
            assert cost["elements"] < 15_000, (name, cost)
            assert cost["cpu_secs"] < 1, (name, cost)
            assert cost["layouts"] < 20, (name, cost)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for component, count in trace.more.items():
            line = page.get_by_text(f"{count:,} more tuples at {component} are not recorded.", exact=True)
            line.scroll_into_view_if_needed()
            assert line.is_visible()
        failed = page.get_by_text("the last of its path").first
        failed.scroll_into_view_if_needed()
        assert failed.is_visible()
