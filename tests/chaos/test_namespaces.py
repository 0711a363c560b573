"""Hosts in namespaces: what they share, that a wire can be cut, and that nothing is left of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.namespaces import Network, missing, network, processes_in, undelayed
from tests.spark.standalone import Host

MISSING = missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Network]:
    with network({"one": [tmp_path], "two": []}) as made:
        yield made


def run_on(host: Host, script: str) -> subprocess.CompletedProcess[str]:
    command = [*host.enter, "bash", "-c", script]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_a_host_sees_what_it_is_shown_and_what_it_wrote_itself(hosts: Network, tmp_path: Path) -> None:
    one, two = hosts.hosts["one"], hosts.hosts["two"]
    (tmp_path / "shown").touch()
    assert run_on(one, f"ls {tmp_path}").stdout.split() == ["shown"]
    assert run_on(two, f"ls {tmp_path}").returncode
    assert not run_on(one, "touch /tmp/mine /dev/shm/mine /var/tmp/mine").returncode
    assert run_on(two, "ls /tmp /dev/shm /var/tmp | grep mine").returncode
    assert not list(Path("/tmp").glob("mine"))
    assert "Read-only" in run_on(one, "touch /etc/mine").stderr
    said = {run_on(host, "hostname; cat /proc/sys/kernel/random/boot_id").stdout for host in (one, two)}
    assert len(said) == 2, "another name, and another boot id"


def test_packets_reach_the_other_host_unless_its_plug_is_pulled(hosts: Network) -> None:
    knock = "timeout 1 bash -c '</dev/tcp/one/9'"
    assert "refused" in run_on(hosts.hosts["two"], knock).stderr, "reached, and no program listens"
    hosts.cut("one")
    assert run_on(hosts.hosts["two"], knock).returncode == 124, "no answer"
    hosts.mend("one")
    assert "refused" in run_on(hosts.hosts["two"], knock).stderr
    if undelayed():
        assert undelayed().startswith(("no tc", "the kernel has no netem"))


HOLDS = """
import subprocess, sys
from tests.chaos.namespaces import network
with network({"one": [], "two": []}) as made:
    last = [*made.hosts["one"].enter, "sh", "-c", "echo entered; exec sleep 600"]
    with subprocess.Popen(last, stdout=subprocess.PIPE) as entered:
        entered.stdout.readline()
        print(*made.networks(), flush=True)
        sys.stdin.read()
"""


def processes_become(wanted: int, networks: set[str]) -> int:
    """Wait at most 20 s until this number of processes is in the networks. Returns the number."""
    deadline = time.monotonic() + 20
    while (found := len(list(processes_in(networks)))) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_was_ended(how: signal.Signals) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", HOLDS], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert run.stdout is not None
    try:
        networks = set(run.stdout.readline().split())
        assert len(networks) == 3, "two hosts and the wire"
        assert processes_become(4, networks) == 4
    finally:
        run.send_signal(how)
        run.communicate(timeout=30)
    assert processes_become(0, networks) == 0, "a network without a process is gone, and its wire too"
