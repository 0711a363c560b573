"""A database by URL: its errors become ConnectorErrors without secrets or users' data."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback

import pytest

from acktree.dead_letters import DeadLetters
from acktree.errors import CheckpointError, ConfigError, ConnectorError
from tests.unit.dead_letters.letters import LETTER, letter

sa = pytest.importorskip("sqlalchemy")
sql = pytest.importorskip("acktree.dead_letters.sql")


@pytest.fixture
def url(tmp_path):
    return f"sqlite+pysqlite:///{tmp_path}/letters.db"


def whole_story(caught):
    """All that a log with a traceback would show, and what a pickle would carry."""
    shown = "".join(traceback.format_exception(caught.value))
    return shown + repr(caught.value) + str(pickle.dumps(caught.value))


@pytest.mark.parametrize(
    "wrong",
    [
        "nosuchdb://me:S3cr3t@host/letters",
        "postgresql+nosuchdriver://me:S3cr3t@host/letters",
        "postgresql+psycopg://me:S3cr3t@host:not-a-port/letters",
        "postgresql://me:S3cr3t@host/letters?password=S3cr3t&connect_timeout=soon",
        "mysql+nosuchdriver://me:S3c%20r3t@host/letters",
        "sqlite+pysqlite://",
    ],
)
def test_the_error_for_an_unusable_url_has_no_password(wrong):
    with pytest.raises((ConfigError, ConnectorError)) as caught:
        DeadLetters(wrong, create=True)
    assert "S3cr3t" not in whole_story(caught)
    assert "S3c r3t" not in whole_story(caught)
    assert wrong.partition(":")[0] in str(caught.value)


def test_an_asynchronous_driver_is_refused_with_one_that_blocks():
    url = "postgresql+asyncpg://me:S3cr3t@127.0.0.1:1/letters"
    with pytest.raises(ConfigError, match="asynchronous") as caught:
        DeadLetters(url, create=True)
    assert "postgresql+psycopg://" in caught.value.fix
    assert "S3cr3t" not in whole_story(caught)


def test_an_unreachable_database_is_an_error_that_can_be_retried():
    pytest.importorskip("psycopg")
    there = "postgresql+psycopg://me:S3cr3t@127.0.0.1:1/letters?connect_timeout=2"
    with pytest.raises(ConnectorError, match="cannot open postgresql") as caught:
        DeadLetters(there, create=True)
    assert caught.value.can_retry
    assert "***@127.0.0.1:1" in str(caught.value)
    assert "S3cr3t" not in whole_story(caught)


def test_a_url_quoted_by_a_driver_is_masked_and_not_chained(url, monkeypatch):
    secret = url + "?password=S3c%2Fr3t"

    def refuse(*_, **__):
        raise sa.exc.OperationalError(f"CONNECT {secret}", {}, Exception(f"no route to {secret} (S3c/r3t)"))

    monkeypatch.setattr(sql.SqlTable, "_make_tables", refuse)
    monkeypatch.setattr(
        sa, "create_engine", lambda url, make=sa.create_engine, **kept: make(url[:-21], **kept)
    )
    for step in ("_make_tables", "create_engine"):
        if step == "create_engine":
            monkeypatch.setattr(sa, "create_engine", raising(sa.exc.ArgumentError(f"cannot parse {secret}")))
        with pytest.raises((ConfigError, ConnectorError)) as caught:
            DeadLetters(secret, create=True)
        assert "***" in str(caught.value)
        assert "S3c/r3t" not in whole_story(caught)
        assert "S3c%2Fr3t" not in whole_story(caught)


def raising(error):
    def refuse(*_, **__):
        raise error

    return refuse


def test_the_error_for_a_refused_letter_does_not_contain_its_values(url):
    refused = letter(1, payload=None, reason="credit card 1234")
    with (
        DeadLetters(url, create=True) as store,
        pytest.raises(ConnectorError, match="cannot store") as caught,
    ):
        store.put([refused])
    assert "credit card" not in whole_story(caught)
    assert not caught.value.can_retry


def test_sqlalchemys_own_log_has_neither_the_password_nor_what_is_in_letters(url, caplog):
    with caplog.at_level(logging.DEBUG, "sqlalchemy"), DeadLetters(url, create=True) as store:
        store.put([letter(1, reason="credit card 1234")])
        assert len(list(store)) == 1
    assert "INSERT" in caplog.text
    assert "credit card" not in "".join(line for line in caplog.text.splitlines() if " Row " not in line)


def test_without_sqlalchemy_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "acktree.dead_letters.sql", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[sql\]' in a clone"):
        DeadLetters("postgresql+psycopg://me@host/letters", create=True)


@pytest.mark.parametrize("version", [3, 99])
def test_letters_of_another_acktree_are_refused_with_both_versions(url, version):
    DeadLetters(url, create=True).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE acktree_dead_letters_version SET version = {version}"))
    engine.dispose()
    with pytest.raises(CheckpointError, match=rf"version \[{version}\].*version 4"):
        DeadLetters(url, create=True)


def test_a_letter_that_another_driver_stores_in_between_is_one_letter(url, monkeypatch):
    look = sql._new
    with DeadLetters(url, create=True) as mine, DeadLetters(url, create=True) as other:
        turns = iter([lambda: other.put([letter(2)]), lambda: None])

        def look_and_be_overtaken(connection, rows):
            new = look(connection, rows)
            monkeypatch.setattr(sql, "_new", look)
            next(turns)()
            monkeypatch.setattr(sql, "_new", look_and_be_overtaken)
            return new

        monkeypatch.setattr(sql, "_new", look_and_be_overtaken)
        assert mine.put([letter(1), letter(2), letter(3)]) == 2
        assert sorted(stored.root for stored in mine) == [1, 2, 3]


def test_tables_that_were_made_for_a_user_who_may_make_none_are_taken(url):
    engine = sa.create_engine(url)
    sql._METADATA.create_all(engine)
    engine.dispose()
    with DeadLetters(url, create=True) as store:
        assert store.put([LETTER]) == 1


@pytest.mark.parametrize("query", ["", "?timeout=5", "?uri=true"])
def test_an_sqlite_file_behind_a_url_is_private_with_any_umask_and_purged_letters_are_overwritten(
    tmp_path, query
):
    path = tmp_path / "folder" / "letters"
    name = f"file:{path}" if "uri" in query else path
    words = b"the user asked to be forgotten"
    before = os.umask(0)
    try:
        with DeadLetters(f"sqlite:///{name}{query}", create=True) as store:
            store.put([letter(1, payload=words * 100), letter(2)])
            assert store.purge(ids=[1]) == 1
    finally:
        os.umask(before)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert words not in path.read_bytes()


@pytest.mark.parametrize("options", ["", "?password=S3cr3t"])
def test_a_reader_of_a_database_that_is_not_there_is_refused_and_makes_none(
    options, tmp_path, recwarn, caplog
):
    url = f"sqlite:///{tmp_path}/mistyped.sqlite{options}"
    with pytest.raises(ConfigError, match="there are no dead letters in") as caught:
        DeadLetters(url)
    assert "S3cr3t" not in whole_story(caught)
    assert list(tmp_path.iterdir()) == []
    DeadLetters(url, create=True).close()
    with DeadLetters(url) as store:
        assert len(store) == 0
    assert recwarn.list == []
    assert ("password" in caplog.text) is bool(options)
    assert "S3cr3t" not in caplog.text


def test_a_reader_of_a_database_without_tables_is_refused_and_makes_none(url):
    sa.create_engine(url).connect().close()
    with pytest.raises(ConfigError, match="there are no dead letters in"):
        DeadLetters(url, create=False)
    assert sa.inspect(sa.create_engine(url)).get_table_names() == []


@pytest.mark.parametrize(
    "place",
    [
        "me:S3cr3t@host",
        "me:S3c@S3cr3t@host/letters",
        "host/letters?password=S3cr3t",
        "postgresql:me:S3cr3t@h",
    ],
)
def test_a_url_whose_scheme_was_left_out_is_masked(place):
    with pytest.raises(ConfigError) as caught:
        DeadLetters(place)
    assert "S3cr3t" not in whole_story(caught)
