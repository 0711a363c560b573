"""Servers that tests need: started once for all of them, each in a folder and on a port of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from tests.services.postgresql import MISSING, PostgreSQL, programs

_SCHEMAS = count(1)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server; skipped where none is installed, but not in CI."""
    found = programs()
    missing = MISSING or ("" if found else "no PostgreSQL server (Debian: apt-get install postgresql)")
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing or found is None:
        pytest.skip(missing)
    server = PostgreSQL(found)
    yield server
    server.remove()


@pytest.fixture
def schema(postgresql: PostgreSQL) -> str:
    """The name of an empty schema."""
    name = f"letters_{next(_SCHEMAS)}"
    postgresql.make_schema(name)
    return name
