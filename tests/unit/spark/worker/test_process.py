"""What a worker process is let have."""

from __future__ import annotations

import linecache
import os
import pickle
import resource
import shutil
import sys
import traceback
from pathlib import Path
from types import CodeType

import cloudpickle
import pytest
from pyspark import SparkFiles

from acktree import Config, IterableSpout, TopologyBuilder
from acktree.spark.worker import process as worker
from acktree.tasks.plan import Plan


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
def test_an_allocation_beyond_the_workers_limit_raises_a_memory_error(wanted: int, code: int) -> None:
    def eats() -> None:
        worker.limit_memory(data_bytes() + (100 << 20))
        bytearray(wanted)

    assert in_a_child(eats) == code


def test_by_default_it_is_less_than_the_machine_or_its_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits_set: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: limits_set.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    monkeypatch.setattr(worker, "_CGROUPS", tmp_path)
    monkeypatch.setattr(worker, "_MY_CGROUP", tmp_path / "none")
    worker.limit_memory(None)
    (tmp_path / "memory.max").write_text("max\n")
    worker.limit_memory(None)
    (tmp_path / "memory.max").write_text("1000\n")
    worker.limit_memory(None)
    worker.limit_memory(77)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 60))
    worker.limit_memory(77)
    machine, unlimited, container, asked, hard = (soft for soft, _ in limits_set)
    assert machine == unlimited > 1 << 28
    assert (container, asked, hard) == (750, 77, 60)


def test_a_folder_on_an_executors_own_disk_is_private_and_keeps_the_present_micro_batch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    folder = worker.own_folder("marks", 6)
    assert folder == tmp_path / "marks"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("6.0.1.mark", "new-6.0.1.suspects", "7.0.1.mark"):
        (folder / name).touch()
    assert worker.own_folder("marks", 7) == folder
    assert [file.name for file in folder.iterdir()] == ["7.0.1.mark"]


def test_a_plan_that_spark_brings_is_found_among_its_files_and_stays_for_executors_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        added: Path

        def addFile(self, path: str) -> None:  # noqa: N802  # Spark's name
            self.added = Path(path)
            shutil.copy(path, tmp_path)

    builder = TopologyBuilder("brought")
    builder.set_spout("numbers", IterableSpout([], ["n"]))
    plan, context = Plan.of(builder.create_topology(), Config(), 1, 0), Context()
    shared = worker.SharedPlan.send(plan, "plan-1-abc", context)  # type: ignore[arg-type]
    assert (shared.path, context.added.name) == ("plan-1-abc", "plan-1-abc")
    assert context.added.stat().st_mode & 0o077 == context.added.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = os.umask(0o022)
    try:
        assert shared.plan().topology.name == "brought"
    finally:
        os.umask(before)
    assert context.added.exists()
    shutil.rmtree(context.added.parent)


PROGRAM = """
from acktree import BasicBolt

class Wrong(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        raise ValueError("wrong")  # the line that is shown
"""


def test_tracebacks_show_the_lines_of_a_program_that_is_not_on_the_workers_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_before = cloudpickle.Pickler.dispatch_table[CodeType]

    def without_file(code: CodeType) -> object:
        """As cloudpickle 3.1.3 does."""
        make, given = as_before(code)
        return make, tuple("<dynamic-code>" if part == code.co_filename else part for part in given)

    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, CodeType, without_file)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    names = {"__name__": "no_module_of_this_name"}
    exec(compile(PROGRAM, str(program), "exec"), names)
    builder = TopologyBuilder("wrong")
    builder.set_spout("numbers", IterableSpout([(1,)], outputs=["n"]))
    builder.set_bolt("wrong", names["Wrong"]()).shuffle_grouping("numbers")
    plan = Plan.of(builder.create_topology(), Config(), 1, 1)
    shared = worker.SharedPlan.write(plan, tmp_path / "plan")
    program.unlink()
    linecache.clearcache()
    bolt = pickle.loads(shared.plan().pickles["wrong"])
    with pytest.raises(ValueError, match="wrong") as raised:
        bolt.execute(None, None)
    shown = "".join(traceback.format_exception(raised.value))
    assert f'File "{program}", line 8, in execute' in shown
    assert 'raise ValueError("wrong")  # the line that is shown' in shown
