"""A Chromium for tests, and what they watch in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response

LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
"""How the page is looked at, as Playwright's ``new_page`` takes it."""
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_LONGEST_MS = 300_000
"""A busy machine draws a large tree in a minute."""


def program() -> str | None:
    """The Chromium that is installed."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def missing() -> str:
    """What has to be installed before a browser can run; empty when nothing has."""
    if find_spec("playwright") is None or find_spec("axe_playwright_python") is None:
        return "no Playwright (make setup)"
    return "" if program() else "no Chromium (Debian: apt-get install chromium)"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the length of the block. Ends the event loop that Playwright runs in this thread."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # may be missing

    # Chromium's sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@cache
def _window(browser: Browser, look: str) -> BrowserContext:
    """A window of this look for all tabs. Its first tab stays, so that none needs a window of its own.

    Each page has a port of its own, so what a page keeps in the browser is no other's.
    """
    window = browser.new_context(**LOOKS[look])
    window.new_page()
    return window


@contextmanager
def tab(
    browser: Browser, url: str, look: str = "light", expected: frozenset[int] = frozenset()
) -> Iterator[Page]:
    """A tab for the length of the block, at whose end it has had no error and no request to another host.

    ``expected``: HTTP's codes that are no error here. The browser has a line of its own for each answer.
    """
    page = _window(browser, look).new_page()
    page.set_default_timeout(_LONGEST_MS)
    problems: list[str] = []

    def on_console(said: ConsoleMessage) -> None:
        if said.type == "error" and not any(f"status of {code}" in said.text for code in expected):
            problems.append(f"console: {said.text}")

    def on_response(got: Response) -> None:
        if got.status >= 400 and got.status not in expected:
            problems.append(f"{got.status}: {got.url}")

    page.on("console", on_console)
    page.on("response", on_response)
    page.on("pageerror", lambda error: problems.append(f"page: {error}"))
    page.on("request", lambda asked: asked.url.startswith(url) or problems.append(f"foreign: {asked.url}"))
    try:
        yield page
        assert not problems, "\n".join(problems)
    finally:
        page.close()
