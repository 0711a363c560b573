"""Walks the page with a real browser, and makes the pictures of docs/operators.md.

Starts two topologies on Spark and the page; finds a dead letter with its traceback, redrives it, deletes one,
logs events, deactivates, activates and kills. Fails on an error in the browser's console and on a request to
another host.

    pip install playwright          # and a Chromium: apt-get install chromium
    python scripts/page_walk.py [--chromium /usr/bin/chromium] [--pictures docs/pictures]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
ACKTREE = [sys.executable, "-m", "acktree"]
SIZES = {"light": (1280, 800), "dark": (1280, 800), "phone": (390, 844)}


def acktree(*command: str) -> Any:  # noqa: ANN401  # JSON
    """Run a command; returns its last line of JSON."""
    done = subprocess.run([*ACKTREE, *command, "--json"], check=True, capture_output=True, text=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def watch(page: Page, url: str, problems: list[str]) -> None:
    """Note what must not happen."""
    page.on("console", lambda said: said.type == "error" and problems.append(f"console: {said.text}"))
    page.on("response", lambda got: got.status >= 400 and problems.append(f"{got.status}: {got.url}"))  # noqa: PLR2004
    page.on("pageerror", lambda error: problems.append(f"page: {error}"))
    page.on("request", lambda asked: asked.url.startswith(url) or problems.append(f"foreign: {asked.url}"))


def picture(page: Page, file: Path) -> None:
    """Take a picture of what is in view, without the name of this machine."""
    page.evaluate("""() => {
        for (const line of document.querySelectorAll("p.wrap")) {
            line.firstChild.data = line.firstChild.data.replace(/process .*$/, "process 4711 on example");
        }
    }""")
    page.screenshot(path=file)


def walk(page: Page, first: str) -> None:
    """Through the page as an operator does."""
    page.goto(first)
    page.get_by_role("link", name="poison", exact=True).first.click()
    page.get_by_label("bolt split").click()
    page.get_by_role("heading", name="split").wait_for()
    page.locator("details summary").first.click()
    page.get_by_text("Traceback (most recent call last)").first.wait_for()
    page.get_by_role("link", name="poison", exact=True).click()
    find_trace(page, "poison", "FAILED", "Traceback")
    page.get_by_role("link", name="acktree", exact=True).click()
    page.get_by_role("link", name="forgets", exact=True).first.click()
    find_trace(page, "forgets", "TIMED_OUT", "not acked")
    page.get_by_role("link", name="acktree", exact=True).click()
    page.get_by_role("link", name="poison", exact=True).first.click()
    page.get_by_label("Heat by").select_option("latency")
    log_events(page, "poison")
    page.locator(".tiles a[href$=letters]").click()
    page.get_by_label("select letter 2", exact=True).check()
    page.get_by_role("button", name="Delete 1 selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("1 dead letters were deleted").wait_for()
    page.get_by_label("select letter 1", exact=True).check()
    page.get_by_role("button", name="Redrive 1 selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    page.get_by_text("1 dead letters were sent again").wait_for()
    page.get_by_role("link", name="poison", exact=True).click()
    for order, after in (("Deactivate", "INACTIVE"), ("Activate", "ACTIVE")):
        page.get_by_role("button", name=order, exact=True).click()
        if order == "Deactivate":
            page.get_by_role("dialog").get_by_role("button", name=order).click()
        page.locator(f"h1 .badge.{after}").wait_for()
    page.get_by_role("button", name="Kill").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the dialog's first button has the focus
    page.locator("h1 .badge.STOPPED").wait_for(timeout=120_000)


def log_events(page: Page, topology: str) -> None:
    """Let a topology log what it emits until there is something, and no longer."""
    for pressed, said in (("Log", "Tuples are logged"), ("Stop logging", "No tuples are logged")):
        page.get_by_role("button", name="Debug").click()
        page.get_by_role("dialog").get_by_role("button", name=pressed, exact=True).click()
        page.get_by_text(said).wait_for()
        if pressed == "Log":
            page.locator(".tiles a[href$=events]").click()
            page.locator("tbody[aria-label='Event log'] tr").first.wait_for(timeout=60_000)
            page.get_by_role("navigation").get_by_role("link", name=topology, exact=True).click()


def find_trace(page: Page, topology: str, verdict: str, said: str) -> None:
    """From a topology: search traced messages by verdict and by id, and open the tree of one by keyboard."""
    page.get_by_role("link", name="search").click()
    page.get_by_label("Verdict").select_option(verdict)
    page.get_by_role("button", name="Search").click()
    row = page.locator("tbody tr", has=page.locator(".badge.FAILED")).first
    row.wait_for(timeout=60_000)
    message_id = row.locator("a").inner_text()
    page.get_by_label("Message id").fill(message_id)
    page.keyboard.press("Enter")
    page.get_by_role("link", name=message_id, exact=True).first.focus()
    page.keyboard.press("Enter")
    page.locator("ul.tree").first.wait_for()
    page.get_by_text(said).first.wait_for()
    summary = page.locator("ul.tree summary").first
    if summary.count():
        summary.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
    page.get_by_role("navigation").get_by_role("link", name=topology, exact=True).click()


def pictures(page: Page, first: str, name: str, folder: Path) -> None:
    """The pictures of one size and scheme."""
    page.goto(first)
    page.get_by_role("link", name="poison", exact=True).first.click()
    page.locator("svg .name").first.wait_for()
    time.sleep(20)  # the chart has something to show
    picture(page, folder / f"page-{name}.png")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        raise AssertionError(f"{name}: the page is wider than its window")
    page.locator(".tiles a[href$=letters]").click()
    page.get_by_text("that match").first.wait_for()
    picture(page, folder / f"page-letters-{name}.png")
    page.get_by_role("navigation").get_by_role("link", name="poison", exact=True).click()
    page.get_by_role("link", name="search").click()
    page.get_by_label("Verdict").select_option("FAILED")
    page.get_by_role("button", name="Search").click()
    page.locator("tbody .badge.FAILED").first.wait_for(timeout=60_000)
    picture(page, folder / f"page-traces-{name}.png")
    page.locator("tbody tr", has=page.locator(".badge.FAILED")).first.locator("a").click()
    page.locator("ul.tree").first.wait_for()
    picture(page, folder / f"page-trace-{name}.png")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        raise AssertionError(f"{name}: the trace is wider than its window")


def main() -> None:
    """Start all, walk, stop all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--pictures", type=Path, help="make the pictures, in this folder")
    given = parser.parse_args()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="orders-", dir="/tmp") as folder, sync_playwright() as browsers:
        os.environ["XDG_RUNTIME_DIR"] = folder
        for name in ("poison", "forgets"):
            settings = ("-c", "message_timeout_secs=20", "-c", "partitions=2", "-c", "trace_sample_rate=0.1")
            target = f"{HERE / 'page_topologies.py'}:{name}"
            acktree("submit", target, "--checkpoint", f"{folder}/{name}", *settings)
        with subprocess.Popen([*ACKTREE, "ui", "--json"], stdout=subprocess.PIPE, text=True) as page_process:  # noqa: S603
            try:
                assert page_process.stdout is not None
                about = json.loads(page_process.stdout.readline())
                first = f"{about['url']}/?token={about['token']}"
                chromium = browsers.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
                for name, (width, height) in SIZES.items() if given.pictures else ():
                    page = chromium.new_page(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if name == "dark" else "light",
                    )
                    watch(page, about["url"], problems)
                    pictures(page, first, name, given.pictures)
                    page.close()
                page = chromium.new_page(viewport={"width": 1280, "height": 800})
                watch(page, about["url"], problems)
                walk(page, first)
                chromium.close()
            finally:
                page_process.terminate()
                for name in ("poison", "forgets"):  # what the walk has not killed
                    subprocess.run([*ACKTREE, "kill", name, "-w", "0"], check=False, capture_output=True)  # noqa: S603
    if problems:
        sys.exit("\n".join(problems))
    print("walked: no console error, no request to another host")


if __name__ == "__main__":
    main()
