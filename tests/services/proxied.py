"""A broker whose server is reached through a proxy that can be cut."""

from __future__ import annotations

import time
from typing import Any

from acktree import MisuseError
from acktree.testing import Broker, SpoutHarness
from tests.services.proxy import Proxy


class ProxiedBroker(Broker):
    """What every queue of a server of a test's own can have done to it."""

    secret = "S3cr3t"

    def __init__(self, server: Any, proxy: Proxy | None = None):
        self.server = server
        self.proxy = proxy or Proxy(server.port)

    def cut(self):
        self.proxy.cut()

    def stop(self):
        self.server.stop()

    def kill(self):
        self.server.kill()

    def start(self):
        self.server.start()


def check_that_a_hang_is_reported(broker: ProxiedBroker, make_spout: Any = None) -> None:
    """A server that accepts connections and never answers is an outage: reported once, and retried."""
    broker.clear()
    broker.put([b"before"])
    with SpoutHarness((make_spout or broker.make_spout)()) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "a message comes")
        broker.proxy.hold()
        harness.ack(harness.arrived)
        harness.until(lambda: bool(harness.reports), 15, "the hang is reported")
        harness.rest(0.5)
        can_retry = [each.exception.can_retry for each in harness.reports]
        broker.proxy.cut()  # and it answers again
        broker.put([b"after"])
        bodies = []

        def is_done():
            fresh = harness.arrived[len(bodies) :]
            harness.ack(fresh)
            bodies.extend(broker.body_of(each.values) for each in fresh)
            return b"after" in bodies and harness.task.is_idle

        harness.until(is_done, 15, "it goes on")
    assert can_retry == [True]


def check_that_leases_are_kept(broker: ProxiedBroker) -> None:
    """For three leases nobody else is given what is open, or was received and waits."""
    broker.clear()
    with (
        SpoutHarness(broker.make_spout(), max_spout_pending=1) as first,
        SpoutHarness(broker.make_spout(), max_spout_pending=1) as second,
    ):
        broker.put([b"%d" % n for n in range(6)])
        acked = {first: 0, second: 0}
        deadline = time.monotonic() + 3 * broker.shortest_lease_secs
        while sum(acked.values()) < 6 and time.monotonic() < deadline + 10:
            for each in acked:
                each.step()
                if time.monotonic() > deadline:
                    fresh = each.arrived[acked[each] :]
                    acked[each] += len(fresh)
                    each.ack(fresh)
            time.sleep(0.01)
        bodies = [broker.body_of(each.values) for harness in acked for each in harness.arrived]
    assert sorted(bodies) == [b"%d" % n for n in range(6)], bodies
    assert broker.count() == 0


class _Refusing:
    """A collector that refuses one message once, as it does a value that does not fit the stream's types."""

    def __init__(self, collector: Any, is_refused: Any):
        self._collector, self._is_refused = collector, is_refused
        self.refused = 0

    def emit(self, values: Any, *more: Any, **named: Any) -> None:
        if not self.refused and self._is_refused(values):
            self.refused += 1
            raise MisuseError("a value does not fit", "spout 'spout'", "emit another")
        self._collector.emit(values, *more, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)


def check_that_what_cannot_be_emitted_goes_back(broker: ProxiedBroker, make_spout: Any = None) -> None:
    """An emit that raises takes neither the message nor its place away: it comes again, and so do others."""
    broker.clear()
    with SpoutHarness((make_spout or broker.make_spout)()) as harness:
        collector = _Refusing(harness.spout._collector, lambda values: broker.body_of(values) == b"odd")
        harness.spout._collector = collector
        bodies = [b"0", b"odd", b"1"]
        broker.put(bodies)
        harness.until(lambda: len(harness.arrived) == len(bodies), 15, "all come")
        assert sorted(broker.body_of(each.values) for each in harness.arrived) == sorted(bodies)
        assert collector.refused == 1
        assert any("does not fit" in each.reason for each in harness.reports)
        harness.ack(harness.arrived)
        harness.until(lambda: harness.task.is_idle, 10, "all are acked")
    assert broker.count() == 0
