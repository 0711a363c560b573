"""What a worker process is let have."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from acktree.spark import worker


def data_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    return int(line.split()[1]) << 10


def in_a_child(deed) -> int:
    child = os.fork()
    if child == 0:
        try:
            deed()
            os._exit(0)
        except MemoryError:
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RLIMIT_DATA is Linux's")
@pytest.mark.parametrize(("wanted", "code"), [(20 << 20, 0), (200 << 20, 7)])
def test_who_wants_more_memory_than_a_worker_may_have_gets_a_memory_error(wanted: int, code: int) -> None:
    def eats() -> None:
        worker.limit_memory(data_bytes() + (100 << 20))
        bytearray(wanted)

    assert in_a_child(eats) == code


def test_by_default_it_is_less_than_the_machine_or_its_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    monkeypatch.setattr(worker, "_CONTAINER", tmp_path / "memory.max")
    worker.limit_memory(None)
    (tmp_path / "memory.max").write_text("max\n")
    worker.limit_memory(None)
    (tmp_path / "memory.max").write_text("1000\n")
    worker.limit_memory(None)
    worker.limit_memory(77)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 60))
    worker.limit_memory(77)
    machine, unlimited, container, asked, hard = (soft for soft, _ in told)
    assert machine == unlimited > 1 << 28
    assert (container, asked, hard) == (750, 77, 60)
