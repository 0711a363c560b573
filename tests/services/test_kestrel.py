"""The connector of Kestrel against a stand-in: no Kestrel can be installed any more."""

from __future__ import annotations

import socket
import threading

import pytest

from acktree import Config, ConfigError, ConnectorError
from acktree.connectors import kestrel as connector
from acktree.connectors.kestrel import KestrelSpout
from acktree.testing import SPOUT_CHECKS, SpoutHarness, check_spout
from tests.services.named import check_that_a_key_runs_once, digest, names_of
from tests.services.proxied import (
    ProxiedBroker,
    check_that_a_hang_is_reported,
    check_that_what_cannot_be_emitted_goes_back,
)
from tests.services.servers import Kestrel

QUEUE = "orders"


class Queue(ProxiedBroker):
    """A queue, reached through a proxy that can be cut."""

    shortest_lease_secs = 0.5
    redelivery_secs = 0.5
    makes_queues = True

    def make_spout(self, **more) -> KestrelSpout:
        return KestrelSpout(f"127.0.0.1:{self.proxy.port}", QUEUE, **more)

    def ask(self, command: bytes, end: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.server.port), 10) as connection:
            connection.sendall(command)
            answer = b""
            while not answer.endswith(end):
                answer += connection.recv(1 << 16)
        return answer

    def put(self, bodies):
        stores = b"".join(b"SET %s 0 0 %d\r\n%s\r\n" % (QUEUE.encode(), len(b), b) for b in bodies)
        self.ask(stores, b"STORED\r\n" * len(bodies))

    def count(self):
        lines = self.ask(b"STATS\r\n", b"END\r\n").decode().splitlines()
        return sum(int(line.split()[2]) for line in lines if line.startswith(f"STAT queue_{QUEUE}_items "))

    def drop_queue(self):
        self.ask(b"DELETE %s\r\n" % QUEUE.encode(), b"DELETED\r\n")

    clear = drop_queue

    def misconfigured(self):
        return {"no server": (lambda: KestrelSpout("127.0.0.1:1,127.0.0.1:2", QUEUE), True)}

    def remove(self):
        self.proxy.remove()


@pytest.fixture(scope="module")
def queue(kestrel):
    made = Queue(kestrel)
    yield made
    made.remove()


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(queue: Queue, check: str) -> None:
    check_spout(queue.make_spout, queue, only=[check])


def test_one_server_of_several_may_be_away(queue: Queue) -> None:
    queue.clear()
    queue.put([b"here"])
    other = Queue(Kestrel())
    try:
        other.put([b"there"])
        spout = KestrelSpout([f"127.0.0.1:{each.proxy.port}" for each in (queue, other)], QUEUE)
        with SpoutHarness(spout) as harness:
            harness.until(lambda: len(harness.arrived) == 2, 10, "an item of each server comes")
            other.kill()
            queue.put([b"meanwhile"])
            harness.until(lambda: len(harness.arrived) == 3, 10, "an item of the other server comes")
            harness.rest(1.5)
            assert len(harness.reports) == 1
            other.start()
            harness.until(lambda: len(harness.arrived) == 4, 10, "what was open there comes again")
            bodies = [each.values[0] for each in harness.arrived]
            assert (sorted(bodies[:2]), bodies[2:]) == ([b"here", b"there"], [b"meanwhile", b"there"])
            assert harness.task.open_count == 3
            harness.ack([each for each in harness.arrived if each.values[0] != b"there"])
            harness.ack(harness.arrived[3:])
            harness.until(lambda: harness.task.is_idle, 10, "all are acked")
            assert harness.spout.lag() == 0
    finally:
        other.remove()
        other.server.remove()
    assert queue.count() == 0


def test_each_open_message_has_a_connection_and_no_more_than_are_allowed(queue: Queue) -> None:
    queue.clear()
    queue.put([b"%d" % n for n in range(5)])
    with SpoutHarness(queue.make_spout(connections=2)) as harness:
        harness.until(lambda: len(harness.arrived) == 2, 10, "2 items come")
        harness.rest(0.3)
        assert len(harness.arrived) == 2
        assert harness.spout.lag() == 3


def test_a_check_asks_the_servers_and_keeps_no_connection(queue: Queue) -> None:
    spout = queue.make_spout()
    spout.check(Config(), None)
    assert not any(server.idle for server in spout._servers)
    with pytest.raises(ConnectorError) as raised:
        KestrelSpout("127.0.0.1:1", QUEUE).check(Config(), None)
    assert raised.value.can_retry


def test_a_server_that_is_not_kestrel_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(b"-ERR unknown command 'VERSION'\r\n")

        answers = threading.Thread(target=answer)
        answers.start()
        with pytest.raises(ConnectorError, match="not Kestrel") as raised:
            SpoutHarness(KestrelSpout(f"127.0.0.1:{listener.getsockname()[1]}", QUEUE))
        answers.join()
    assert not raised.value.can_retry


@pytest.mark.parametrize(
    ("servers", "queue_name", "more"),
    [
        ("host:port", QUEUE, {}),
        ("http://host", QUEUE, {}),
        ("host:70000", QUEUE, {}),
        ([], QUEUE, {}),
        ("host", "orders/open", {}),
        ("host", "two words", {}),
        ("host", QUEUE, {"connections": 0}),
    ],
)
def test_what_cannot_be_is_refused(servers, queue_name: str, more) -> None:
    with pytest.raises(ConfigError):
        KestrelSpout(servers, queue_name, **more)


def test_a_server_that_answers_no_more_is_an_outage(queue: Queue, monkeypatch) -> None:
    monkeypatch.setattr(connector, "_SECS", 0.5)
    check_that_a_hang_is_reported(queue)


def test_an_item_is_named_from_its_body_and_does_not_run_again(queue: Queue) -> None:
    queue.put([b'{"order": "A-17"}', b"no JSON"])
    place = "body:order"
    names = names_of(queue.make_spout(label=place, key=place), 2)
    assert sorted(names, key=str) == sorted([("A-17", digest("A-17")), (None, b"")], key=str)
    check_that_a_key_runs_once(
        queue.make_spout(key=lambda item: item["body"]), lambda: queue.put([b"m"]), queue.count
    )


def test_what_cannot_be_emitted_goes_back(queue: Queue) -> None:
    check_that_what_cannot_be_emitted_goes_back(queue)
