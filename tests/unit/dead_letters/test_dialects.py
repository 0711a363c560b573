"""The tables as databases want them: text of any length, payloads of any size, a constraint each can have."""

from __future__ import annotations

import importlib

import pytest

sql = pytest.importorskip("acktree.dead_letters.sql")


@pytest.mark.parametrize(
    ("dialect", "number", "topology", "reason", "payload"),
    [
        ("postgresql", "BIGSERIAL", "TEXT", "TEXT", "BYTEA"),
        ("mysql", "BIGINT", "VARCHAR(255)", "LONGTEXT", "LONGBLOB"),
        ("sqlite", "INTEGER", "TEXT", "TEXT", "BLOB"),
    ],
)
def test_each_database_is_asked_for_columns_that_hold_any_letter(dialect, number, topology, reason, payload):
    spoken = importlib.import_module(f"sqlalchemy.dialects.{dialect}").dialect()
    made = str(sql.sa.schema.CreateTable(sql._LETTERS).compile(dialect=spoken))
    for name, kind in (("id", number), ("topology", topology), ("reason", reason), ("payload", payload)):
        assert f"\t{name} {kind} " in made
    assert "UNIQUE (topology, root)" in made
