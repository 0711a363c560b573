"""The page in a real browser, with drivers that have no Spark: hostile texts, requests, 200 components."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from acktree import TopologyBuilder
from acktree.core.stats.numbers import ReportedError
from tests.browser.browsers import tab
from tests.browser.costs import Costs
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


def test_200_components_are_drawn_for_little_cpu(browser, shown, tmp_path, record_property):
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
            assert cost["lists"] < 6, (name, cost)
            assert cost["layouts"] < 10, (name, cost)
