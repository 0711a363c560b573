"""The numbers that a browser shows are those of ``stats()``, REST and ``/metrics``, to the digit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("starlette")

from prometheus_client.parser import text_string_to_metric_families

from acktree.core.data.frames import Kind, WireRow
from acktree.core.stats.counters import Counters
from tests.browser import browsers
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.web.asking import page_at
from tests.unit.ui.web.frozen import NAME, Frozen, counted

pytestmark = pytest.mark.slow

TILES = {
    "Emitted": "emitted", "Acked": "acked", "Failed": "failed", "Timed out": "timed_out", "Open": "open",
    "Dead letters": "dead_letters",
}  # fmt: skip
COLUMNS = {"Emitted": "emitted", "Executed": "executed", "Acked": "acked", "Failed": "failed",
           "Timed out": "timed_out", "Errors": "errors"}  # fmt: skip
METRICS = {"emitted": "tuples_emitted", "executed": "tuples_executed", "errors": "errors"}


@pytest.fixture
def topology(tmp_path):
    """With numbers of every kind: no two are alike, and some have seven digits."""
    with counted(tmp_path) as running:
        more = Counters()
        for at, what in enumerate(("emitted", "acked", "failed", "timed_out")):
            more.add("source", 3, "default", what, 1_234_567 + 1000 * at)
        more.add("double", 1, "source:default", "executed", 7_654_321)
        running.count(more)
        letter = replace(LETTER, topology=NAME, spout="source")
        running.letters.put([replace(letter, root=root) for root in range(1, 1236)])
        yield running


@pytest.fixture
def frozen(topology):
    """One snapshot, which every question is answered with."""
    topology.door._observer._letters_at = -1e9  # letters are counted every two seconds
    return Frozen(topology.door._observer)


def digits(text):
    """A number as the page writes it; None for none."""
    return int(text.replace(",", "")) if text.replace(",", "").isdigit() else None


def rows(tab, table):
    """Row -> column -> text, of a table that the browser shows."""
    return tab.evaluate(
        """(table) => {
            const shown = [...document.querySelectorAll(`tbody[aria-label="${table}"] tr`)];
            const cells = (row) => [...row.cells].map((cell) => [cell.dataset.label, cell.innerText]);
            return Object.fromEntries(shown.map(
                (row) => [row.cells[0].innerText, Object.fromEntries(cells(row))]));
        }""",
        table,
    )


def samples(page):
    """(metric, component or spout, state) -> the sum over streams, of ``/metrics``."""
    found = {}
    for family in text_string_to_metric_families(page.ask("/metrics")[2].decode()):
        for sample in family.samples:
            labels = sample.labels
            key = sample.name.removeprefix("acktree_"), labels.get("component") or labels.get("spout")
            found[key] = found.get(key, 0) + sample.value
    return found


def test_the_numbers_in_the_browser_are_those_of_stats_rest_and_metrics(browser, shown, topology, frozen):
    snapshot, page = frozen.snapshot, page_at(shown)
    ours = page.json(f"/api/acktree/v1/topologies/{frozen.topology}")
    metrics = samples(page)
    stats = topology.handle.stats()
    with browsers.tab(browser, shown.url) as tab:
        tab.goto(shown.address)
        tab.get_by_role("link", name=NAME, exact=True).first.click()
        tab.locator("tbody[aria-label=Components] tr").first.wait_for()
        tiles = dict(
            zip(
                tab.locator(".tiles dt").all_inner_texts(),
                tab.locator(".tiles dd").all_inner_texts(),
                strict=True,
            )
        )
        drawn = {what: digits(tiles[title]) for title, what in TILES.items()}
        table = rows(tab, "Components")
    source = stats["source"]
    told = {what: getattr(source.total, what) for what in ("emitted", "acked", "failed", "timed_out")}
    assert drawn == told | {"open": source.open, "dead_letters": len(topology.letters)}
    assert drawn == snapshot.account() == ours["account"]
    assert (drawn["emitted"], drawn["dead_letters"]) == (1_234_567 + 1009, 1235)
    for what in ("acked", "failed", "timed_out"):
        assert drawn[what] == metrics[f"messages_{what}_total", "source"]
    assert drawn["open"] == metrics["messages_open", "source"]
    assert drawn["dead_letters"] == metrics["dead_letters", None]
    assert table.keys() == stats.components.keys() == {"source", "double"}
    for name, row in table.items():
        total = stats[name].total
        # A bolt has no messages that time out, and a spout executes nothing: those cells are empty.
        empty = {"Timed out"} if name == "double" else {"Executed"}
        for title, what in COLUMNS.items():
            shown_count = digits(row[title])
            if title in empty:
                assert row[title] == ""
                continue
            assert shown_count == getattr(total, what) == ours["components"][name]["total"][what], (
                name,
                what,
            )
            assert shown_count == getattr(snapshot.stats[name].total, what)
            messages = "messages" if name == "source" else "tuples"
            assert shown_count == metrics[f"{METRICS.get(what, f'{messages}_{what}')}_total", name]
    assert digits(table["source"]["Open"]) == source.open == ours["components"]["source"]["open"]
    assert digits(table["double"]["Tasks"]) == 2


def test_the_tasks_of_a_component_in_the_browser_are_those_of_stats_and_rest(
    browser, shown, topology, frozen
):
    path = f"/api/acktree/v1/topologies/{frozen.topology}/components/double?window=:run"
    ours, stats = page_at(shown).json(path), topology.handle.stats()["double"]
    with browsers.tab(browser, shown.url) as tab:
        tab.goto(shown.address)
        tab.get_by_role("link", name=NAME, exact=True).first.click()
        tab.locator("svg a.bolt").first.click()
        tab.get_by_label("Window").select_option(":run")
        tab.locator("tbody[aria-label=Tasks] tr").first.wait_for()
        tasks, streams = rows(tab, "Tasks"), rows(tab, "Output streams")
    assert tasks.keys() == {f"task {task}" for task in stats.tasks}
    for task, known in stats.tasks.items():
        row = tasks[f"task {task}"]
        for title in ("Emitted", "Transferred", "Executed", "Acked", "Failed"):
            what = title.lower()
            assert digits(row[title]) == getattr(known.total, what) == ours["tasks"][str(task)][what]
        assert digits(row["Held"]) == known.held
    emitted = stats.streams["default"].emitted
    assert digits(streams["default"]["Emitted"]) == emitted == ours["streams"]["default"]["emitted"]


def test_the_page_says_where_an_open_message_is(browser, shown, topology, frozen):
    """As a task said it, by the root of the message."""
    oldest = topology.run.oldest_open(3)
    said = json.dumps([["double", 2, 1, 1, [[1, [oldest[0].root]]]]]).encode()
    topology.run.results.note({Kind.STATISTICS: [WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, said, b"[]")]}, 0)
    topology.run.results._forgotten[oldest[1].root] = "double"
    with browsers.tab(browser, shown.url, "phone") as tab:
        tab.goto(shown.address)
        tab.get_by_role("link", name=NAME, exact=True).first.click()
        listed = tab.locator("tbody[aria-label='Oldest open messages'] tr")
        listed.first.wait_for()
        held, left, other = (listed.nth(at).locator("td[data-label='Held by']") for at in range(3))
        assert held.inner_text().split("\n")[-1].startswith("double task 2, ")
        assert left.inner_text().endswith("forgotten by double")
        assert other.inner_text() == ""
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        held.get_by_role("link", name="double").click()
        tab.get_by_role("heading", name="double").wait_for()
