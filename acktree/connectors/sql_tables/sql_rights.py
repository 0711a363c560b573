"""What the user of an ``SqlSink`` must be allowed in PostgreSQL, asked before the first row.

Rules of this file
------------------
1. Asked is what the statements of a mode need, column by column: a right on the table counts for all of its
   columns.
2. All that is missing is said at once, as statements that the owner can run.

Source: PostgreSQL's pages on INSERT, its ON CONFLICT clause, and privileges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from acktree.connectors.sql_tables.sql_copy import quoted

__all__ = ["TableError", "refuse_without_marks", "refuse_without_rights", "refuse_without_schema"]

_HIDDEN: Final = sa.text("""
    SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = :name AND c.relkind IN ('r', 'p', 'v', 'f')
        AND NOT has_schema_privilege(n.oid, 'USAGE') AND (
            n.nspname = CAST(:schema AS text)
            OR CAST(:schema AS text) IS NULL AND to_regclass(:seen) IS NULL
            AND n.nspname = ANY(string_to_array(
                translate(replace(current_setting('search_path'), '$user', current_user), '" ', ''), ',')))
    ORDER BY 1""")
"""Schemas with a table of this name that the user may not use: the given one, or those of the search path if
no table of this name is found."""
_LACKING: Final = sa.text("""
    SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:table)
        AND attname = ANY(CAST(:columns AS text[])) AND NOT has_column_privilege(attrelid, attnum, :right)
    ORDER BY attnum""")
_SEQUENCES: Final = sa.text("""
    SELECT DISTINCT format('%I.%I', n.nspname, s.relname) FROM pg_attrdef f
        JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
        JOIN pg_class s ON d.refclassid = 'pg_class'::regclass AND s.oid = d.refobjid
        JOIN pg_namespace n ON n.oid = s.relnamespace
    WHERE f.adrelid = to_regclass(:table) AND NOT a.attname = ANY(CAST(:columns AS text[]))
        AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') END
    ORDER BY 1""")
"""Sequences that number rows in the columns which are not written, and that the user may not use."""
_WHOLE_NAME: Final = sa.text("""
    SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(:table)""")
"""A table's name with its schema: its owner may have another search path. None if there is no table."""
_OF_MARKS: Final = ("SELECT", "INSERT", "UPDATE")


class TableError(Exception):
    """The table is not what the sink needs."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix


def refuse_without_schema(connection: sa.Connection, schema: str | None, name: str) -> None:
    """Refuse a table in a schema that the user may not use."""
    asked = {"name": name, "schema": schema, "seen": quoted(None, name)}
    if hidden := connection.execute(_HIDDEN, asked).scalars().all():
        schemas = " and in ".join(map(repr, hidden))
        what = f"there is a table {name!r} in {schemas}, a schema that the user may not use"
        grants = (f"GRANT USAGE ON SCHEMA {quoted(each)} TO {_user(connection)}" for each in hidden)
        raise TableError(what, f"run as its owner: {'; '.join(grants)}")


def refuse_without_rights(
    connection: sa.Connection, table: sa.Table, fields: frozenset[str], key: Collection[str], mode: str
) -> None:
    """Refuse a table that the user may not write with these fields.

    Args:
        connection: Of the table's database.
        table: The table.
        fields: The columns that are written.
        key: Those that name a row.
        mode: The sink's.
    """
    others = fields - {*key} if mode in ("upsert", "add") else frozenset()
    needed = {"INSERT": fields, "UPDATE": others, "SELECT": [*key, *others] if mode != "insert" else []}
    name = quoted(table.schema, table.name)
    lacking = dict(_lacking(connection, name, needed))
    sequences = connection.execute(_SEQUENCES, {"table": name, "columns": [*fields]}).scalars().all()
    if not lacking and not sequences:
        return
    user = _user(connection)
    words = [f"{right} in {', '.join(map(repr, columns))}" for right, columns in lacking.items()]
    words += [f"use the sequence {each}" for each in sequences]
    whole = connection.execute(_WHOLE_NAME, {"table": name}).scalar()
    grants = [f"GRANT {', '.join(lacking)} ON {whole} TO {user}"] if lacking else []
    grants += [f"GRANT USAGE ON SEQUENCE {each} TO {user}" for each in sequences]
    raise TableError(f"the user may not {'; nor '.join(words)}", f"run as its owner: {'; '.join(grants)}")


def refuse_without_marks(connection: sa.Connection, marks: sa.Table) -> None:
    """Refuse a user who may neither write the table of marks nor, where there is none, make it."""
    name, user = quoted(marks.schema, marks.name), _user(connection)
    rights = ", ".join(_OF_MARKS)
    if (whole := connection.execute(_WHOLE_NAME, {"table": name}).scalar()) is not None:
        if lacking := dict(_lacking(connection, name, dict.fromkeys(_OF_MARKS, marks.columns.keys()))):
            what = f"the user may not {', '.join(lacking)} in the table {marks.fullname} of marks"
            raise TableError(what, f"run as its owner: GRANT {rights} ON {whole} TO {user}")
        return
    schema: Any = marks.schema or connection.execute(sa.select(sa.func.current_schema())).scalar()
    if not connection.execute(sa.select(sa.func.has_schema_privilege(schema, "CREATE"))).scalar():
        made = sa.schema.CreateTable(marks.to_metadata(sa.MetaData(), schema=schema)).compile(connection)
        grant = f"GRANT {rights} ON {quoted(schema, marks.name)} TO {user}"
        also = f"GRANT CREATE ON SCHEMA {quoted(schema)} TO {user}"
        what = f"there is no table {marks.fullname} for marks, and the user may not make it"
        fix = f"run as its owner: {' '.join(str(made).split())}; {grant} (or only {also})"
        raise TableError(what, fix)


def _lacking(
    connection: sa.Connection, table: str, needed: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, list[str]]]:
    """Each right that the user lacks, with its columns."""
    for right, columns in needed.items():
        asked = {"table": table, "columns": [*columns], "right": right}
        if found := connection.execute(_LACKING, asked).scalars().all():
            yield right, [*found]


def _user(connection: sa.Connection) -> str:
    user: Any = connection.execute(sa.text("SELECT current_user")).scalar()
    return quoted(user)
