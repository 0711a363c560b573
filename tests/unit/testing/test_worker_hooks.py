"""Worker hooks: once in a process, before its first bolt; again in a forked child."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from threading import Lock

import pytest

from acktree import BasicBolt, Config, ConfigError, TopologyBuilder, WorkerHook
from acktree.core.data.hooks import WorkerContext
from acktree.tasks.worker_hooks import WorkerHooks
from acktree.testing import FeederSpout, LocalCluster

CALLS: list[object] = []


class Notes(WorkerHook):
    def start(self, config, context):
        CALLS.append(("start", context.topology_name, config.worker_hooks))
        context.set_resource("number", 7)

    def shutdown(self):
        CALLS.append("shutdown")


class Raises(WorkerHook):
    def start(self, config, context):
        raise ValueError("no start")


class RaisesLate(WorkerHook):
    def shutdown(self):
        raise ValueError("no end")


class Uses(BasicBolt):
    outputs = []

    def __init__(self, name: str = "number") -> None:
        self.name = name

    def prepare(self, config, context):
        CALLS.append(context.resource(self.name))

    def execute(self, tup, collector):
        pass


def run(bolt, *hooks):
    CALLS.clear()
    builder, feeder = TopologyBuilder("worker"), FeederSpout(["n"])
    builder.set_spout("numbers", feeder)
    builder.set_bolt("bolt", bolt, parallelism=2).shuffle_grouping("numbers")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology(), config=Config(partitions=2, worker_hooks=hooks))
        for n in range(20):
            feeder.feed([n], message_id=n)
            cluster.advance()
        running.kill(wait_secs=0)
    return feeder, running


def test_it_starts_before_the_first_bolt_lends_what_it_sets_and_shuts_down_once():
    feeder, running = run(Uses(), Notes())
    assert sorted(feeder.acked) == list(range(20))
    assert CALLS[0] == ("start", "worker", ())
    assert CALLS[-1] == "shutdown"
    assert set(CALLS[1:-1]) == {7}
    assert not running.errors


def test_what_it_raises_is_reported_once_and_bolts_run_all_the_same():
    feeder, running = run(Uses(), Raises(), RaisesLate(), Notes())
    assert sorted(feeder.acked) == list(range(20))
    assert [error.reason.partition("\n")[0] for error in running.errors] == [
        "HookError: worker hook Raises could not start: ValueError: no start",
        "worker hook RaisesLate could not shut down: ValueError: no end",
    ]
    assert CALLS[-1] == "shutdown"


class Exits(WorkerHook):
    def start(self, config, context):
        sys.exit(3)


class ExitsLate(WorkerHook):
    def shutdown(self):
        sys.exit(4)


class ExitsWhenCopied(WorkerHook):
    def __reduce__(self):
        return sys.exit, (5,)


def test_sys_exit_in_a_hook_is_reported_and_the_others_are_called():
    CALLS.clear()
    hooks = WorkerHooks(pickle.dumps((Exits(), Notes(), ExitsLate())), Config(), "worker")
    assert "worker hook Exits could not start: SystemExit: 3" in str(hooks.begin()[0])
    assert "worker hook ExitsLate could not shut down: SystemExit: 4" in str(hooks.end()[0])
    assert CALLS == [("start", "worker", ()), "shutdown"]
    copied = WorkerHooks(pickle.dumps((ExitsWhenCopied(),)), Config(), "worker")
    assert "could not be unpickled here: SystemExit: 5" in str(copied.begin()[0])


def test_a_resource_that_is_not_there_is_named():
    feeder, _ = run(Uses("nubmer"), Notes())
    assert "there is no resource 'nubmer'" in feeder.failed[0][1].reason
    assert "did you mean 'number'?" in feeder.failed[0][1].reason


def test_a_hook_that_cannot_be_pickled_or_is_none_is_refused_before_anything_runs():
    hook = WorkerHook()
    hook.lock = Lock()
    with pytest.raises(ConfigError, match="a worker hook cannot be pickled"):
        run(Uses(), hook)
    with pytest.raises(ConfigError, match=r"extend acktree\.WorkerHook"):
        Config(worker_hooks=[Uses()])


def test_what_cannot_be_unpickled_is_reported():
    hooks = WorkerHooks(b"nothing", Config(), "worker")
    assert "could not be unpickled here" in str(hooks.begin()[0])
    assert hooks.begin() == hooks.end() == []


CHILD = """
import os, pickle, signal, sys
from acktree import Config, WorkerHook
from acktree.tasks.worker_hooks import WorkerHooks

class Says(WorkerHook):
    def start(self, config, context):
        context.set_resource("pid", os.getpid())
        os.write(1, b"start ")
    def shutdown(self):
        os.write(1, b"shutdown ")

hooks = WorkerHooks(pickle.dumps((Says(),)), Config(), "worker")
assert hooks.begin() == hooks.begin() == []
pid = os.fork()
if not pid:
    assert hooks.resources == {}
    hooks.end()
    hooks.begin()
    assert hooks.resources == {"pid": os.getpid()}
    hooks.end()
    os._exit(0)
os.waitpid(pid, 0)
hooks.end_with_process()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_forked_child_starts_its_own_and_a_process_that_is_ended_shuts_down():
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=False, timeout=60)
    assert ended.stdout.split() == [b"start", b"start", b"shutdown", b"shutdown"], ended.stderr
    assert ended.returncode == -signal.SIGTERM


def test_a_signal_that_user_code_handles_stays_the_users():
    CALLS.clear()
    hooks = WorkerHooks(b"", Config(), "worker")
    hooks._started, hooks._pid = [Notes()], os.getpid()
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        hooks.end_with_process()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert WorkerContext("worker", {}).topology_name == "worker"
