"""Sinks whose server goes away under a topology on Spark: nothing is lost, written twice or given up."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep

import pytest

client = pytest.importorskip("redis")

from acktree import Config, ConnectorError, Retry, Spout, TopologyBuilder, submit  # noqa: E402
from acktree.cli.main import main  # noqa: E402
from acktree.connectors.redis import RedisSink  # noqa: E402

GATE = "__gate/store/numbers/default"


class Numbers(Spout):
    """The numbers below the one in a file, which grows while the test runs."""

    outputs = ["k", "n"]
    redelivers = False
    remembers = ["n"]

    def __init__(self, file: Path):
        self.file, self.n = str(file), 0

    def open(self, config, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.n < int(Path(self.file).read_text()):
            self.collector.emit([f"k{self.n % 7}", 1], message_id=self.n)
            self.n += 1


class DiesInItsCommit(RedisSink):
    """Its server is killed when it has written, once: nobody hears of it."""

    def __init__(self, url: str, server: int, file: Path):
        super().__init__(url, "sums:", key="k", mode="add")
        self.server, self.file = server, str(file)

    def write(self, batch, mark):
        written = super().write(batch, mark)
        if not Path(self.file).exists():
            Path(self.file).write_text("once")
            os.kill(self.server, signal.SIGKILL)
            raise ConnectorError("the connection is gone", "a commit", "wait", can_retry=True)
        return written


def until(is_so):
    pause = 0.02
    while not is_so():  # the test has a timeout
        sleep(pause)
        pause = min(0.3, 1.2 * pause)  # most of them ask by a command


class Case:
    def __init__(self, tmp_path, server):
        self.file, self.checkpoint, self.server = tmp_path / "numbers", tmp_path / "checkpoint", server
        self.dead, self.url = tmp_path / "dead", server.url
        self.emit(0)
        with client.Redis.from_url(self.url) as redis:
            redis.flushall()

    def emit(self, end):
        """Let the spout emit the numbers below one."""
        self.file.with_suffix(".new").write_text(str(end))
        self.file.with_suffix(".new").rename(self.file)

    def submit(self, spark, sink):
        builder = TopologyBuilder("sums")
        builder.set_spout("numbers", Numbers(self.file))
        builder.set_sink("store", sink, retry=Retry(max_attempts=1)).fields_grouping("numbers", ["k"])
        topology, config = builder.create_topology(), Config(message_timeout_secs=3600)
        return submit(topology, checkpoint=self.checkpoint, spark=spark, config=config)

    def sum(self):
        with client.Redis.from_url(self.url) as redis:
            return sum(int(redis.hget(name, "n") or 0) for name in redis.keys("sums:k*"))


@pytest.fixture
def case(tmp_path, redis, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield Case(tmp_path, redis)
    if redis.process is None or redis.process.poll() is not None:
        redis.kill()
        redis.start()


def is_bad(capsys, words):
    """Whether ``acktree health`` has a line of what is away, and its exit code."""
    code, said = main(["health", "sums"]), capsys.readouterr().out
    lines = [line for line in said.splitlines() if f"BAD  dependency store of gate {GATE}: " in line]
    return code == 1 and any("since" in line and words in line for line in lines)


@pytest.mark.timeout(300)
def test_rows_wait_while_the_server_is_away_and_are_written_once_when_it_is_back(spark, case, capsys):
    with case.submit(spark, RedisSink(case.url, "sums:", key="k", mode="add")) as running:
        case.emit(50)
        until(lambda: case.sum() == 50)
        case.server.kill()
        case.emit(100)
        until(lambda: is_bad(capsys, "the connection to Redis is gone"))
        batch = running._run.results.progress.batch_id
        until(lambda: running._run.results.progress.batch_id > batch + 3)  # the run goes on meanwhile
        assert running.stats()[GATE].outage.tries > 1
        case.server.start()
        until(lambda: case.sum() == 100)
        until(lambda: running.stats()[GATE].open == 0)
        assert running.stats()[GATE].outage is None
        assert not running.dead_letters


@pytest.mark.timeout(300)
def test_a_server_that_dies_in_a_commit_is_waited_for_as_long_as_it_takes_and_health_says_so(
    spark, case, capsys
):
    sink = DiesInItsCommit(case.url, case.server.process.pid, case.dead)
    with case.submit(spark, sink) as running:
        case.emit(50)
        until(lambda: is_bad(capsys, "its micro-batch waits"))
        until(lambda: running.stats()[GATE].outage.tries > 4)
        assert not running.dead_letters
        case.server.kill()
        case.server.start()
        until(lambda: case.sum() == 50 and running.stats()[GATE].open == 0)
        until(lambda: running.stats()[GATE].outage is None)
        assert not running.dead_letters


@pytest.mark.timeout(300)
def test_a_task_that_waits_ends_at_once_when_it_is_killed_and_the_next_run_waits_again(spark, case, capsys):
    sink = DiesInItsCommit(case.url, case.server.process.pid, case.dead)
    with case.submit(spark, sink) as running:
        case.emit(50)
        until(lambda: is_bad(capsys, "its micro-batch waits"))
        running.kill(wait_secs=0)
    case.emit(80)
    with case.submit(spark, sink) as running:
        until(lambda: is_bad(capsys, "its micro-batch waits"))
        case.server.kill()
        case.server.start()
        until(lambda: case.sum() == 80 and running.stats()[GATE].open == 0)
        assert not running.dead_letters
