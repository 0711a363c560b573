"""Readers of the page while something is measured: open tabs, and a Prometheus that scrapes each second.

    python -m benchmarks.tabs URL TABS    # the readers alone, until they are ended

A tab is what the page's script does where it shows a topology: it reads the event stream, which has all that
it draws. What the page's process takes counts as ours, and what the readers take as others': in life they are
on somebody's desk.
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
from http.client import HTTPConnection, HTTPResponse
from typing import Final
from urllib.parse import parse_qs, urlsplit

_START_SECS: Final = 30
_SCRAPE_SECS: Final = 1.0


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


def _tab(server: str, token: str) -> None:
    stream = _answer(_connected(server), token, "/api/acktree/v1/stream?topology=word-count")
    while stream.read1():
        pass


def _scrape(server: str, token: str) -> None:
    connection = _connected(server)
    while True:
        _answer(connection, token, "/metrics").read()
        time.sleep(_SCRAPE_SECS)


def _connected(server: str) -> HTTPConnection:
    return HTTPConnection(server, timeout=_START_SECS)


def _answer(connection: HTTPConnection, token: str, path: str) -> HTTPResponse:
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    return connection.getresponse()


def main() -> None:
    """Read the page until this process is ended."""
    where, tabs = urlsplit(sys.argv[1]), int(sys.argv[2])
    (token,) = parse_qs(where.query)["token"]
    readers = [threading.Thread(target=_tab, args=(where.netloc, token)) for _ in range(tabs)]
    for reader in [*readers, threading.Thread(target=_scrape, args=(where.netloc, token))]:
        reader.start()


if __name__ == "__main__":
    main()
