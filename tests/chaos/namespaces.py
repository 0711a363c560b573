"""Machines of this machine: hosts in namespaces of their own, which share a wire and nothing else.

Each host has a network, a name, a boot id, and a private ``/tmp``, ``/var/tmp`` and ``/dev/shm``. The rest of
the file system is there to be read only, so what a host writes no other host sees. ``seen`` says which places
in the hidden folders a host is shown all the same.

Rules of this file
------------------
1. Nothing has a name outside. Namespaces live as long as their processes, the wire lives in a namespace too,
   and every process ends with the thread that started it. So a killed run leaves nothing behind.
2. Process numbers are those of this machine: a process in a host can be signalled from outside.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.spark.standalone import Host

HIDDEN: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Folders that each host has of its own. The first is hidden last: a host is made there."""
HOME: Final = HIDDEN[0]
_SUBNET: Final = "10.213.77"
_PROGRAMS: Final = ("env", "ip", "mount", "nsenter", "setpriv", "unshare")
_MORTAL: Final = ("setpriv", "--pdeathsig", "KILL")
_WAIT_SECS: Final = 20.0
# $1: an empty folder; $2: the host's name; $3: its boot id; $4: all hosts; then the places that it is shown.
_FURNISH: Final = """
set -e
stage=$1 name=$2 boot=$3 hosts=$4
shift 4
mount -t tmpfs -o mode=755 stage "$stage"
for place; do
    mkdir -p "$stage/shown$place"
    mount --bind "$place" "$stage/shown$place"
done
for hidden in /tmp /var/tmp /dev/shm; do
    mkdir -p "$stage/shown$hidden" "$stage/new$hidden"
    mount -t tmpfs -o mode=1777 own "$stage/new$hidden"
done
for place; do
    mkdir -p "$stage/new$place"
    mount --move "$stage/shown$place" "$stage/new$place"
done
printf '%s\\n' "$boot" > "$stage/boot"
printf '127.0.0.1 localhost\\n%s\\n' "$hosts" > "$stage/hosts"
mount --bind "$stage/boot" /proc/sys/kernel/random/boot_id
mount --bind "$stage/hosts" /etc/hosts
mount --move "$stage/new/dev/shm" /dev/shm
mount --move "$stage/new/var/tmp" /var/tmp
mount --move "$stage/new/tmp" /tmp
mount -o remount,ro,bind /
hostname "$name"
ip link set lo up
echo furnished
exec sleep infinity
"""


def missing() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if lacking := [program for program in _PROGRAMS if shutil.which(program) is None]:
        return f"no {', '.join(lacking)} (Debian: apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "ip", "link", "add", "tried", "type", "bridge"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    return f"no namespaces or bridges here: {tried.stderr.strip()}" if tried.returncode else ""


def undelayed() -> str:
    """Why packets cannot be delayed here; empty if they can."""
    if shutil.which("tc") is None:
        return "no tc (Debian: apt-get install iproute2)"
    netem = ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    tried = subprocess.run(["unshare", "--net", *netem], check=False, capture_output=True, text=True)
    return f"the kernel has no netem: {tried.stderr.strip()}" if tried.returncode else ""


class Network:
    """Hosts on one wire. Made by :func:`network`.

    Attributes:
        hosts: By name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Number the hosts; none is there yet."""
        self.hosts: dict[str, Host] = {}
        self._ports = {name: f"port{place}" for place, name in enumerate(names)}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._switch: subprocess.Popen[str] | None = None

    def cut(self, name: str) -> None:
        """Pull a host's plug: packets to and from it are lost, and neither side is told."""
        self._on_switch("ip", "link", "set", self._ports[name], "down")

    def mend(self, name: str) -> None:
        """Put the plug in again."""
        self._on_switch("ip", "link", "set", self._ports[name], "up")

    def root(self, name: str) -> Path:
        """The host's file system, to look at from outside."""
        return Path(f"/proc/{self._holders[name].pid}/root")

    def networks(self) -> set[str]:
        """What the kernel calls the networks of the hosts and of the wire."""
        return {_network_of(holder.pid) for holder in self._all_holders() if holder.poll() is None}

    def make(self, seen: Mapping[str, Sequence[Path]], stage: Path, delay_ms: float) -> None:
        """Make the wire, and all hosts on it."""
        addresses = {name: f"{_SUBNET}.{place}" for place, name in enumerate(self._ports, 1)}
        known = "\n".join(f"{address} {name}" for name, address in addresses.items())
        self._switch = _hold("--net", "sh", "-c", "echo furnished; exec sleep infinity")
        self._on_switch("ip", "link", "add", "switch", "type", "bridge")
        self._on_switch("ip", "link", "set", "switch", "up")
        for name, address in addresses.items():
            words = [str(stage), name, str(uuid.uuid4()), known, *map(str, _hidden(seen.get(name, ())))]
            holder = _hold("--net", "--mount", "--uts", "sh", "-c", _FURNISH, "sh", *words)
            self._holders[name] = holder
            inside = ("nsenter", "--target", str(holder.pid), "--net", "--mount", "--uts", "--")
            self.hosts[name] = Host(address, (*inside, *_MORTAL, "env", "-C", str(HOME)), HOME)
            self._plug_in(name, address, holder.pid, delay_ms)

    def unmake(self) -> None:
        """End all that runs in the hosts; the hosts and the wire go with it."""
        holders, own = self._all_holders(), self.networks()
        deadline = time.monotonic() + _WAIT_SECS
        while (left := list(processes_in(own))) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for holder in holders:
                holder.poll()  # so that none is left as a zombie
            time.sleep(0.01)
        for holder in holders:
            holder.communicate()

    def _all_holders(self) -> list[subprocess.Popen[str]]:
        return [holder for holder in (self._switch, *self._holders.values()) if holder is not None]

    def _plug_in(self, name: str, address: str, pid: int, delay_ms: float) -> None:
        port = self._ports[name]
        pair = ("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._on_switch(*pair)
        self._on_switch("ip", "link", "set", port, "master", "switch")
        inside = ("nsenter", "--target", str(pid), "--net", "--")
        _run(*inside, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        if delay_ms and not undelayed():
            netem = ("tc", "qdisc", "add", "dev", port, "root", "netem", "delay", f"{delay_ms}ms")
            self._on_switch(*netem)
        self.mend(name)

    def _on_switch(self, *command: str) -> None:
        assert self._switch is not None, "it is made first"
        _run("nsenter", "--target", str(self._switch.pid), "--net", "--", *command)


@contextmanager
def network(seen: Mapping[str, Sequence[Path]], *, delay_ms: float = 0.5) -> Iterator[Network]:
    """Hosts, until the block is left.

    Args:
        seen: The names of the hosts, and the places in hidden folders that each is shown.
        delay_ms: How long a packet takes to a host, where the kernel has netem.

    Raises:
        OSError: This machine does not allow it; :func:`missing` says so before.
    """
    made = Network(list(seen))
    try:
        # It stays empty, and each host is done with it: what is mounted there is its own, and moved away.
        with tempfile.TemporaryDirectory(prefix="acktree-hosts-", dir=HOME) as stage:
            made.make(seen, Path(stage), delay_ms)
        yield made
    finally:
        made.unmake()


def _hidden(places: Sequence[Path]) -> list[Path]:
    """Those that a host would not see, without those that are below others."""
    wanted = {place.absolute() for place in places if any(map(place.absolute().is_relative_to, HIDDEN))}
    return sorted(place for place in wanted if not wanted.intersection(place.parents))


def _hold(*words: str) -> subprocess.Popen[str]:
    """A process with namespaces of its own, once it says that they are furnished."""
    holder = subprocess.Popen(
        [*_MORTAL, "unshare", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert holder.stdout is not None, "it is a pipe"
    told = holder.stdout.readline()
    if told.strip() != "furnished":
        holder.kill()
        rest, _ = holder.communicate()
        raise OSError(f"a host cannot be furnished: {told}{rest}")
    return holder


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command[-9:])}: {done.stderr.strip()}")


def _network_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def processes_in(networks: set[str]) -> Iterator[int]:
    """The processes in some of the networks that :meth:`Network.networks` names."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended while we looked
                if _network_of(int(entry.name)) in networks:
                    yield int(entry.name)
