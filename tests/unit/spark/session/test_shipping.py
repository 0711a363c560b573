"""What travels to executors: acktree, and what lies beside the program; nothing that is installed."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("pyspark")

import acktree
from acktree import Config, IterableSpout, TopologyBuilder
from acktree.errors import CheckpointError
from acktree.spark.session import shipping
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.plan import Plan


def write(folder: Path, *files: str) -> None:
    for name in files:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"here = __name__, {name!r}\n")


@pytest.fixture
def beside(tmp_path: Path, monkeypatch):
    """A folder of programs on the path; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def imported(*names: str) -> Mapping[str, ModuleType]:
    for name in names:
        importlib.import_module(name)
    tops = {name.partition(".")[0] for name in names}
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}


def names_in(packed: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(packed)) as code:
        return [name for name in code.namelist() if not name.endswith("/")]


def test_a_package_is_sent_whole_a_module_alone_and_of_a_namespace_what_was_imported(beside: Path) -> None:
    write(beside, "at_shop/__init__.py", "at_shop/parts/__init__.py", "at_shop/parts/later.py", "at_alone.py")
    write(
        beside, "at_space/used.py", "at_space/unused.py", "at_space/inner/__init__.py", "at_space/inner/x.py"
    )
    (beside / "at_shop" / "data.bin").write_bytes(b"data")
    packed = shipping.packed_code(imported("at_shop", "at_alone", "at_space.used", "at_space.inner"))
    assert names_in(packed) == [
        "at_alone.py",
        "at_shop/__init__.py",
        "at_shop/parts/__init__.py",
        "at_shop/parts/later.py",
        "at_space/inner/__init__.py",
        "at_space/inner/x.py",
        "at_space/used.py",
    ]


def test_installed_packages_are_not_sent_except_acktree_and_cloudpickle(beside: Path) -> None:
    site = beside / "lib" / "site-packages"
    write(site, "at_installed.py", "pyspark_like.py")
    sys.path.insert(0, str(site))
    modules = imported("at_installed", "numpy", "pyspark", "json", "acktree", "cloudpickle")
    sys.path.remove(str(site))
    tops = {name.partition("/")[0] for name in names_in(shipping.packed_code(modules))}
    assert tops == {"acktree", "cloudpickle"}


def test_spark_main_and_deleted_modules_are_never_sent(beside: Path) -> None:
    write(beside, "at_gone.py", "at_main.py", "spark/python/pyspark/__init__.py")
    modules = dict(imported("at_gone", "at_main"))
    modules["__main__"] = modules["__mp_main__"] = modules.pop("at_main")
    modules["pyspark"] = ModuleType("pyspark")
    modules["pyspark"].__file__ = str(beside / "spark" / "python" / "pyspark" / "__init__.py")
    (beside / "at_gone.py").unlink()
    assert names_in(shipping.packed_code(modules)) == []


class Touchy:
    """An entry of ``sys.modules`` that is no module."""

    @property
    def __file__(self) -> str:
        raise ImportError("do not touch")


def test_what_is_no_module_is_not_touched(beside: Path) -> None:
    write(beside, "at_alone.py")
    modules = {"at_touchy": Touchy(), "at_nothing": None, **imported("at_alone")}
    assert names_in(shipping.packed_code(modules)) == ["at_alone.py"]


def test_the_same_sources_make_the_same_bytes_and_other_ones_others(beside: Path) -> None:
    write(beside, "at_shop/__init__.py", "at_shop/a.py", "at_shop/b.py")
    modules = imported("at_shop.b", "at_shop.a")
    first = shipping.packed_code(modules)
    (beside / "at_shop" / "a.py").touch()
    assert shipping.packed_code(dict(reversed(modules.items()))) == first
    (beside / "at_shop" / "a.py").write_text("here = 'changed'\n")
    assert shipping.packed_code(modules) != first


def test_a_process_without_acktree_runs_it_from_the_zip_and_namespaces_too(
    beside: Path, tmp_path: Path
) -> None:
    write(beside, "at_space/used.py", "at_shop/__init__.py", "at_shop/later.py")
    code = tmp_path / "code.zip"
    modules = imported("acktree", "cloudpickle", "at_space.used", "at_shop")
    code.write_bytes(shipping.packed_code(modules))
    program = (
        f"import sys; sys.path.insert(1, {str(code)!r})\n"
        "import acktree, acktree.spark.query.operators, at_space.used, at_shop.later\n"
        "print(acktree.__file__, at_space.used.here, at_shop.later.here)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert ran.stdout.startswith(str(code / "acktree"))
    assert "('at_space.used', 'at_space/used.py') ('at_shop.later', 'at_shop/later.py')" in ran.stdout
    assert not Path(acktree.__file__).is_relative_to(code), "the driver goes on with its own"


class Context:
    """As much of a SparkContext as is asked for."""

    def __init__(self, master: str) -> None:
        self.master, self.applicationId = master, f"app of {master}"
        self.environment: dict[str, str] = {"PYTHONPATH": "before"}
        self.files: list[str] = []

    def addPyFile(self, path: str) -> None:  # noqa: N802  # Spark's name
        self.files.append(path)
        sys.path.insert(1, path)


class Session:
    """A session in a context."""

    def __init__(self, master: str) -> None:
        self.sparkContext = Context(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]"])
def test_on_one_machine_nothing_is_sent(master: str) -> None:
    session = Session(master)
    shipping.ship_code(session)
    assert session.sparkContext.files == []


@pytest.mark.parametrize(
    "master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"]
)
def test_a_cluster_is_sent_the_code_once_and_the_drivers_own_path_stays(beside: Path, master: str) -> None:
    session, before = Session(master), list(sys.path)
    shipping.ship_code(session)
    shipping.ship_code(session)
    [file] = session.sparkContext.files
    assert "acktree/spark/session/shipping.py" in names_in(Path(file).read_bytes())
    assert Path(file).stat().st_mode & 0o077 == 0
    assert session.sparkContext.environment["PYTHONPATH"] == f"before:{file}"
    assert sys.path == before
    write(beside, "at_news.py")
    imported("at_news")
    shipping.ship_code(session)
    assert len(session.sparkContext.files) == 2


def test_a_worker_that_does_not_see_the_checkpoint_says_where_it_looked_and_what_to_do(
    tmp_path: Path,
) -> None:
    builder = TopologyBuilder("unseen")
    builder.set_spout("numbers", IterableSpout([], ["n"]))
    shared = SharedPlan.write(Plan.of(builder.create_topology(), Config(), 1, 0), tmp_path / "plan-1")
    (tmp_path / "plan-1").unlink()
    with pytest.raises(CheckpointError, match="No such file") as raised:
        shared.plan()
    assert str(tmp_path) in raised.value.where
    assert "all executors" in raised.value.fix
