"""What ``make page`` starts, in a real browser and for the programs that read the page's numbers.

The tests run in their order: the last one kills a topology.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from examples.page.page import ACKTREE, NAMES, page, topologies
from tests.browser.browsers import LOOKS, tab
from tests.services import streamparse
from tests.services.prometheus import Prometheus
from tests.services.servers import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment():
    """The variables of processes that see these topologies alone. A socket's path must be short."""
    folder = tempfile.mkdtemp(prefix="acktree-p-")
    yield os.environ | {"XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": f"{folder}/state"}
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def demo(environment, tmp_path_factory):
    with topologies(tmp_path_factory.mktemp("checkpoints"), environment):
        yield


@pytest.fixture(scope="module")
def shown(demo, environment):
    with page(environment=environment) as process:
        yield process


def acktree(environment, *command):
    """A command's exit code and its last line of JSON."""
    done = subprocess.run(
        [*ACKTREE, *command, "--json"], env=environment, check=False, capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def acked(environment):
    """How many messages of ``poison`` are acked."""
    return acktree(environment, "stats", "poison")[1]["account"]["acked"]


def needed(missing: str) -> None:
    """Skip, or in CI fail, where something is not installed."""
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--listne", 1)])
def test_make_page_explains_its_options_and_refuses_others_before_spark_starts(environment, option, code):
    command = [sys.executable, "-m", "examples.page.page", option]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == code
    assert "--listen" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Starting" not in done.stdout


# ---- programs that read numbers --------------------------------------------------------------------------


def test_promtool_accepts_the_metrics_and_prometheus_scrapes_both_topologies(shown):
    needed(Prometheus.missing())
    asked = Request(f"{shown.url}/metrics", headers={"Authorization": f"Bearer {shown.token}"})
    with urlopen(asked) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], check=False, input=text, capture_output=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    assert Prometheus.check_rules().returncode == 0
    with Prometheus.scraping(shown.url, shown.token) as prometheus:
        assert prometheus.await_scrapes(2) == "up"
        active = prometheus.query('acktree_topology_status{status="ACTIVE"} == 1')
        assert sorted(found["metric"]["topology"] for found in active) == sorted(NAMES)
        assert prometheus.query("sum(acktree_tuples_executed_total) > 0")
        assert {rule["health"] for rule in prometheus.rules()} == {"ok"}
        assert [alert for alert in prometheus.alerts() if alert["labels"]["alertname"] == "AcktreeGone"] == []


def test_streamparse_s_stats_reads_the_cluster_a_topology_and_a_component(shown, tmp_path):
    needed(streamparse.missing())
    project = streamparse.project(tmp_path, int(shown.url.rpartition(":")[2]), shown.token)

    def shows(options, titles, names):
        printed = streamparse.stats(project, *options)
        assert [title for title in titles if title not in printed] == []
        cells = {cell.strip() for line in printed.splitlines() for cell in line.split("|")}
        assert names <= cells

    shows([], ["Cluster summary", "Topology summary", "Supervisor summary"], {*NAMES})
    parts = {"sentences", "split", "count", "report", "archive"}
    topology = ["--name", "poison"]
    shows(topology, ["Topology stats", "Spouts (All time)", "Bolt (All time)"], parts)
    bolt = [*topology, "--component", "split"]
    shows(bolt, ["Bolt stats", "Input stats (All time)"], {"sentences", "long"})
    shows([*topology, "--component", "sentences"], ["Spout stats", "Executors (All time)"], {"default"})


# ---- a page's process that dies --------------------------------------------------------------------------


def test_a_page_that_is_killed_leaves_drivers_healthy_and_the_next_one_takes_over(
    browser, demo, environment, tmp_path
):
    listening = ("--listen", str(free_port()), "--token-file", str(tmp_path / "token"))
    seen = browser.new_page()
    seen.set_default_timeout(300_000)
    with page(*listening, environment=environment) as first:
        asked = Request(
            f"{first.url}/api/acktree/v1/stream", headers={"Authorization": f"Bearer {first.token}"}
        )
        streams = [urlopen(asked) for _ in range(5)]
        assert all(stream.readline() for stream in streams)
        seen.goto(first.address)
        seen.get_by_text("live", exact=True).wait_for()
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        seen.get_by_text("connection lost, trying again").wait_for()
        for stream in streams:
            stream.close()
    before = acked(environment)
    assert [acktree(environment, "health", name)[0] for name in NAMES] == [0, 0]
    with page(*listening, environment=environment) as second:
        assert (second.url, second.token) == (first.url, first.token)
        seen.get_by_text("live", exact=True).wait_for()  # the tab that was open goes on
        end = time.monotonic() + 300
        while acked(environment) <= before:
            assert time.monotonic() < end
        seen.close()


# ---- a person --------------------------------------------------------------------------------------------


def open_topology(page, name):
    page.get_by_role("link", name="acktree", exact=True).click()
    page.get_by_role("link", name=name, exact=True).first.click()
    page.locator("svg .name").first.wait_for()


def search_traces(page, verdict):
    """From a topology to a list of its traced messages."""
    page.get_by_role("link", name="search").click()
    page.get_by_label("Verdict").select_option(verdict)
    found = page.locator("tbody tr", has=page.locator(".badge.FAILED"))
    end = time.monotonic() + 120
    while True:  # the first ones have to time out
        page.get_by_role("button", name="Search").click()
        page.wait_for_timeout(500)
        if found.count() == page.locator("tbody tr").count() > 0:
            return found.first
        assert time.monotonic() < end, f"no traced message is {verdict}"


def open_view(page, view):
    """From anywhere to a view of ``poison``, opened as far as it opens."""
    page.keyboard.press("Escape")  # out of the question before
    if view == "list":
        page.get_by_role("link", name="acktree", exact=True).click()
        page.get_by_role("heading", name="Topologies").wait_for()
    elif view == "token":  # as a tab has none that was opened without it
        page.evaluate("sessionStorage.clear()")
        page.goto(page.evaluate("location.origin"))
        page.get_by_role("heading", name="A token is needed").wait_for()
        page.get_by_label("Token").wait_for()
    else:
        if view != "trace":  # it is of the search before
            open_topology(page, "poison")
        OPENED[view](page)


def open_errors(page):
    section = page.locator("section", has=page.get_by_role("heading", name="Last errors"))
    section.locator("details").first.wait_for()


def open_component(page):
    page.locator("svg a.bolt", has_text="split").click()
    page.get_by_role("heading", name="split").wait_for()
    page.locator("details summary").first.click()
    page.get_by_text("Traceback (most recent call last)").first.wait_for()


def open_acker(page):
    page.get_by_label("System").check()
    page.locator("svg a.acker").click()
    page.get_by_role("heading", name="__acker").wait_for()
    page.locator("tbody[aria-label='What it was sent'] tr").first.wait_for()


def open_letters(page):
    page.locator(".tiles a[href$=letters]").click()
    page.locator("tbody summary").first.click()
    page.locator("tbody pre").first.wait_for()


def open_trace(page):
    page.locator("tbody tr a").first.click()
    page.locator("ul.tree").first.wait_for()
    page.locator("details summary").first.click()


def open_events(page):
    log_events(page)
    page.locator(".tiles a[href$=events]").click()
    page.locator("tbody[aria-label='Event log'] tr").first.wait_for()


def open_question(page, name):
    page.get_by_role("button", name=name, exact=True).click()
    page.get_by_role("dialog").wait_for()


OPENED = {
    "topology": open_errors,
    "component": open_component,
    "acker": open_acker,
    "letters": open_letters,
    "traces": lambda page: search_traces(page, "FAILED"),
    "trace": open_trace,
    "events": open_events,
    "debug": lambda page: open_question(page, "Debug"),
    "kill": lambda page: open_question(page, "Kill"),
}
VIEWS = ("list", *OPENED, "token")


def picture(page, file):
    """What is in view, without the names of this machine, also when it is drawn again."""
    page.evaluate("""() => {
        const hide = () => {
            for (const line of document.querySelectorAll("p.wrap, pre")) {
                const text = line.firstChild;
                const hidden = text.data.replace(/process .*$/, "process 4711 on example")
                    .replace(/File ".*\\/(acktree|examples)\\//g, 'File "$1/');
                if (text.data !== hidden) text.data = hidden;
            }
        };
        hide();
        const all = { subtree: true, childList: true, characterData: true };
        new MutationObserver(hide).observe(document.body, all);
    }""")
    page.screenshot(path=file)


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious_in_any_view(browser, shown, look, request):
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415  # may be missing

    axe, found = Axe(), []
    pictures = request.config.getoption("--pictures")
    with tab(browser, shown.url, look, expected=frozenset({401})) as page:
        page.goto(shown.address)
        for view in VIEWS:
            open_view(page, view)
            if pictures:
                page.wait_for_timeout(20_000 if view == "topology" else 0)  # the chart has something to show
                name = "page" if view == "topology" else f"page-{view}"
                picture(page, Path(pictures) / f"{name}-{look}.png")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is too wide"
            found += [
                f"{view}: {fault['id']}: {node['html'][:200]}"
                for fault in axe.run(page).response["violations"]
                if fault["impact"] in {"serious", "critical"}
                for node in fault["nodes"]
            ]
    assert found == []


def test_a_person_finds_a_failure_redrives_it_and_gives_orders(browser, shown):
    with tab(browser, shown.url) as page:
        page.goto(shown.address)
        open_topology(page, "poison")
        heat_changes_with_what_it_is_of(page)
        page.locator("svg a.bolt", has_text="split").click()
        page.get_by_role("heading", name="split").wait_for()
        page.locator("details summary").first.click()
        traceback = page.locator("pre", has_text="Traceback (most recent call last)").first
        assert "ValueError: <script>alert('poison')</script>" in traceback.inner_text()
        open_topology(page, "poison")
        find_trace(page, "FAILED")
        page.get_by_text("ValueError: <script>").first.wait_for()
        open_topology(page, "forgets")
        find_trace(page, "TIMED_OUT")
        page.get_by_role("heading", name="1 not acked").wait_for()
        page.locator("li", has=page.get_by_role("link", name="forgetful")).get_by_text("not acked").wait_for()
        open_topology(page, "poison")
        delete(page)
        redrive(page)
        log_events(page)
        orders(page)
    # A question on its way while the driver ends has no answer.
    with tab(browser, shown.url, expected=frozenset({404, 409, 504})) as page:
        page.goto(shown.address)
        kill(page)


def heat_changes_with_what_it_is_of(page):
    """A spout is never busy, and a message takes longer than a millisecond."""
    fill = "getComputedStyle(document.querySelector('svg a.spout rect')).fill"
    page.locator("svg a.spout.heat-0").wait_for()
    idle = page.evaluate(fill)
    page.get_by_label("Heat by").select_option("latency")
    page.locator("svg a.spout:not(.heat-0)").wait_for()
    page.wait_for_function(f"idle => {fill} !== idle", arg=idle)
    page.get_by_label("Heat by").select_option("capacity")
    page.locator("svg a.spout.heat-0").wait_for()
    page.wait_for_function(f"idle => {fill} === idle", arg=idle)
    emitted = "document.querySelector('.tiles dd').innerText"
    page.wait_for_function(f"before => {emitted} !== before", arg=page.evaluate(emitted))


def find_trace(page, verdict):
    """Find a message by its verdict, then by its id, and open its tree by keyboard."""
    message_id = search_traces(page, verdict).locator("a").inner_text()
    page.get_by_label("Message id").fill(message_id)
    page.keyboard.press("Enter")
    page.wait_for_function(
        "id => [...document.querySelectorAll('tbody tr a')].every(link => link.innerText === id)",
        arg=message_id,
    )
    page.locator("tbody tr", has=page.locator(".badge.FAILED")).first.locator("a").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Message {message_id}").wait_for()
    page.locator("ul.tree li").first.wait_for()


def delete(page):
    page.locator(".tiles a[href$=letters]").click()
    page.get_by_label("select letter 2", exact=True).check()
    page.get_by_role("button", name="Delete 1 selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("1 dead letters were deleted").wait_for()
    page.get_by_label("select letter 2", exact=True).wait_for(state="detached")


def redrive(page):
    page.get_by_label("select letter 1", exact=True).check()
    page.get_by_role("button", name="Redrive 1 selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    page.get_by_text("1 dead letters were sent again").wait_for()
    row = page.locator("tbody tr", has=page.get_by_label("select letter 1", exact=True))
    page.wait_for_function("row => !row.lastElementChild.innerText.endsWith('no')", arg=row.element_handle())


def log_events(page):
    """Let a topology log what it emits until there is something, and no longer."""
    open_topology(page, "poison")
    for pressed, said in (("Log", "Tuples are logged"), ("Stop logging", "No tuples are logged")):
        page.get_by_role("button", name="Debug").click()
        page.get_by_role("dialog").get_by_role("button", name=pressed, exact=True).click()
        page.get_by_text(said).wait_for()
        if pressed == "Log":
            page.locator(".tiles a[href$=events]").click()
            page.locator("tbody[aria-label='Event log'] tr").first.wait_for()
            open_topology(page, "poison")


def orders(page):
    """Deactivate and activate."""
    open_topology(page, "poison")
    page.get_by_role("button", name="Deactivate", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Deactivate").click()
    page.locator("h1 .badge.INACTIVE").wait_for()
    page.get_by_role("button", name="Activate", exact=True).click()
    page.locator("h1 .badge.ACTIVE").wait_for()


def kill(page):
    """By keyboard."""
    open_topology(page, "poison")
    page.get_by_role("button", name="Kill").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the dialog's first button has the focus
    page.locator("h1 .badge.STOPPED").wait_for(timeout=120_000)
