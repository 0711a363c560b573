"""The driver's sockets: who does not say the token of this start gets nothing and changes nothing."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

pytest.importorskip("pyspark")

from acktree.spark.realtime.connections import (
    HELLO,
    REPORT,
    SOURCE_LEVEL,
    ConnectionLostError,
    Connections,
    Moments,
    Peer,
    Report,
    connect,
)

READER = Peer(SOURCE_LEVEL, 0)
MOMENTS = Moments(1, 2, 3)


class Driver:
    """Connections with one partition, and the reports that came."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, Peer, Report]] = []
        self.connections = Connections(1, lambda *said: self.reports.append(said))
        self.address = self.connections.begin()

    def await_report(self, count: int) -> None:
        with self.connections.changed:
            assert self.connections.changed.wait_for(lambda: len(self.reports) >= count, 20)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.connections.close()


def answer(connection: socket.socket) -> bytes:
    """All that the driver sends until it closes the connection."""
    connection.settimeout(20)
    try:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except ConnectionResetError:  # closed with something unread
        return b""


def hello(driver: Driver, token: str | None = None, incarnation: int | None = None) -> bytes:
    known = driver.address
    said = known.token if token is None else token
    return HELLO.pack(said.encode(), known.incarnation if incarnation is None else incarnation, *READER)


def report(epoch: int, length: int) -> bytes:
    """What comes before the body of a report."""
    return REPORT.pack(epoch, length, *MOMENTS)


@pytest.mark.parametrize("kind", ["nonsense", "another token", "an earlier start", "a part, then the end"])
def test_a_stranger_is_closed_and_gets_no_byte(driver, kind):
    said = {
        "nonsense": os.urandom(HELLO.size),
        "another token": hello(driver, token="0" * 64),
        "an earlier start": hello(driver, incarnation=driver.address.incarnation - 1),
        "a part, then the end": hello(driver)[:-1],
    }[kind]
    with connect(driver.address, READER) as reader, socket.create_connection(driver.address[:2]) as stranger:
        assert driver.connections.await_readers(20)
        stranger.sendall(said)
        with suppress(OSError):  # it may be closed already
            stranger.sendall(report(1, 3) + b"lie" if len(said) == HELLO.size else b"")
            stranger.shutdown(socket.SHUT_WR)
        assert answer(stranger) == b""
        driver.connections.send(0, b"for the reader")
        assert reader.recv(100) == b"for the reader"
    assert driver.reports == []


def test_a_crowd_that_says_nothing_does_not_keep_a_reader_out_for_good(driver):
    crowd = [socket.create_connection(driver.address[:2]) for _ in range(100)]
    refused = [stranger for stranger in crowd[64:] if answer(stranger) == b""]
    assert len(refused) == 36, "of silent connections only so many may wait"
    for stranger in crowd:
        stranger.close()
    while not driver.connections.await_readers(0):
        with connect(driver.address, READER) as reader:
            if driver.connections.await_readers(1):
                driver.connections.send(0, b"rows")
                assert reader.recv(4) == b"rows"
                return


def test_reports_are_delivered_whole_and_in_order(driver):
    with connect(driver.address, Peer(2, 5)) as level:
        for epoch, body in enumerate([b"", b"x" * 3_000_000, b"last"]):
            level.sendall(report(epoch, len(body)) + body)
        driver.await_report(3)
    assert [(who, each.epoch, len(each.body)) for _, who, each in driver.reports] == [
        (Peer(2, 5), 0, 0),
        (Peer(2, 5), 1, 3_000_000),
        (Peer(2, 5), 2, 4),
    ]
    assert [each.moments for _, _, each in driver.reports] == [MOMENTS] * 3


def test_what_an_earlier_start_still_reports_is_dropped(driver):
    with connect(driver.address, Peer(0, 0)) as earlier:
        earlier.sendall(report(0, 0))
        driver.await_report(1)
        address = driver.connections.begin()
        with connect(address, Peer(0, 0)) as level:
            with suppress(OSError):  # it is closed; the kernel may take the first bytes
                for _ in range(100):
                    earlier.sendall(report(1, 0))
            level.sendall(report(2, 0))
            driver.await_report(2)
    assert [each.epoch for _, _, each in driver.reports] == [0, 2]


def test_a_task_that_is_gone_in_mid_batch_is_noticed(driver):
    reader = connect(driver.address, READER)
    assert driver.connections.await_readers(20)
    reader.close()
    with driver.connections.changed:
        assert driver.connections.changed.wait_for(lambda: driver.connections.lost, 20) == READER
    with pytest.raises(ConnectionLostError, match="partition=0"):
        driver.connections.send(0, b"rows")


def test_a_batch_ends_when_its_tasks_have_closed_their_connections(driver):
    reader, level = connect(driver.address, READER), connect(driver.address, Peer(0, 0))
    level.sendall(report(0, 0))
    driver.await_report(1)
    assert driver.connections.await_readers(20)
    ending = Thread(target=driver.connections.end_batch)
    ending.start()
    assert reader.recv(1) == b"\0"
    reader.close()
    assert ending.is_alive(), "the level still runs"
    level.close()
    ending.join(20)
    assert not ending.is_alive()
    assert driver.connections.lost is None


def test_a_hello_is_as_the_java_source_writes_it():
    assert struct.calcsize(">64siii") == HELLO.size == 64 + 12
