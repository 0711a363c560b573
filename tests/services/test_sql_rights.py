"""``check`` asks PostgreSQL for what an SQL sink will need, and for no more; its fix can be run as it is."""

from __future__ import annotations

import re
from itertools import count

import pyarrow as pa
import pytest

pytest.importorskip("sqlalchemy")

from acktree import Config, ConnectorError, TaskContext, TopologyBuilder
from acktree.connectors.sql import SqlSink
from acktree.tasks.component_checks import checks_of
from acktree.testing import FeederSpout
from tests.services.postgresql import PASSWORD

_numbers = count()
NEEDED = {
    "insert": {"INSERT (id, n)"},
    "ignore": {"INSERT (id, n)", "SELECT (id)"},
    "upsert": {"INSERT (id, n)", "SELECT (id, n)", "UPDATE (n)"},
    "add": {"INSERT (id, n)", "SELECT (id, n)", "UPDATE (n)"},
}
"""The least rights on a table of each mode."""
OF_MARKS = {"SELECT", "INSERT", "UPDATE"}


class Poor:
    """A user without rights, a schema with a table ``t``, and what the sink says of them."""

    def __init__(self, server, columns="id int PRIMARY KEY, n int"):
        self.server, self.name = server, f"poor{next(_numbers)}"
        server.make_schema(self.name)
        self.execute(f"CREATE ROLE {self.name} LOGIN PASSWORD '{PASSWORD}'")
        self.execute(f"CREATE TABLE {self.name}.t ({columns})")

    def execute(self, statement):
        with self.server.connect() as connection:
            return connection.execute(statement)

    def grant(self, *rights, on="t"):
        for right in rights:
            self.execute(f"GRANT {right} ON {self.name}.{on} TO {self.name}")

    def open_schema(self, right="USAGE"):
        self.execute(f"GRANT {right} ON SCHEMA {self.name} TO {self.name}")

    def make_marks(self, *rights):
        """The table of marks, with the columns that it has."""
        columns = "writer text PRIMARY KEY, mark bytea NOT NULL, refused text NOT NULL"
        self.execute(f"CREATE TABLE {self.name}.acktree_marks ({columns})")
        self.grant(*rights, on="acktree_marks")

    def sink(self, mode, table=None):
        url = self.server.url(self.name).replace("//tester:", f"//{self.name}:")
        key = () if mode == "insert" else "id"
        return SqlSink(url, table or f"{self.name}.t", mode=mode, key=key, patience_secs=0.0)

    def checked(self, mode, *, way="set_sink", table=None, fields=("id", "n")):
        """What ``submit`` finds; None if it finds nothing wrong."""
        builder = TopologyBuilder("rights")
        builder.set_spout("feeder", FeederSpout([*fields]))
        getattr(builder, way)("sink", self.sink(mode, table)).shuffle_grouping("feeder")
        ((_, error),) = checks_of(builder.create_topology(), Config())
        return error

    def write(self, mode, fields=("id", "n"), table=None):
        """One row, then many new ones, then all again: each way that rows go. Returns what is refused."""
        sink = self.sink(mode, table)
        place = TaskContext("t", "sink", 1, 0, {"sink": (1,)}, checkpoint_id=f"{next(_numbers)}")
        sink.open(Config(), place)
        sink.last_mark()
        refused = {}
        try:
            for number, rows in enumerate([range(1), range(1, 200), range(200)]):
                shift = 1000 * number if mode == "insert" else 0
                columns = {name: [row + shift for row in rows] for name in fields}
                refused |= sink.write(pa.record_batch(columns), b"%d" % number)
        finally:
            sink._kept._engine.dispose()
        return refused

    def mend(self, error):
        """Run what the fix says."""
        first, _, statements = error.fix.partition(": ")
        assert first == "run as its owner"
        self.execute(re.sub(r" \(or .*\)$", "", statements))


@pytest.fixture
def poor(postgresql):
    made = []

    def make(*arguments):
        made.append(Poor(postgresql, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.execute(f"DROP SCHEMA {each.name} CASCADE")
        each.execute(f"DROP ROLE {each.name}")


@pytest.mark.parametrize("mode", NEEDED)
def test_the_least_rights_suffice(poor, mode):
    user = poor()
    user.open_schema()
    user.grant(*NEEDED[mode])
    user.make_marks(*OF_MARKS)
    assert user.checked(mode) is None
    assert user.write(mode) == {}


@pytest.mark.parametrize(
    ("mode", "lacks"), [(mode, right) for mode in NEEDED for right in sorted(NEEDED[mode])]
)
def test_each_right_that_is_missing_is_named_and_its_grant_mends_it(poor, mode, lacks):
    user = poor()
    user.open_schema()
    user.grant(*NEEDED[mode] - {lacks})
    user.make_marks(*OF_MARKS)
    with pytest.raises(ConnectorError):
        user.write(mode)
    error = user.checked(mode)
    right = lacks.partition(" ")[0]
    assert error.what.startswith(f"the user may not {right} in ")
    assert f"GRANT {right} ON" in error.fix
    assert not error.can_retry
    assert f"{user.name}.t" in error.where
    user.mend(error)
    assert user.checked(mode) is None
    assert user.write(mode) == {}


def test_all_that_is_missing_is_said_at_once(poor):
    user = poor("n serial, id int PRIMARY KEY, x int")
    user.open_schema()
    error = user.checked("upsert", way="set_bolt", fields=["id", "x"])
    lacking = "INSERT in 'id', 'x'; nor UPDATE in 'x'; nor SELECT in 'id', 'x'; nor use the sequence"
    assert lacking in error.what
    user.mend(error)
    assert user.checked("upsert", way="set_bolt", fields=["id", "x"]) is None


def test_a_sequence_that_numbers_rows_is_asked_for_unless_its_column_is_written(poor):
    user = poor("n serial PRIMARY KEY, id int")
    user.open_schema()
    user.grant("INSERT")
    user.make_marks(*OF_MARKS)
    assert user.checked("insert") is None
    error = user.checked("insert", fields=["id"])
    with pytest.raises(ConnectorError, match="permission denied for sequence"):
        user.write("insert", ["id"])
    assert "t_n_seq" in error.what
    user.mend(error)
    assert user.checked("insert", fields=["id"]) is None
    assert user.write("insert", ["id"]) == {}


@pytest.mark.parametrize("lacks", sorted(OF_MARKS))
def test_a_sink_asks_for_each_right_on_the_marks_and_a_bolt_for_none(poor, lacks):
    user = poor()
    user.open_schema()
    user.grant(*NEEDED["upsert"])
    user.make_marks(*OF_MARKS - {lacks})
    error = user.checked("upsert")
    assert error.what == f"the user may not {lacks} in the table {user.name}.acktree_marks of marks"
    assert user.checked("upsert", way="set_bolt") is None
    with pytest.raises(ConnectorError):
        user.write("upsert")
    user.mend(error)
    assert user.checked("upsert") is None
    assert user.write("upsert") == {}


@pytest.mark.parametrize("table", ["t", None], ids=["found by the search path", "with its schema"])
def test_who_may_not_make_the_table_of_marks_hears_it_before_the_first_row(poor, table):
    user = poor()
    user.open_schema()
    user.grant(*NEEDED["upsert"])
    error = user.checked("upsert", table=table)
    assert "acktree_marks for marks, and the user may not make it" in error.what
    with pytest.raises(ConnectorError) as late:
        user.write("upsert", table=table)
    assert (late.value.what, late.value.fix) == (error.what, error.fix)
    assert user.checked("upsert", table=table, way="set_bolt") is None
    user.mend(error)
    assert user.checked("upsert", table=table) is None
    assert user.write("upsert", table=table) == {}


def test_who_may_make_the_table_of_marks_needs_no_other_right_on_it(poor):
    user = poor()
    user.open_schema("USAGE, CREATE")
    user.grant(*NEEDED["upsert"])
    assert user.checked("upsert") is None
    assert user.execute(f"SELECT to_regclass('{user.name}.acktree_marks')").fetchone() == (None,), "a check"
    assert user.write("upsert") == {}


@pytest.mark.parametrize("table", ["t", None], ids=["found by the search path", "with its schema"])
def test_a_schema_that_may_not_be_used_is_named(poor, table):
    poor()  # another schema with a table of this name is not meant
    user = poor()
    user.grant(*NEEDED["upsert"])
    user.make_marks(*OF_MARKS)
    error = user.checked("upsert", table=table)
    assert error.what == f"there is a table 't' in '{user.name}', a schema that the user may not use"
    user.mend(error)
    assert user.checked("upsert", table=table) is None
    assert user.write("upsert", table=table) == {}
