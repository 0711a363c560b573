"""Values whose class no process can import: after a restart they are of the class that the program has."""

from __future__ import annotations

import enum
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import BasicBolt, CheckpointError, Config, IterableSpout, TopologyBuilder
from acktree.core import durable, programs
from acktree.core.programs import Program
from acktree.tasks.plan import Plan
from tests.unit.core.program_runs import run

PROGRAM = """
import collections, dataclasses, enum, sys
from pathlib import Path
from typing import Generic, TypeVar
from acktree import BasicBolt, CustomGrouping, KeyValueState, Spout, TopologyBuilder
from tests.unit.core.program_runs import drive

T = TypeVar("T")
VERSION = 1

class Shade(enum.Enum):  # no bolt names it
    DARK = 1
    DIM = 1
    LIGHT = 2

@dataclasses.dataclass(frozen=True)
class Key:
    shop: str
    n: int
    def total(self): return self.n * VERSION

class Outer:
    class Kind(enum.Enum):
        PAYMENT = 1
    @dataclasses.dataclass(frozen=True)
    class Inner:
        n: int

class Name(str):
    pass

@dataclasses.dataclass(frozen=True)
class Box(Generic[T]):
    content: T

Named = collections.namedtuple("Named", "shop n")
Row = collections.namedtuple("Other", "shop n")  # found under no name of its own

def price(n): return n * VERSION

VALUES = [
    Shade.DARK, Shade.DIM, Key("a", 2), Outer.Kind.PAYMENT, Outer.Inner(3), Name("x"), Box[int](1),
    Named("a", 1), Row("b", 1),
]

class ByShop(CustomGrouping):
    def choose_tasks(self, task_id, values): return []

class Count(BasicBolt):
    remembers = ["counts", "last", "price", "double"]
    outputs = []
    def prepare(self, config, context):
        self.counts, self.last, self.price, self.double = KeyValueState(), None, None, None
    def seen(self, values):
        return [isinstance(values[2], Key), values[3] is Outer.Kind.PAYMENT, values[2].total()]
    def remember(self, values):
        found = {"last": isinstance(self.last, Key) and self.last.total()}
        found["price"], found["double"] = self.price and self.price(1), self.double and self.double(1)
        self.last, self.price = values[2], price
        self.double = self.double or (lambda n: n * 2)
        for value in values: self.counts[value] = self.counts.get(value, 0) + 1
        counts = [self.counts[value] for value in values]
        is_alias = type(values[0])["DIM"] is values[0]
        return found | {"counts": counts, "keys": len(self.counts), "alias": is_alias}
    def execute(self, tup, collector): pass

class Shades(Spout):
    outputs = ["value"]
    def open(self, config, context, collector): pass
    def next_tuple(self): VALUES

def builder():
    made = TopologyBuilder("t")
    made.set_spout("in", Shades())
    made.set_bolt("count", Count(), parallelism=2).custom_grouping("in", ByShop())
    return made

if __name__ == "__main__":
    drive(builder(), VALUES, Path(sys.argv[1]))
"""
AS_MODULE = """
import sys
from pathlib import Path
from acktree.cli.targets import in_module
from tests.unit.core import program_runs
class Made:
    def __init__(self, target): self.target = target
    def create_topology(self): return in_module(self.target)[1]
made = Made(sys.argv[1])
made.create_topology()
program_runs.drive(made, sys.modules[sys.argv[2]].VALUES, Path(sys.argv[3]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "as_module.py").write_text(AS_MODULE)
    (tmp_path / "package").mkdir()
    return tmp_path


def forms(folder: Path) -> dict[str, list[str]]:
    return {
        "script": ["program.py", str(folder)],
        "acktree run": ["as_module.py", "program.py:builder", "program", str(folder)],
        "-m": ["-m", "program", str(folder)],
    }


def changed(folder: Path, *changes: tuple[str, str]) -> None:
    text = (folder / "program.py").read_text()
    for before, now in changes:
        assert before in text
        text = text.replace(before, now)
    (folder / "program.py").write_text(text)


ONCE = [2, 2, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("order", [("script", "acktree run", "-m"), ("acktree run", "script")])
def test_values_are_of_the_class_that_the_program_has_now_however_it_is_run(folder, order):
    first, *later = found = [run(forms(folder)[form], folder) for form in order]
    assert first[1]["counts"] == ONCE
    for runs, (driver, worker) in enumerate(later, 2):
        assert driver["position"] is True
        assert worker["counts"] == [runs * n for n in ONCE]
        assert worker["keys"] == 8
        assert worker["frame"] == worker["fresh"] == [True, True, 2]
        assert worker["last"] == 2
    hashes = {tuple(process["hashes"]) for each in found for process in each}
    assert len(hashes) == 1  # the same task in each run, in driver and worker
    assert {driver["shape"] for driver, _ in found} == {"program.ByShop"}
    assert all(worker["alias"] for _, worker in found)


def test_after_an_upgrade_methods_and_functions_are_the_new_ones_and_a_lambda_is_the_old_one(folder):
    run(forms(folder)["script"], folder)
    field = "    n: int\n", "    n: int\n    city: str = 'b'\n"
    changed(folder, ("VERSION = 1", "VERSION = 10"), field, ("n * 2)", "n * 3)"))
    (folder / "program.py").rename(folder / "second.py")
    _, worker = run(["second.py", str(folder)], folder)
    assert worker["frame"] == [True, True, 20]
    assert (worker["last"], worker["price"], worker["double"]) == (20, 10, 2)


def test_a_class_that_is_gone_is_refused_with_its_name(folder):
    run(forms(folder)["script"], folder)
    position = (folder / "position").read_bytes()
    changed(folder, ("class Shade(", "class Tone("), ("Shade.", "Tone."))
    for form in ("script", "acktree run"):
        (folder / "position").write_bytes(position)
        driver, worker = run(forms(folder)[form], folder)
        for refusal in (driver["position"], worker["refused"]):
            assert "needs 'Shade' of the main program (program)" in refusal
            assert "define 'Shade' there again" in refusal


def topology(*values: object) -> TopologyBuilder:
    class Swallow(BasicBolt):
        def execute(self, tup, collector):
            pass

    builder = TopologyBuilder("t")
    builder.set_spout("in", IterableSpout(values, outputs=["value"]))
    builder.set_bolt("swallow", Swallow()).shuffle_grouping("in")
    return builder


def planned(*values: object) -> Plan:
    return Plan.of(topology(*values).create_topology(), Config(), 1, 1)


def kind_of(members: str = "A B") -> type[enum.Enum]:
    class Kind(enum.Enum):
        A = 1
        B = 2

    return Kind


@pytest.fixture
def here() -> Callable[[Program], None]:
    """Makes this process one that runs a program, as a worker of another driver would be."""
    before = programs._Process.program

    def enter(program: Program) -> None:
        programs._Process.classes.clear()
        programs._Process.references.clear()
        programs.enter(program)

    yield enter
    programs._Process.program = before
    programs._Process.references.clear()


def elsewhere(program: Program, process: str = "another") -> Program:
    """The program as a worker gets it."""
    return Program(process, program.number, program.main, program.is_imported, program.definitions)


def test_a_class_made_in_a_function_is_found_by_its_name_if_the_topology_uses_one_of_that_name(here):
    old, new = kind_of(), kind_of()
    planned(old.A)
    stored = durable.dumps_by_value([old.A, old.B])
    here(elsewhere(planned(new.A).program))
    assert durable.loads(stored) == [new.A, new.B]


def test_where_two_classes_have_one_name_neither_is_taken_after_a_restart_and_both_in_the_same_run(here):
    first, second = kind_of(), kind_of()
    plan = planned(first.A, second.A)
    stored = durable.dumps_by_value([first.A, second.A])
    assert durable.loads(stored) == [first.A, second.A]
    here(elsewhere(plan.program, plan.program.process))
    assert durable.loads(stored) == [first.A, second.A]
    here(elsewhere(plan.program))
    with pytest.raises(CheckpointError, match="has no such class, or several"):
        durable.loads(stored)


def test_a_second_run_in_one_process_has_the_class_that_was_defined_last():
    old, new = kind_of(), kind_of()
    planned(old.A)
    stored = durable.dumps_by_value(old.A)
    planned(new.A)
    assert durable.loads(stored) is new.A


def test_a_process_without_a_topology_reads_what_was_written_and_writes_it_back(tmp_path):
    kind = kind_of()
    planned(kind.A)
    stored = tmp_path / "stored"
    stored.write_bytes(durable.dumps_by_value({kind.A: 1}))
    code = (
        "import sys; from pathlib import Path; from acktree.core import durable; file = Path(sys.argv[1]);"
        "value = durable.loads(file.read_bytes()); print(*value);"
        "file.write_bytes(durable.dumps_by_value(value))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(stored)], check=True, stdout=subprocess.PIPE)
    assert done.stdout == b"Kind.A\n"
    assert durable.loads(stored.read_bytes()) == {kind.A: 1}


class Pinned:
    class Kind(enum.Enum):
        A = 1


REFERENCE = ("0123456789abcdef", 3, "tests.unit.core.test_programs", "Pinned.Kind", False, None)


def test_the_layout_of_a_reference_does_not_change():
    class AsStored(pickle.Pickler):
        def persistent_id(self, value):
            return REFERENCE if value is Pinned else None

    file = io.BytesIO()
    AsStored(file, protocol=5).dump([Pinned])
    assert durable.loads(b"\xac\x01" + file.getvalue()) == [Pinned.Kind]


def test_a_definition_with_much_data_is_not_sent_ahead():
    blob = "x" * 100_000

    class Large(enum.Enum):
        A = blob

    plan = planned(Large.A)
    assert not any(name.endswith("Large") for _, name in plan.program.definitions)
    assert durable.loads(durable.dumps_by_value(Large.A)) is Large.A


@given(
    st.recursive(
        st.sampled_from("AB") | st.integers(), lambda parts: st.lists(parts) | st.tuples(parts, parts)
    )
)
def test_a_value_survives_whatever_it_is_nested_in(shape):
    kind = KINDS[0]
    value = pickle.loads(pickle.dumps(shape))
    with_members = _replaced(value, kind)
    assert durable.loads(durable.dumps_by_value(with_members)) == with_members


KINDS = [kind_of()]


def _replaced(value: object, kind: type[enum.Enum]) -> object:
    if isinstance(value, list | tuple):
        return type(value)(_replaced(part, kind) for part in value)
    return kind[value] if isinstance(value, str) else value
