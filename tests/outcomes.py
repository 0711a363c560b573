"""A pytest plugin: a line of JSON for each test, for ``scripts/run_tests.py``.

``--outcomes FILE`` names the file. Its first line is ``{"collected": [NODE ID, ...]}``; each further line has
the keys ``test`` (node id), ``outcome`` (passed, failed or skipped), ``secs``, ``cpu`` (CPU seconds of its
process and of those that it has started) and ``text`` (why, empty if it passed).
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="write the outcome of each test to this file, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_CpuTime())
    file = config.getoption("--outcomes")
    if file and not hasattr(config, "workerinput"):  # with pytest-xdist: in the controller alone
        config.pluginmanager.register(_Outcomes(Path(file)))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A process of pytest-xdist ends if a report's text has half of a surrogate pair: it is escaped."""
    return _escaped((yield))


def _escaped(node: Any) -> Any:
    """The same lists, tuples and dictionaries, with texts that UTF-8 can write."""
    if isinstance(node, str):
        return node.encode("utf-8", "backslashreplace").decode()
    if isinstance(node, dict):
        return {_escaped(key): _escaped(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_escaped(each) for each in node)
    return node


class _CpuTime:
    """Notes in a test's last report, as ``cpu``, the CPU time that was used since the test before."""

    def __init__(self) -> None:
        self._noted = _cpu_secs(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now = _cpu_secs(os.getpid())
            report.cpu = max(0.0, now - self._noted)  # type: ignore[attr-defined] # it is serialized with the rest
            self._noted = now
        return report


def _cpu_secs(process: int) -> float:
    """The CPU time of a process and of its children, ended and running; 0.0 where /proc does not say."""
    folder = Path("/proc", str(process))
    try:
        # The name, in parentheses, may have spaces; times are the fields 14 to 17 of proc(5).
        ticks = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:15]
        threads = [*folder.glob("task/*/children")]
    except OSError:
        return 0.0
    children: set[str] = set()
    for file in threads:
        with suppress(OSError):  # the thread has just ended: what it has started is another thread's now
            children.update(file.read_text().split())
    own = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_secs(int(child)) for child in children)


class _Outcomes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_collected = False
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write({"collected": [item.nodeid for item in session.items]})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._is_collected:  # each process collects the same
            self._is_collected = True
            self._write({"collected": ids})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write_outcome(report.nodeid, "failed", report.longreprtext)
        elif report.skipped:
            self._write_outcome(report.nodeid, "skipped", _reason(report))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test is reported in three parts: set up, called, torn down. Its outcome is the worst of them."""
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when == "teardown":
            self._end(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """A test whose process died is reported as failed. One that has no such report has no outcome."""
        for test, reports in list(self._reports.items()):
            if any(each.failed for each in reports):
                self._end(test)

    def _end(self, test: str) -> None:
        reports = self._reports.pop(test)
        worst = next(
            (each for outcome in ("failed", "skipped") for each in reports if each.outcome == outcome),
            reports[0],
        )
        text = "" if worst.passed else _reason(worst) if worst.skipped else "\n".join(_texts(worst))
        secs = sum(each.duration for each in reports)
        cpu = sum(getattr(each, "cpu", 0.0) for each in reports)
        self._write_outcome(test, worst.outcome, text, secs, cpu)

    def _write_outcome(self, test: str, outcome: str, text: str, secs: float = 0.0, cpu: float = 0.0) -> None:
        times = {"secs": round(secs, 3), "cpu": round(cpu, 2)}
        self._write({"test": test, "outcome": outcome, **times, "text": text})

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was skipped."""
    place = report.longrepr
    return str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")


def _texts(report: pytest.TestReport) -> Iterator[str]:
    """The failure, and what was printed and logged."""
    yield report.longreprtext
    for title, content in report.sections:
        yield f"--- {title}\n{content}"
