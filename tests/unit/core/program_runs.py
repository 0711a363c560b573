"""Runs of a program without Spark: a driver writes its plan and a frame of values, a worker reads both.

The worker is a process of its own: ``python -m tests.unit.core.program_runs FOLDER``. What it remembers lies
in the folder from run to run, as do the driver's values of the first run and the spout's position.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acktree import Config, TopologyBuilder
from acktree.core import durable
from acktree.core.data.hashing import stable_hash
from acktree.core.data.values import batch_from_bytes, batch_to_bytes, decode_rows, encode_rows
from acktree.core.programs import definition_pickle, enter
from acktree.core.state.store import MemoryStore
from acktree.errors import AcktreeError
from acktree.tasks.bolts.memory import TaskMemory
from acktree.tasks.plan import Plan
from acktree.topology.shape import Shape


def drive(builder: TopologyBuilder, values: Sequence[object], folder: Path) -> None:
    """What a driver does with a topology and the values that its spout emits. Prints what it finds."""
    topology = builder.create_topology()
    plan = Plan.of(topology, Config(), 2, 1)
    (folder / "plan").write_bytes(definition_pickle(plan))
    frame, position = folder / "frame", folder / "position"
    plain = [value for value in values if type(value).__name__ != "Other"]  # a position must pickle
    found: dict[str, Any] = {"hashes": [stable_hash(value) for value in values]}
    found["shape"] = str(Shape.of(topology, 2, is_tracked=True).parts["count"].inputs[0].custom)
    (folder / "fresh").write_bytes(batch_to_bytes(encode_rows(["value"], [[value] for value in values])))
    if not frame.exists():
        frame.write_bytes((folder / "fresh").read_bytes())
    else:
        before = said(lambda: durable.loads(position.read_bytes()))
        found["position"] = before if isinstance(before, str) else before == plain
    position.write_bytes(durable.dumps(plain))
    sys.stdout.write(json.dumps(found))


def said(call: Any) -> Any:
    """What a call returns, or the text of its error."""
    try:
        return call()
    except AcktreeError as error:
        return f"{type(error).__name__}: {error.what} / {error.fix}"


def work(folder: Path) -> dict[str, Any]:
    """What a worker of that driver finds."""
    plan: Plan = pickle.loads((folder / "plan").read_bytes())
    enter(plan.program)
    bolt = pickle.loads(plan.pickles["count"])
    store, memory_file = MemoryStore(), folder / "memory"
    if memory_file.exists():
        store.blobs = pickle.loads(memory_file.read_bytes())
    memory = TaskMemory(bolt.remembers, store, bolt)
    bolt.prepare(None, None)
    found: dict[str, Any] = {}
    for frame in ("frame", "fresh"):
        values = said(lambda frame=frame: [row[0] for row in decode_rows(read(folder / frame))])
        if isinstance(values, str):
            return {"refused": values}
        found[frame] = bolt.seen(values)
    restored = said(lambda: memory.restore(bolt))
    if restored is not None:
        return {"refused": restored}
    found |= said(lambda: bolt.remember([row[0] for row in decode_rows(read(folder / "fresh"))]))
    found["hashes"] = [stable_hash(row[0]) for row in decode_rows(read(folder / "fresh"))]
    memory.save(bolt)
    memory_file.write_bytes(pickle.dumps(store.blobs))
    return found


def read(file: Path) -> Any:
    return batch_from_bytes(file.read_bytes())


def run(command: Sequence[str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a driver and its worker find; the driver is ``python`` with these arguments."""
    work_command = ["-m", "tests.unit.core.program_runs", str(folder)]
    root = Path(__file__).parents[3]
    driver, worker = (
        json.loads(
            subprocess.run(
                [sys.executable, *words], cwd=folder, env={"PYTHONPATH": f"{root}:{folder}"},
                check=True, stdout=subprocess.PIPE,
            ).stdout
        )
        for words in (command, work_command)
    )  # fmt: skip
    return driver, worker


if __name__ == "__main__":
    sys.stdout.write(json.dumps(work(Path(sys.argv[1]))))
