"""Dead letters on PostgreSQL: the laws of the store, and what only a server can do to it."""

from __future__ import annotations

import logging
import pickle
import threading
import traceback

import pytest

from acktree import Config, Retry
from acktree.dead_letters import DeadLetters
from acktree.errors import ConnectorError
from acktree.testing import LocalCluster
from tests.services.postgresql import PASSWORD
from tests.unit.dead_letters.harness import Harness
from tests.unit.dead_letters.letters import LETTER, letter
from tests.unit.dead_letters.test_store import *  # noqa: F403  # the laws, on the place below


@pytest.fixture
def place(postgresql, schema):
    return postgresql.url(schema)


@pytest.fixture
def store(place):
    with DeadLetters(place, create=True) as opened:
        yield opened


def test_a_session_that_does_not_wait_for_the_disk_is_made_to_wait(postgresql, schema):
    with DeadLetters(postgresql.url(schema, settings="-c synchronous_commit=off"), create=True) as store:
        store.put([LETTER])
        with store._table._begun() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        with store._table._connected() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"


def test_a_session_that_waits_for_more_than_the_disk_keeps_doing_so(postgresql, schema):
    with (
        DeadLetters(
            postgresql.url(schema, settings="-c synchronous_commit=remote_apply"), create=True
        ) as store,
        store._table._begun() as connection,
    ):
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "remote_apply"


def test_while_the_server_is_away_verdicts_wait_and_when_it_is_back_each_is_delivered_once(postgresql, store):
    harness = Harness(Retry(max_attempts=1), store, Config())
    harness.feed("a", "b", "c")
    harness.verdicts(failed=[0])
    assert (harness.spout.given_up, len(store)) == (["a"], 1)
    postgresql.stop()
    try:
        harness.verdicts(acked=[1], failed=[2])
        assert (harness.spout.acked, harness.spout.given_up, harness.task.open_count) == (["b"], ["a"], 1)
        with pytest.raises(ConnectorError, match="cannot store") as refused:
            store.put([LETTER])
        assert refused.value.can_retry
    finally:
        postgresql.start()
    harness.now_ms = harness.task.due_ms()
    harness.step()
    assert (harness.spout.given_up, len(store)) == (["a", "c"], 2)


def test_a_server_that_was_restarted_meanwhile_is_found_again_at_once(postgresql, store):
    store.put([letter(1)])
    postgresql.stop()
    postgresql.start()
    assert store.put([letter(1), letter(2)]) == 1


def test_two_drivers_that_store_the_same_letters_at_once_store_each_once(place):
    """As after a crash: the driver that was thought dead delivers its verdicts too."""
    with DeadLetters(place, create=True) as one, DeadLetters(place, create=True) as two:
        new, both_ready = [], threading.Barrier(2)

        def put(store):
            for first in range(0, 60, 6):
                both_ready.wait(30)
                new.append(store.put(letter(root) for root in range(first, first + 6)))

        threads = [threading.Thread(target=put, args=(store,)) for store in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(new) == 60
        assert sorted(stored.root for stored in one) == list(range(60))


def test_a_user_who_may_only_read_and_write_the_tables_needs_no_other_right(postgresql, schema, store):
    with postgresql.connect() as admin:
        admin.execute(f"CREATE ROLE clerk_{schema} LOGIN PASSWORD 'plain'")
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO clerk_{schema}")
        admin.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO clerk_{schema}")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO clerk_{schema}")
    theirs = f"postgresql+psycopg://clerk_{schema}:plain@127.0.0.1:{postgresql.port}/postgres"
    with DeadLetters(f"{theirs}?options=-csearch_path%3D{schema}", create=True) as clerks:
        assert clerks.put([LETTER]) == 1
        clerks.mark_redriven([1], now_ms=1)
        with pytest.raises(ConnectorError, match="permission denied"):
            clerks.purge(ids=[1])
    assert len(store) == 1


def test_a_wrong_password_is_reported_and_cannot_be_retried(postgresql, caplog):
    wrong = postgresql.url().replace("S3cr3t", "S3cr3t-and-wrong")
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(ConnectorError, match="password authentication") as caught,
    ):
        DeadLetters(wrong, create=True)
    assert not caught.value.can_retry
    assert "check the user and the password" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value)) + str(pickle.dumps(caught.value)) + caplog.text
    assert "S3cr3t" not in shown
    assert PASSWORD not in shown


def test_the_letters_are_plain_sql_for_others(postgresql, schema, store):
    store.put([LETTER])
    with postgresql.connect() as other:
        rows = other.execute(f"SELECT topology, root, reason FROM {schema}.acktree_dead_letters").fetchall()
    assert rows == [(LETTER.topology, LETTER.root, LETTER.reason)]


def test_a_local_cluster_needs_no_server_whatever_the_url():
    config = Config(dead_letters_url="postgresql+psycopg://nobody@127.0.0.1:1/none")
    harness = Harness(Retry(max_attempts=1), None, config)
    with LocalCluster() as cluster:
        assert list(cluster.submit(harness.topology, config=config).dead_letters) == []
