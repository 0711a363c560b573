"""Records a second and CPU a record: through a connector, and in a program without acktree, in turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Clock
from tests.chaos.processes import processes_of
from tests.services.servers import Server

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Rates:
    """What one run reached.

    Attributes:
        overall: Records a second, the start included.
        steady: Records a second from the second quarter of the records on.
        cpu_us: ... and the CPU of all processes but the server for each of these, in microseconds.
    """

    overall: float
    steady: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.overall:,.0f}/s overall, {self.steady:,.0f}/s steady, {self.cpu_us:.1f} µs"


class Meter:
    """Measures from its construction until all records are done."""

    def __init__(self, records: int, server: Server) -> None:
        """Begin.

        Args:
            server: The queue's server, a child of this process, whose CPU is left out.
        """
        self._records, self._server = records, server
        self._began = time.perf_counter()
        self._steady: tuple[int, float, Clock, float] | None = None

    def note(self, done: int) -> None:
        """Note how many records are done by now."""
        if self._steady is None and done >= self._records // 4:
            self._steady = done, time.perf_counter(), Clock(), server_secs(self._server)

    def wait(self, done: Callable[[], int]) -> None:
        """Wait until all are done."""
        while (count := done()) < self._records:
            self.note(count)
            time.sleep(0.02)

    def rates(self) -> Rates:
        """All are done."""
        assert self._steady is not None, "enough records, so that a quarter of them was noted"
        ended = time.perf_counter()
        noted, noted_at, clock, secs = self._steady
        cpu = clock.cost().ours - (server_secs(self._server) - secs)
        left = self._records - noted
        return Rates(self._records / (ended - self._began), left / (ended - noted_at), cpu / left * 1e6)


def server_secs(server: Server) -> float:
    """CPU seconds of a server's processes so far."""
    assert server.process is not None, "it runs"
    ticks = 0
    for process in processes_of(server.process.pid):
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def compare(pair: str, ours: Callable[[], Rates], plain: Callable[[], Rates], rounds: int) -> dict[str, Any]:
    """Run both sides of a pair in turn, A B B A, and print each round; the rounds and the median ratios."""
    seen: list[tuple[Rates, Rates]] = []
    for number in range(rounds):
        if number % 2:
            other = plain()
            mine = ours()
        else:
            mine = ours()
            other = plain()
        seen.append((mine, other))
        print(f"{pair} round {number + 1}: acktree {mine}; without {other}", flush=True)
    names = ("overall", "steady", "cpu_us")
    ratios = {
        name: round(statistics.median(getattr(mine, name) / getattr(other, name) for mine, other in seen), 3)
        for name in names
    }
    print(f"{pair}: median ratios {ratios}", flush=True)
    return {"rounds": [[asdict(mine), asdict(other)] for mine, other in seen], "ratios": ratios}
