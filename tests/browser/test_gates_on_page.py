"""Gates in a real browser: what goes through them is drawn, and messages are those of spouts."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")

from tests.browser import browsers
from tests.unit.ui.driver_without_spark import started
from tests.unit.ui.test_gate_numbers import GATE, ROWS, counts, snapshot_of, topology

pytestmark = pytest.mark.slow


@pytest.fixture
def running(tmp_path):
    with started(tmp_path / "cp", "gated", given=topology()) as found:
        found.fill()
        found.count(counts())
        snapshot_of(found)
        yield found


@pytest.mark.parametrize("look", browsers.LOOKS)
def test_the_graph_draws_what_goes_through_gates(browser, shown, running, look, tmp_path):
    with browsers.tab(browser, shown.url, look) as tab:
        tab.goto(shown.address)
        tab.get_by_role("link", name="gated", exact=True).first.click()
        tab.locator("svg .name").first.wait_for()
        names = tab.locator("svg .name").all_text_contents()
        assert names == ["source", "double", "gate", "count", "gate", "table"]
        drawn = [title.split(":")[0] for title in tab.locator("svg g title").all_text_contents()]
        assert sorted(drawn) == sorted([
            "source to double", f"double to {GATE}", f"{GATE} to count", f"count to {ROWS}",
            f"{ROWS} to table",
        ])  # fmt: skip
        flows = dict(title.rpartition(", ")[::2] for title in tab.locator("svg g title").all_text_contents())
        for edge in (f"double to {GATE}: default by gate", f"{GATE} to count: default by fields n"):
            assert flows[edge] != "0 tuples a second"
        tiles = dict(
            zip(
                tab.locator(".tiles dt").all_inner_texts(), tab.locator(".tiles dd").all_inner_texts(),
                strict=True,
            )
        )  # fmt: skip
        assert {name: tiles[name] for name in ("Emitted", "Acked", "Failed", "Timed out", "Open")} == {
            "Emitted": "100", "Acked": "90", "Failed": "6", "Timed out": "3", "Open": "10",
        }  # fmt: skip
        tab.get_by_text(
            "Passed gates in run 1: 50 emitted, 40 acked, of which 11 superseded; 7 failed, 2 timed out, "
            "0 open, 14 wait."
        ).wait_for()
        tab.screenshot(path=tmp_path / "topology.png", full_page=True)
        tab.locator(f'svg a[aria-label^="gate {ROWS}:"]').click()
        tab.get_by_role("heading", name=ROWS).wait_for()
        assert tab.get_by_role("link", name="count", exact=True).count() == 1
        found = dict(
            zip(
                tab.locator(".tiles dt").all_inner_texts(), tab.locator(".tiles dd").all_inner_texts(),
                strict=True,
            )
        )  # fmt: skip
        assert (found["Acked"], found["Superseded"], found["Waiting"]) == ("20", "6", "7")
        tab.screenshot(path=tmp_path / "gate.png", full_page=True)
        tab.goto(f"{shown.address.partition('?')[0]}#/{snapshot_of(running).id}/component/count")
        row = tab.locator("tbody[aria-label=Inputs] tr")
        row.wait_for()
        assert row.locator("td").all_inner_texts()[:4] == [GATE, "default", "fields n", "20"]
