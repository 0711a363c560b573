"""Readers of the page while something is measured: open tabs, and a Prometheus that scrapes each second.

    python -m benchmarks.tabs URL TABS    # the readers alone, until they are ended

A tab is what the page's script does: it reads the event stream, and after each event it asks for the topology
and for its oldest open messages. What the page's process takes counts as ours, and what the readers take as
others': in life they are on somebody's desk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

_START_SECS: Final = 30
_SCRAPE_SECS: Final = 1.0
_OURS: Final = "/api/acktree/v1"


@contextmanager
def read_by(tabs: int) -> Iterator[None]:
    """In the block, let ``tabs`` tabs and one Prometheus read the page; with 0 there is no page."""
    if not tabs:
        yield
        return
    page = subprocess.Popen(
        [sys.executable, "-m", "acktree", "ui", "--listen", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert page.stdout is not None, "it is a pipe"
    try:
        line = next(each for each in page.stdout if "http" in each)
        readers = _let_read(line[line.index("http") :].split()[0], tabs)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(readers, signal.SIGKILL)
    finally:
        page.terminate()
        page.wait(_START_SECS)


def _let_read(url: str, tabs: int) -> int:
    """Start the readers as nobody's child, so that their CPU is not ours; returns their process id."""
    program = f"{sys.executable} -m benchmarks.tabs '{url}' {tabs} >/dev/null 2>&1 & echo $!"
    told = subprocess.run(["sh", "-c", program], check=True, capture_output=True, text=True)  # noqa: S603, S607
    return int(told.stdout)


def _ask(url: str, token: str, path: str) -> bytes:
    request = Request(f"{url}{path}", headers={"Authorization": f"Bearer {token}"})  # noqa: S310  # the page
    with urlopen(request, timeout=_START_SECS) as answer:  # noqa: S310  # the page
        return bytes(answer.read())


def _tab(url: str, token: str) -> None:
    request = Request(f"{url}{_OURS}/stream", headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    with urlopen(request, timeout=_START_SECS) as stream:  # noqa: S310  # the page
        for line in stream:
            if line.startswith(b"data:"):
                _ask(url, token, f"{_OURS}/topologies/word-count")
                _ask(url, token, f"{_OURS}/topologies/word-count/open?limit=8")


def _scrape(url: str, token: str) -> None:
    while True:
        _ask(url, token, "/metrics")
        time.sleep(_SCRAPE_SECS)


def main() -> None:
    """Read the page until this process is ended."""
    where, tabs = urlsplit(sys.argv[1]), int(sys.argv[2])
    url, (token,) = f"{where.scheme}://{where.netloc}", parse_qs(where.query)["token"]
    readers = [threading.Thread(target=_tab, args=(url, token)) for _ in range(tabs)]
    for reader in [*readers, threading.Thread(target=_scrape, args=(url, token))]:
        reader.start()


if __name__ == "__main__":
    main()
