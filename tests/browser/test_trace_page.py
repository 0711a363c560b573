"""The page of a trace in a real browser: large trees, and what a reader has opened while they change."""

from __future__ import annotations

import re

import pytest

from acktree import BasicBolt, Config, Spout, TopologyBuilder
from tests.browser.browsers import tab
from tests.browser.costs import Costs
from tests.unit.traces import facts
from tests.unit.ui.driver_without_spark import started, wide

pytestmark = pytest.mark.slow

LEVELS = 10
TASKS = 1000
"""Of all bolts together: a task for each tuple of 100,000 would be dearer to read than the tuples."""


def tree_of(recorder, parents):
    """Record a failed message's tuples; ``parents`` has each one's parent by number, -1 for the message."""
    message = facts.first_message(recorder)
    facts.fail(recorder, message, facts.tell(recorder, message, *tuples_of(message, parents)))
    return message["root"]


def tuples_of(message, parents):
    """The links and executions of a message's tuples."""
    root, task, links, executions = message["root"], message["task_id"], [], []
    for n, parent in enumerate(parents):
        edge, above = root + 1 + n, root if parent < 0 else root + 1 + parent
        bolt, at = f"bolt-{n % LEVELS}-0", n % TASKS
        links.append([root, edge, [above], "source", task, "default", bolt, at, [f"value {n}"]])
        executions.append([root, edge, bolt, at, message["emitted_ms"] + 5, 1.5, 1, "acked", ""])
    return links, executions


TREES = {
    "bushes": [-1 if n % 25 == 0 else n - n % 25 for n in range(1000)],  # 40 with 24 below each
    "binary": [(n - 1) // 2 for n in range(1000)],
    "star": [-1] * 1000,
    "chain": [n - 1 for n in range(1000)],
    "binary of 10,000": [(n - 1) // 2 for n in range(10_000)],
}
"""The most tuples that are stored of a message, in different forms; one has more, which are counted."""


def address_of(page, shown, name):
    """Go to the list of topologies; returns the part of the address that is a topology's."""
    page.goto(shown.address)
    link = page.get_by_role("link", name=name, exact=True).first
    link.wait_for()
    return link.get_attribute("href")


def draw_whole(page, shown, name, root, lines, record_property):
    """Open a trace and all of its tree, with so many lines at least, for little and within the page's width.

    Of time only the CPU of the tab is asserted, in units of a plain list that is drawn on the same machine.
    """
    address, costs = address_of(page, shown, name), Costs(page)
    tree = costs.of(f"location.hash = '{address}/trace/{root}'", "ul.tree li", 1)
    # Alike siblings without anything below are one line.
    whole = costs.of("document.querySelector('#open-all').click()", "ul.tree li strong", lines)
    page.wait_for_timeout(1500)  # drawn again by an event of the stream
    for what, cost in {"tree": tree, "whole tree": whole}.items():
        record_property(what, cost)
        assert cost["elements"] < 15_000, (what, cost)
        assert cost["lists"] < 6, (what, cost)
        assert cost["layouts"] < 20, (what, cost)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("form", TREES)
def test_the_largest_tree_is_opened_for_little_cpu_and_stays_readable(
    browser, shown, tmp_path, record_property, form
):
    """All of its branches at once. Readable: nothing is wider than the page, on a telephone too."""
    with (
        started(tmp_path, "large", given=wide("large", LEVELS, 1)) as topology,
        tab(browser, shown.url, "phone") as page,
    ):
        topology.fill()
        root = tree_of(topology.run.traces, TREES[form])
        draw_whole(page, shown, "large", root, 1000, record_property)
        assert page.locator("ul.tree details:not([open])").count() == 0
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


CLOSES_WHAT_IS_DRAWN = """
async () => {
    const { traces } = await import("/static/traces.js");
    const buttons = [...document.querySelectorAll("button")];
    const closeAll = buttons.find((each) => each.textContent === "Close all");
    closeAll.click();
    const opened = [];
    const set = (closed, edge, is) => {
        if (!is) opened.push(edge);
        return Reflect.set(closed, edge, is);
    };
    await new Promise((done, refuse) => {
        setTimeout(() => refuse(new Error("it was not drawn")), 120000);
        new MutationObserver((_, observer) => {
            if (!document.querySelector("ul.tree details[open]")) return;
            observer.disconnect();
            traces.closed = new Proxy({}, { set });
            closeAll.click();
            setTimeout(done, 1000);
        }).observe(document.body, { subtree: true, childList: true, attributes: true });
        document.querySelector("#open-all").click();
    });
    return opened.length;
}
"""
"""Close all in the task that has drawn it open; returns how often a branch was noted as open after that."""


def test_a_tree_that_is_closed_as_soon_as_it_is_drawn_stays_closed(browser, shown, tmp_path):
    """What is drawn in the middle of the browser's events would open all again."""
    with started(tmp_path, "closed") as topology, tab(browser, shown.url) as page:
        topology.fill()
        root = tree_of(topology.run.traces, TREES["binary"])
        page.evaluate(f"location.hash = '{address_of(page, shown, 'closed')}/trace/{root}'")
        page.locator("ul.tree details").first.wait_for()
        assert page.evaluate(CLOSES_WHAT_IS_DRAWN) == 0
        assert page.locator("ul.tree details[open]").count() == 0


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
def test_a_message_of_100_000_tuples_is_shown_for_little_cpu_and_stays_readable(
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
        draw_whole(page, shown, "many", trace.message.root, 1, record_property)
        for component, count in trace.more.items():
            line = page.get_by_text(f"{count:,} more tuples at {component} are not recorded.", exact=True)
            line.scroll_into_view_if_needed()
            assert line.is_visible()
        failed = page.get_by_text("the last of its path").first
        failed.scroll_into_view_if_needed()
        assert failed.is_visible()


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
        page.evaluate(f"location.hash = '{address_of(page, shown, 'large')}/trace/{root}'")
        page.locator("ul.tree li").first.wait_for()
        page.get_by_role("button", name="Open all").click()
        page.get_by_text("(value 999)", exact=True).wait_for()
        with page.expect_response(f"**/traces/{root}"):
            late[0].continue_()
        page.wait_for_timeout(1500)  # drawn again by an event of the stream
        assert page.locator("ul.tree .values").count() == 1000


def test_what_was_opened_stays_whole_and_becomes_as_new_as_the_rest(browser, shown, tmp_path):
    """The message is open at first, with more lines below it than a slice has, and then gets its verdict."""
    with (
        started(tmp_path, "large", given=wide("large", LEVELS, 1)) as topology,
        tab(browser, shown.url) as page,
    ):
        topology.fill()
        recorder = topology.run.traces
        message = facts.first_message(recorder)
        links, executions = tuples_of(message, [-1] * 300 + list(range(300)))
        facts.tell(recorder, message, links, [])
        page.evaluate(f"location.hash = '{address_of(page, shown, 'large')}/trace/{message['root']}'")
        page.locator("ul.tree li").first.wait_for()
        page.get_by_role("button", name="Open all").click()
        page.get_by_text("(value 599)", exact=True).wait_for()
        page.wait_for_timeout(2500)  # drawn again by events of the stream
        fates = "[...document.querySelectorAll('ul.tree .badge')].map((each) => each.textContent)"
        assert page.evaluate(fates) == ["not executed"] * 600
        facts.fail(recorder, message, facts.tell(recorder, message, [], executions))
        page.wait_for_function(f"() => {fates}.every((fate) => fate === 'acked')")
        assert page.evaluate(fates) == ["acked"] * 600
