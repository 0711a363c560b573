"""A page, and a real browser; skipped where there is none, but in CI that is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.browsers import chromium, missing

if TYPE_CHECKING:
    from collections.abc import Generator

    from playwright.sync_api import Browser

    from acktree.ui.page import Page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says what its tab shows. Afterwards the tab is closed."""
    report = yield
    if report.failed and call.when == "call" and "tab" in item.funcargs:
        try:
            shows = item.funcargs["tab"].locator("body").inner_text(timeout=5000)
        except Exception as error:  # noqa: BLE001  # the test's own failure is what is reported
            shows = f"no answer: {error}"
        report.sections.append(("the page", shows))
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    lacking = missing()
    if lacking and os.environ.get("CI"):
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)
    with chromium() as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime folder of the module's own: no topology of another test is on its pages."""
    folder = tmp_path_factory.mktemp("r")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_RUNTIME_DIR", str(folder))
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield folder / "acktree"


@pytest.fixture
def shown(runtime: Path) -> Iterator[Page]:
    """A page of this process."""
    from acktree.ui.page import serve_page  # noqa: PLC0415  # its libraries may be missing

    with serve_page() as page:
        yield page
