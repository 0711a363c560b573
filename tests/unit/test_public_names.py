from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import ModuleType

import pytest

import acktree
from acktree import errors


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_a_user_imports_is_there():
    promised = """
        ArrowBolt BasicBolt Bolt ColumnState Config CustomGrouping DataFrameSpout EndOfStream IterableSpout
        KeyValueState Retry Spout TopologyBuilder bolt submit
    """
    assert set(promised.split()) <= set(acktree.__all__)
    assert set(acktree.__all__) <= set(dir(acktree))


def test_the_types_of_what_hooks_are_given_are_there_for_those_who_annotate():
    given = """
        ArrowOutputCollector BasicOutputCollector Config Failure OutputCollector SpoutOutputCollector
        TaskContext Tuple
    """
    assert set(given.split()) <= set(acktree.__all__)


def test_all_is_sorted_and_holds_what_it_names():
    assert acktree.__all__ == sorted(acktree.__all__)
    aliases = {"MessageId", "Outputs", "__version__"}
    for name in {*acktree.__all__} - {"submit"} - aliases:  # submit needs PySpark
        assert getattr(acktree, name).__module__.startswith("acktree.")


def test_every_error_is_a_public_name():
    assert {name for name in errors.__all__ if name.endswith("Error")} <= set(acktree.__all__)


def test_importing_acktree_imports_neither_spark_nor_arrow():
    heavy = "('pyspark', 'pyarrow', 'pandas', 'py4j')"
    assert python(f"import sys, acktree; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_drawing_a_topology_imports_neither_spark_nor_arrow():
    program = """
import sys
from types import ModuleType
from acktree import IterableSpout, TopologyBuilder, bolt

@bolt(outputs=["word"])
def split(tup):
    yield from ([word] for word in tup["line"].split())

builder = TopologyBuilder("words")
builder.set_spout("lines", IterableSpout(["a b"], outputs=["line"]))
builder.set_bolt("split", split).shuffle_grouping("lines")
builder.create_topology().describe()
print([m for m in ("pyspark", "pyarrow", "pandas") if m in sys.modules])
"""
    assert python(program) == "[]"


def test_submit_is_fetched_when_it_is_asked_for(monkeypatch):
    spark = ModuleType("acktree.spark.submit")
    spark.submit = "the real one"
    monkeypatch.setitem(sys.modules, "acktree.spark.submit", spark)
    assert acktree.submit == "the real one"


def test_a_name_that_is_not_there_is_pythons_own_error():
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        acktree.sumbit  # noqa: B018


def test_the_version_is_the_installed_packages():
    assert acktree.__version__ == importlib.metadata.version("acktree")


def test_names_that_are_imported_late_are_all_there():
    for name in acktree.__all__:
        if name != "submit":  # which needs PySpark
            assert getattr(acktree, name) is not None
