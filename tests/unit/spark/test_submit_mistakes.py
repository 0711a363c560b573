"""What a newcomer gives to ``submit`` and to a SQL sink by mistake is refused with what to give."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("sqlalchemy")

from acktree import submit
from acktree.connectors.sql import SqlSink
from tests.unit.test_mistakes import builder, check

MISTAKES = {
    "spark is 'local', and must be a SparkSession|leave it out": (
        lambda: submit(builder().create_topology(), checkpoint="c", spark="local")
    ),
    "a checkpoint is a folder, and this names none|name a folder": (
        lambda: submit(builder().create_topology(), checkpoint=None)
    ),
    "the url is of type int and the table of type str|give both as text": lambda: SqlSink(5, "t"),
    "the url is of type str and the table of type NoneType|give both as text": (
        lambda: SqlSink("sqlite://", None, key="a")
    ),
    "submit() needs a Config as config, and is given a str|Config.from_mapping(": (
        lambda: submit(builder().create_topology(), checkpoint="c", config="a")
    ),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_named_with_its_fix(said):
    check(said, MISTAKES[said])
