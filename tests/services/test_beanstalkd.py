"""The example of a stranger's spout, against a real beanstalkd."""

from __future__ import annotations

import pytest

greenstalk = pytest.importorskip("greenstalk")

from acktree import Retry  # noqa: E402
from acktree.testing import SPOUT_CHECKS, SpoutHarness, check_spout  # noqa: E402
from examples.beanstalkd.beanstalkd import BeanstalkdSpout  # noqa: E402
from tests.services.named import check_that_a_key_runs_once, digest, names_of  # noqa: E402
from tests.services.proxied import ProxiedBroker  # noqa: E402
from tests.services.servers import Beanstalkd  # noqa: E402

TUBE, TTR_SECS = "orders", 2


class Tube(ProxiedBroker):
    """A tube, reached through a proxy that can be cut."""

    redelivery_secs = 0.2  # at once: the connection ends
    shortest_lease_secs = TTR_SECS / 2  # three of them are enough for the server to take a job back
    counts_attempts = True

    def __init__(self, server: Beanstalkd, given_up: str = "dead_letter") -> None:
        super().__init__(server)
        self.given_up = given_up
        self._connect()

    def make_spout(self, **more) -> BeanstalkdSpout:
        return BeanstalkdSpout("127.0.0.1", self.proxy.port, TUBE, buries=self.given_up == "reject", **more)

    def _connect(self):
        self.client = greenstalk.Client(("127.0.0.1", self.server.port), None, use=TUBE, watch=TUBE)

    def put(self, bodies):
        for body in bodies:
            self.client.put(body, ttr=TTR_SECS)

    def count(self):
        stats = self.client.stats_tube(TUBE)
        return sum(stats[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed"))

    def start(self):
        super().start()
        self.client.close()
        self._connect()

    def clear(self):
        self.buried: list[bytes] = []
        self.client.kick(10_000)
        while self.count():
            self.client.delete(self.client.reserve(timeout=5))

    def dead_letters(self):
        while self.client.stats_tube(TUBE)["current-jobs-buried"]:  # only the first can be looked at
            job = self.client.peek_buried()
            self.buried.append(job.body)
            self.client.delete(job)
        return self.buried

    def misconfigured(self):
        return {"no server": (lambda: BeanstalkdSpout("127.0.0.1", 1, TUBE), True)}


CHECKS = [("dead_letter", name) for name in SPOUT_CHECKS]
CHECKS += [("reject", "what is given up has one copy")]


@pytest.fixture
def tube(request, beanstalkd):
    made = Tube(beanstalkd, request.getfixturevalue("given_up"))
    yield made
    made.client.close()
    made.proxy.remove()


@pytest.mark.slow
@pytest.mark.parametrize(("given_up", "check"), CHECKS)
def test_the_spout_keeps_the_contract(tube: Tube, given_up: str, check: str) -> None:
    check_spout(tube.make_spout, tube, only=[check])


@pytest.mark.parametrize("given_up", ["reject"])
def test_a_job_that_was_kicked_begins_anew(tube: Tube, given_up: str) -> None:
    tube.clear()
    tube.put([b"0"])
    for run in range(2):
        with SpoutHarness(tube.make_spout(), retry=Retry(max_attempts=1)) as harness:
            harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
            assert harness.arrived[0].attempt == 1
            (harness.ack if run else harness.fail)(harness.arrived)
            harness.until(lambda: harness.task.is_idle, 10, "it is done")
        tube.client.kick(10)
    assert (tube.count(), given_up) == (0, "reject")


@pytest.mark.parametrize("given_up", ["dead_letter"])
def test_a_job_has_its_number_as_label_and_one_with_a_key_that_was_acked_does_not_run_again(
    tube: Tube, given_up: str
) -> None:
    tube.clear()
    number = tube.client.put(b"m", ttr=TTR_SECS)
    assert names_of(tube.make_spout(key=lambda body: body), 1) == [(f"job {number}", digest(b"m"))]
    check_that_a_key_runs_once(tube.make_spout(key=lambda body: body), lambda: tube.put([b"m"]), tube.count)
    assert given_up == "dead_letter"
