"""The page in a real browser, over a driver without Spark: what an operator sees, by keyboard too."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from acktree import ConnectorError, TopologyBuilder
from acktree.core.data.frames import Kind, WireRow
from acktree.core.data.instruments import Increment
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import Lag, ReportedError
from tests.browser import browsers
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import Double, Numbers, started, wide

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def running(tmp_path):
    """A running topology whose spout has emitted all that it may."""
    with started(tmp_path / "running") as topology:
        topology.fill()
        yield topology


@pytest.fixture
def tab(browser, shown):
    """A tab on the overview. An order that is refused is answered with 409."""
    with browsers.tab(browser, shown.url, expected=frozenset({409})) as page:
        page.goto(shown.address)
        yield page


def to_topology(tab, name="numbers"):
    tab.get_by_role("link", name=name, exact=True).first.click()
    tab.locator("svg .name").first.wait_for()


def shows(read, expected):
    """Wait until the page reads as expected: what it shows first may be from before the change."""
    end = time.monotonic() + 120
    while (found := read()) != expected:
        assert time.monotonic() < end, f"{found} instead of {expected}"
        time.sleep(0.05)


def test_nothing_that_is_used_is_inside_something_else_that_is(running, tab):
    at_ms = time.time_ns() // 1_000_000
    running.run.errors.add(ReportedError("double", 1, NASTY, at_ms, f"Traceback\n{NASTY}"))
    running.door._observer.forget()
    to_topology(tab)
    summary = tab.locator("summary", has_text=NASTY)
    summary.wait_for()
    inside = "summary a, summary button, summary input, a a, a button, button a, label a"
    assert tab.locator(inside).count() == 0
    summary.focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "double"
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="double").wait_for()
    assert tab.locator("img").count() == 0


def test_what_is_open_and_focused_stays_when_more_is_shown_above_it(running, tab):
    def report(reason, at_ms):
        running.run.errors.add(ReportedError("double", 1, reason, at_ms, f"Traceback of {reason}"))
        running.door._observer.forget()

    now_ms = time.time_ns() // 1_000_000
    report("first", now_ms)
    to_topology(tab)
    tab.locator("svg a.bolt").click()
    tab.get_by_role("heading", name="double").wait_for()
    summary = tab.locator("summary", has_text="first")
    summary.focus()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    tab.get_by_text("Traceback of first").wait_for()
    with_engine_numbers(running)  # a section of latencies is shown
    report("second", now_ms + 1)
    tab.locator("summary", has_text="second").wait_for()
    tab.get_by_role("heading", name="How latencies are spread").wait_for()
    report("first", now_ms + 2)
    tab.locator("summary", has_text="first  \N{MULTIPLICATION SIGN} 2").wait_for()
    opened = tab.locator("details[open]")
    assert [opened.count(), opened.locator("pre").inner_text()] == [1, "Traceback of first"]
    assert tab.evaluate("document.activeElement.textContent") == "Traceback of first"


def test_errors_of_one_exception_of_a_component_are_one_line_with_each_reason_once(running, tab):
    now_ms = time.time_ns() // 1_000_000
    for n, reason in enumerate(["HTTPError: /a", "KeyError: 'b'", "HTTPError: /c", "HTTPError: /a", "late"]):
        traceback = None if reason == "late" else f"Traceback of {n}"
        running.run.errors.add(ReportedError("double", 1, reason, now_ms + n, traceback))
    running.door._observer.forget()
    to_topology(tab)

    def summaries():
        lines = tab.locator("summary", has_text="task 1").all_text_contents()
        return [text.split("task 1: ")[1] for text in lines]

    shows(summaries, ["late", "HTTPError: /a  \N{MULTIPLICATION SIGN} 3", "KeyError: 'b'"])
    tab.locator("summary", has_text="HTTPError").click()
    reasons = tab.get_by_role("list", name="Reasons").locator("li").all_text_contents()
    assert reasons == ["HTTPError: /a  \N{MULTIPLICATION SIGN} 2", "HTTPError: /c"]
    assert tab.locator("details[open] pre").inner_text() == "Traceback of 3"


def test_the_list_tells_topologies_of_one_name_apart(tab, tmp_path):
    with started(tmp_path / "one", "same"), started(tmp_path / "two", "same"):
        rows = tab.locator("tbody[aria-label=Topologies] tr")
        shows(lambda: rows.filter(has_text=str(tmp_path / "one")).count(), 1)
        shows(lambda: rows.filter(has_text=str(tmp_path / "two")).count(), 1)


@pytest.mark.parametrize(("bolts", "fits"), [(4, True), (5, True), (9, False)])
def test_a_row_of_components_fits_into_the_page(tab, tmp_path, bolts, fits):
    assert tab.viewport_size["width"] == 1280
    name = f"row-{bolts}"
    with started(tmp_path, name, given=wide(name, bolts, 1)):
        to_topology(tab, name)
        graph = tab.get_by_role("region", name="Graph, scrolls")
        widths = graph.evaluate("each => [each.scrollWidth, each.clientWidth]")
        assert (widths[0] <= widths[1]) == fits
        boxes = [box.bounding_box() for box in graph.locator("rect.box").all()]
        assert all(box["width"] >= 148 for box in boxes)
        lefts = sorted(box["x"] for box in boxes)
        assert min(right - left for left, right in pairwise(lefts)) >= 148 + 40


def test_the_page_has_no_outline_after_a_link_and_a_control_has_one(running, tab):
    tab.get_by_role("link", name="numbers", exact=True).first.focus()
    tab.keyboard.press("Enter")
    tab.locator("svg .name").first.wait_for()
    shows(lambda: tab.evaluate("document.activeElement.id"), "main")
    assert tab.evaluate("document.activeElement.matches(':focus-visible')")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"
    tab.keyboard.press("Tab")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def held(tab, address):
    """The first request of such an address, which waits until it is continued."""
    first = []
    tab.route(address, lambda route: route.continue_() if first else first.append(route))
    return first


def test_a_control_keeps_the_focus_when_the_view_is_loaded_after_it_was_drawn(running, tab):
    """The link asks for the history, whose answer is late; meanwhile the stream draws the view."""
    histories, streams = held(tab, "**/history?*"), held(tab, "**/stream?topology=*")
    with tab.expect_request("**/history?*"), tab.expect_request("**/stream?topology=*"):
        tab.get_by_role("link", name="numbers", exact=True).first.click()
    streams[0].continue_()
    tab.locator("svg .name").first.wait_for()
    tab.get_by_role("button", name="Debug").focus()
    with tab.expect_response("**/history?*"):
        histories[0].continue_()
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")
    assert tab.evaluate("document.activeElement.textContent") == "Debug"


def test_debug_is_switched_on_and_off_by_keyboard_and_is_shown(running, tab):
    to_topology(tab)
    tab.get_by_role("button", name="Debug").focus()
    tab.keyboard.press("Enter")
    dialog = tab.get_by_role("dialog")
    dialog.get_by_label("Component").select_option("double")
    percent = dialog.get_by_label("Percent of the messages")
    percent.fill("500")
    percent.press("Enter")
    assert dialog.is_visible()
    assert running.run.orders.order.debug == {}
    percent.fill("5")
    percent.press("Enter")
    tab.get_by_text("Tuples are logged from").wait_for()
    assert running.run.orders.order.debug == {"double": 0.05}
    tab.locator(".tiles a[href$=events]").click()
    tab.get_by_text("Logged: double 5 %").wait_for()
    tab.go_back()
    tab.get_by_role("button", name="Debug").click()
    dialog.get_by_role("button", name="Stop logging").click()
    tab.get_by_text("No tuples are logged any more.").wait_for()
    assert running.run.orders.order.debug == {}


def test_the_share_of_traced_messages_is_changed(running, tab):
    to_topology(tab)
    tab.locator(".tiles a[href$=traces]").click()
    tab.get_by_role("spinbutton", name="Trace").fill("25")
    tab.get_by_role("button", name="Set").click()
    tab.get_by_text("The share of traced messages is changed").wait_for()
    assert running.run.orders.order.trace_rate == 0.25


def test_a_message_is_watched_for_a_time(running, tab):
    to_topology(tab)
    tab.locator(".tiles a[href$=traces]").click()
    tab.get_by_label("Watch the next attempts of").fill("<b>line-7")
    tab.get_by_role("spinbutton", name="for").fill("20")
    tab.get_by_role("button", name="Watch").click()
    tab.get_by_text("The next attempts of <b>line-7 are traced, for 20 s.").wait_for()
    assert running.handle.traces.watched.keys() == {"<b>line-7"}
    assert running.handle.traces.watched["<b>line-7"] <= 20


def with_engine_numbers(topology):
    """As a micro-batch brings them: held tuples, latencies, what the acker was sent, a lost worker."""
    counters = Counters()
    counters.add("double", 1, "source:default", "executed", 100)
    counters.add_latency("double", 1, "source:default", "execute_ms", 90 * 0.1, 90)
    counters.add_latency("double", 1, "source:default", "execute_ms", 10 * 30.0, 10)
    counters.add_latency("double", 1, "source:default", "process_ms", 100 * 0.5, 100)
    counters.merge(Counters.of([
        (("__acker", 0, "source:__ack_init", "executed"), 100),
        (("__acker", 0, "double:__ack_ack", "executed"), 98),
        (("__acker", 0, "double:__ack_fail", "executed"), 2),
        (("__acker", 0, "__ack_ack", "emitted"), 97),
        (("__acker", 0, "__ack_fail", "emitted"), 2),
        (("__acker", 0, "", "settle_us"), 14_000),
        (("__acker", 0, "", "settle_b14"), 1),
        (("__system", -1, "", "workers_lost"), 3),
    ]))  # fmt: skip
    now_ms = time.time_ns() // 1_000_000
    held = json.dumps([["double", 1, 4, now_ms - 90_000], ["double", 2, 0, None]]).encode()
    row = WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, held, counters.to_bytes())
    topology.run.results.note({Kind.STATISTICS: [row]}, 0)
    topology.keep_counts()
    topology.door._observer.forget()


def cells(tab, table, row):
    """The texts of a row that begins with a text."""
    found = tab.locator(f"tbody[aria-label='{table}'] tr", has=tab.get_by_text(row, exact=True)).first
    found.wait_for()
    return found.locator("td").all_inner_texts()


def tiles(tab):
    return dict(
        zip(
            tab.locator(".tiles dt").all_inner_texts(),
            tab.locator(".tiles dd").all_inner_texts(),
            strict=True,
        )
    )


def test_the_acker_is_shown_behind_a_switch_and_has_a_page(running, tab):
    with_engine_numbers(running)
    to_topology(tab)
    assert "__acker" not in tab.locator("main").inner_text()
    tab.get_by_label("System").focus()
    tab.keyboard.press("Space")
    tab.locator("svg a.acker").wait_for()
    assert tab.locator("svg path.flow").count() == 1 + 2  # source to double, and both to the acker
    shows(lambda: cells(tab, "Components", "__acker")[3:6], ["200", "97", "2"])
    tab.locator("svg a.acker").focus()
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="__acker").wait_for()
    tab.get_by_text("Inits", exact=True).wait_for()
    assert [tiles(tab)[name] for name in ("Inits", "Acks", "Fails")] == ["100", "98", "2"]
    assert cells(tab, "What it was sent", "__ack_init") == ["source", "__ack_init", "100"]
    assert cells(tab, "Verdicts", "acked") == ["acked", "97"]
    assert cells(tab, "Latencies", "Acker, a micro-batch")[1:3] == ["1", "< 16 ms"]
    tab.get_by_role("link", name="numbers", exact=True).click()
    tab.get_by_label("System").uncheck()
    tab.locator("svg a.acker").wait_for(state="detached")


def test_held_tuples_are_shown_by_task_with_the_oldest_age(running, tab):
    to_topology(tab)
    tab.locator("svg a.bolt").click()
    tab.locator("tbody[aria-label=Tasks] tr").first.wait_for()
    assert "Held" not in tiles(tab)  # no bolt has run
    with_engine_numbers(running)
    tab.locator("th", has_text="Oldest held").wait_for()
    assert tiles(tab)["Held"] == "4"
    assert re.fullmatch(r"1m \d+s", tiles(tab)["Oldest held"])
    assert cells(tab, "Tasks", "task 1")[-2] == "4"
    assert re.fullmatch(r"1m \d+s", cells(tab, "Tasks", "task 1")[-1])
    assert cells(tab, "Tasks", "task 2")[-2:] == ["0", "\N{EN DASH}"]


def test_a_spout_s_page_says_why_it_was_not_asked(running, tab):
    """In the window that it shows first and in others: the spout itself is blocked, then deactivated."""
    to_topology(tab)
    tab.locator("svg a.spout").click()
    row = tab.locator("tbody[aria-label='Not asked'] tr")
    row.filter(has_text="as many messages are open").wait_for()
    running.handle.deactivate()
    for window in (":all-time", ":run", "10", "600"):
        tab.get_by_label("Window").select_option(window)
        for why in ("as many messages are open", "it is deactivated"):
            row.filter(has_text=why).wait_for()
            _, time_said, share, by_task = row.filter(has_text=why).locator("td").all_inner_texts()
            assert re.search("[1-9]", time_said)
            assert share.endswith(" %")
            assert by_task.startswith("task 3: ")
    assert tab.get_by_text("It was asked all the time.").count() == 0


class Away(Numbers):
    """Its queue does not answer."""

    def next_tuple(self):
        raise ConnectorError("no connection", "the queue", "start it", can_retry=True)


def test_a_spout_s_page_says_why_messages_failed_and_which_partitions_they_wait_in(running, tab):
    counters = Counters()
    counters.add_failed("source", 3, "default", "EXCEPTION", 1200)
    counters.add_failed("source", 3, "default", NASTY, 1)
    running.run.threads.by_task[3].task.counters.merge(counters)
    running.run.threads.by_task[3].task.lag = Lag(7, {"orders-0": 3, NASTY: 4})
    running.door._observer.forget()
    to_topology(tab)
    tab.locator("svg a.spout").click()
    tab.get_by_label("Window").select_option(":run")
    causes = tab.locator("tbody[aria-label=Causes] tr")
    causes.first.wait_for()
    assert causes.all_inner_texts() == [f"default\t{NASTY}\t1", "default\tEXCEPTION\t1,200"]
    lags = tab.locator("tbody[aria-label=Lag] tr")
    lags.first.wait_for()
    assert lags.all_inner_texts() == [f"{NASTY}\t4", "orders-0\t3"]
    assert tab.locator("img").count() == 0


def test_an_outage_of_a_spout_is_shown(tab, tmp_path):
    builder = TopologyBuilder("away")
    builder.set_spout("source", Away())
    builder.set_bolt("double", Double()).shuffle_grouping("source")
    with started(tmp_path, "away", given=builder.create_topology()):
        to_topology(tab, "away")
        tab.locator(".note.bad", has_text="no connection").wait_for()
        tab.locator("svg a.spout").click()
        tab.locator(".note.bad", has_text="start it").wait_for()


def bars(tab):
    """The bars of the last micro-batch's time, from top to bottom, each with what stands beside it."""
    texts = tab.locator("svg.phases text").all_text_contents()
    return list(zip(texts[::2], texts[1::2], strict=True))


def test_each_level_the_acker_and_the_log_have_a_bar_of_the_last_micro_batch(running, tab):
    results = running.run.results
    results.note_parts({"level_0": 60_000, "level_1": 250, "log": 2_000})
    results.times.add({"acker": 12_700})
    results.times.keep(7)
    running.spark_phases = 7, {"addBatch": 200, "commitOffsets": 15, "latestOffset": 0, "triggerExecution": 9}
    to_topology(tab)
    expected = [
        ("exchange and tasks", "125 ms"), ("level 0", "60 ms"), ("commit", "15 ms"), ("acker", "13 ms"),
        ("log", "2 ms"), ("level 1", "0.3 ms"), ("admission", "0 ms"),
    ]  # fmt: skip
    shows(lambda: bars(tab), expected)
    said = ", ".join(f"{name} {ms}" for name, ms in expected)
    assert tab.get_by_role("img", name=said, exact=True).count() == 1


def test_a_micro_batch_of_which_spark_alone_tells_has_one_bar_for_all_levels(running, tab):
    """As of a driver of an earlier release, and of the first micro-batches."""
    running.spark_phases = 7, {"addBatch": 200, "commitOffsets": 15, "triggerExecution": 215}
    to_topology(tab)
    shows(lambda: bars(tab), [("levels and acker", "200 ms"), ("commit", "15 ms")])


def test_metrics_of_a_user_are_called_those_of_all_runs(running, tab):
    running.measure("double", 1, {"lines": Increment("counter", 7)})
    running.door._observer.forget()
    to_topology(tab)
    tab.locator("svg a.bolt").click()
    assert cells(tab, "Metrics", "lines")[:3] == ["lines", "counter", "7"]
    tab.get_by_text("Of all runs on the checkpoint, whatever the window is").wait_for()
    assert tab.get_by_text("Metrics of this run").count() == 0


def test_percentiles_of_latencies_are_shown(running, tab):
    with_engine_numbers(running)
    running.run.threads.by_task[3].task.complete_ms.add(100, 99)
    running.run.threads.by_task[3].task.complete_ms.add(5000, 1)
    running.door._observer.forget()
    to_topology(tab)
    tab.locator("svg a.bolt").click()
    execute = ["Execute", "100", "< 0.1 ms", "< 0.1 ms", "< 33 ms"]
    shows(lambda: cells(tab, "Latencies", "Execute"), execute)
    assert cells(tab, "Latencies", "Process")[:3] == ["Process", "100", "< 0.5 ms"]
    tab.get_by_role("link", name="numbers", exact=True).click()
    tab.locator("svg a.spout").click()
    shows(lambda: cells(tab, "Latencies", "Complete"), ["Complete", "100", "101 ms", "101 ms", "101 ms"])
    tab.get_by_label("Window").select_option("600")
    tab.get_by_text("is known of this run and of all runs").wait_for()


def test_lost_workers_are_shown(running, tab):
    with_engine_numbers(running)
    to_topology(tab)
    shows(lambda: tiles(tab).get("Workers lost"), "3")
    tab.locator(".tiles .bad", has_text="Workers lost").wait_for()


def with_letters(topology, name):
    letter = replace(LETTER, topology=name, spout="source", reason=NASTY)
    topology.letters.put([replace(letter, root=root) for root in range(1, 5)])


def test_letters_are_deleted_with_the_count_that_was_seen(tab, tmp_path):
    with started(tmp_path, "purged") as topology:
        with_letters(topology, "purged")
        to_topology(tab, "purged")
        tab.locator(".tiles a[href$=letters]").click()
        tab.get_by_label("select letter 2", exact=True).check()
        tab.get_by_role("button", name="Delete 1 selected").click()
        tab.get_by_role("dialog").get_by_role("button", name="Delete").click()
        tab.get_by_text("1 dead letters were deleted.").wait_for()
        assert len(topology.letters) == 3
        tab.get_by_role("button", name="Delete all 3 that match").click()
        topology.letters.purge(ids=[1])
        tab.get_by_role("dialog").get_by_role("button", name="Delete").click()
        refused = tab.get_by_text("2 dead letters match now, and not 3")
        refused.wait_for()
        assert len(topology.letters) == 2
        topology.letters.purge(ids=[3])
        tab.get_by_text("1 match", exact=True).wait_for()
        assert refused.is_visible()  # also after what is shown was loaded again


def test_letters_are_found_by_what_people_call_their_message(tab, tmp_path):
    with started(tmp_path, "labelled") as topology:
        letter = replace(LETTER, topology="labelled", spout="source")
        topology.letters.put([replace(letter, root=root, label=f"order-{root}") for root in range(1, 12)])
        to_topology(tab, "labelled")
        tab.locator(".tiles a[href$=letters]").click()
        tab.get_by_text("11 match").wait_for()
        tab.get_by_label("Label").fill("order-1")
        tab.get_by_label("Label").press("Tab")
        tab.get_by_text("1 match", exact=True).wait_for()
        tab.get_by_text(f"order-1 {LETTER.message_id_repr}", exact=True).wait_for()


def test_letters_that_were_chosen_in_one_topology_are_not_chosen_in_another(tab, tmp_path):
    with started(tmp_path / "one", "one") as one, started(tmp_path / "other", "other") as other:
        for topology, name in ((one, "one"), (other, "other")):
            with_letters(topology, name)
        for name in ("one", "other"):
            tab.evaluate("() => { location.hash = '#/'; }")
            to_topology(tab, name)
            tab.locator(".tiles a[href$=letters]").click()
            choice = tab.get_by_label("select letter 1", exact=True)
            choice.wait_for()
            assert not choice.is_checked()
            choice.check()
        tab.get_by_role("button", name="Delete 1 selected").click()
        tab.get_by_text("Delete 1 dead letters of other for ever?").wait_for()
        tab.get_by_role("dialog").get_by_role("button", name="Delete").click()
        tab.get_by_text("1 dead letters were deleted.").wait_for()
        assert (len(one.letters), len(other.letters)) == (4, 3)


def test_an_address_that_cannot_be_read_shows_the_first_page(tab):
    tab.evaluate("() => { location.hash = '#/%'; }")
    tab.locator("h1", has_text=re.compile("Topologies|No topology is known")).wait_for()


def test_letters_of_a_stopped_topology_are_ordered_for_the_next_run(tab, tmp_path):
    with started(tmp_path, "over") as topology:
        with_letters(topology, "over")
    to_topology(tab, "over")
    tab.locator(".tiles a[href$=letters]").click()
    tab.get_by_text("Nobody runs this topology").wait_for()
    tab.get_by_role("button", name="Redrive all 4 that match").click()
    tab.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    tab.get_by_text("The next run sends 4 dead letters again.").wait_for()
    tab.get_by_text("4 wait for it").wait_for()


def test_letters_that_were_sent_before_are_not_among_all_that_match(tab, tmp_path):
    with started(tmp_path, "again") as topology:
        with_letters(topology, "again")
        topology.letters.mark_redriven([1], 1)
        topology.letters.mark_settled([1], 2)
        topology.fill()
        to_topology(tab, "again")
        tab.locator(".tiles a[href$=letters]").click()
        tab.get_by_role("button", name="Redrive 3 that match and were not sent before").click()
        tab.get_by_role("dialog").get_by_role("button", name="Redrive").click()
        tab.get_by_text("3 dead letters were sent again.").wait_for()
        tab.get_by_role("button", name="Redrive 0 that match and were not sent before").wait_for()
        tab.get_by_label("Redriven").select_option("true")
        tab.get_by_role("button", name="Redrive all 4 that match").wait_for()


def test_a_kill_waits_as_long_as_it_is_told(tab, tmp_path):
    with started(tmp_path, "killed") as topology:
        topology.fill()
        to_topology(tab, "killed")
        tab.get_by_role("button", name="Kill").focus()
        tab.keyboard.press("Enter")
        tab.get_by_label("Wait at most").fill("0")
        tab.keyboard.press("Enter")
        tab.locator("h1 .badge.STOPPED").wait_for()


def test_a_topology_of_two_hundred_components_is_listed_by_number(tab, tmp_path):
    with started(tmp_path, "wide", given=wide("wide", 20, 10)):
        to_topology(tab, "wide")
        drawn = tab.locator("svg .name").all_inner_texts()
        listed = tab.locator("tbody[aria-label=Components] td.head").all_inner_texts()
        assert len(drawn) == len(listed) == 201
        assert listed[:12] == ["source", *(f"bolt-0-{at}" for at in range(10)), listed[11]]
        assert re.fullmatch(r"bolt-1-\d", listed[11])
        tab.get_by_label("Heat by").select_option("latency")
        tab.locator("text=10 s").first.wait_for()
        assert tab.locator("svg .name").count() == 201
