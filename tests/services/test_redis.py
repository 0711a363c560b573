"""The connector of Redis Streams against a real server."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

client = pytest.importorskip("redis")

from acktree import ConfigError, TopologyBuilder  # noqa: E402
from acktree.connectors import redis as connector  # noqa: E402
from acktree.connectors import redis_client  # noqa: E402
from acktree.connectors.redis import RedisStreamSink, RedisStreamSpout  # noqa: E402
from acktree.testing import SPOUT_CHECKS, FeederSpout, LocalCluster, SpoutHarness, check_spout  # noqa: E402
from tests.services.named import check_that_a_key_runs_once, digest, names_of  # noqa: E402
from tests.services.proxied import (  # noqa: E402
    ProxiedBroker,
    check_that_a_hang_is_reported,
    check_that_what_cannot_be_emitted_goes_back,
)
from tests.services.servers import Redis  # noqa: E402

STREAM, GROUP, CLAIM_SECS = "orders", "totals", 2.0

_consumers = count()


class Stream(ProxiedBroker):
    """A stream with one group, reached through a proxy that can be cut."""

    shortest_lease_secs = CLAIM_SECS
    redelivery_secs = 4
    acks_belong_to_connection = False
    counts_attempts = True

    def __init__(self, server: Redis):
        super().__init__(server)
        self.client = client.Redis.from_url(server.url)

    def url(self, login: str = "", scheme: str = "redis") -> str:
        return f"{scheme}://{login}127.0.0.1:{self.proxy.port}/0"

    def make_spout(self, url: str | None = None, stream: str = STREAM) -> RedisStreamSpout:
        name = f"consumer {next(_consumers)}"
        return RedisStreamSpout(url or self.url(), stream, GROUP, consumer=name, claim_idle_secs=CLAIM_SECS)

    def put(self, bodies):
        for body in bodies:
            self.client.xadd(STREAM, {"body": body})

    def body_of(self, values):
        return values[1][b"body"]

    def count(self):
        [group] = self.client.xinfo_groups(STREAM)
        return group["pending"] + (group["lag"] or 0)

    def drop_queue(self):
        self.client.delete(STREAM)

    def clear(self):
        self.client.delete(STREAM)
        self.client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        right = {"enabled": True, "passwords": ["+right"], "keys": ["*"]}
        self.client.acl_setuser("reader", **right, commands=["+@all"])
        self.client.acl_setuser("stranger", **right, commands=["+ping", "+hello", "+client"])

    def misconfigured(self):
        nowhere = f"redis://:{self.secret}@127.0.0.1:1/0"
        return {
            "a wrong password": (lambda: self.make_spout(self.url(f"reader:{self.secret}@")), False),
            "no right to the stream": (lambda: self.make_spout(self.url("stranger:right@")), False),
            "an absent stream": (lambda: self.make_spout(stream="nowhere"), False),
            "no server": (lambda: self.make_spout(nowhere), True),
        }


@pytest.fixture(scope="module")
def stream(redis):
    made = Stream(redis)
    yield made
    made.client.close()
    made.proxy.remove()


@pytest.mark.slow
@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_the_spout_keeps_the_contract(stream: Stream, check: str) -> None:
    check_spout(stream.make_spout, stream, only=[check])


def test_pending_entries_of_an_earlier_run_are_read_again_except_open_ones(stream: Stream) -> None:
    stream.clear()
    stream.put([b"%d" % n for n in range(4)])
    spouts = [RedisStreamSpout(stream.url(), STREAM, GROUP, consumer="c") for _ in range(2)]
    with_open = []

    class Collector:
        def emit(self, values, message_id=None, attempt=1, label=None, key=None):
            with_open.append((values[1][b"body"], message_id, attempt))

        report_error = pytest.fail

    class Context:
        open_message_ids = ()
        max_spout_pending = None

    spouts[0].open(None, Context, Collector())
    for _ in range(4):
        spouts[0].next_tuple()
    spouts[0].ack_batch([with_open[3][1]])
    spouts[0].close()
    Context.open_message_ids = (with_open[0][1],)
    del with_open[:]
    spouts[1].open(None, Context, Collector())
    for _ in range(4):
        spouts[1].next_tuple()
    spouts[1].close()
    assert [(body, attempt) for body, _, attempt in with_open] == [(b"1", 2), (b"2", 2)]


def test_claimed_entries_have_their_attempts_however_many_are_open_between_them(stream: Stream) -> None:
    stream.clear()
    open_count = connector._PAGE + 5
    stream.client.eval(
        "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '1-' .. n, 'body', n) end", 1, STREAM, open_count
    )
    dead = partial(stream.client.xreadgroup, GROUP, "dead", {STREAM: ">"}, count=1)
    dead()
    spout = RedisStreamSpout(stream.url(), STREAM, GROUP, consumer="c", claim_idle_secs=0.5)
    with SpoutHarness(spout) as harness:
        harness.spout._claim_after = float("inf")
        harness.until(lambda: len(harness.arrived) == open_count - 1, 10, "the others come")
        stream.client.xadd(STREAM, {"body": "last"}, id="2-1")
        dead()
        for _ in range(4):
            stream.client.xclaim(STREAM, GROUP, "dead", 0, ["1-1", "2-1"])
        harness.spout._claim_after = 0.0
        harness.until(lambda: len(harness.arrived) == open_count + 1, 10, "those of the dead consumer come")
    assert [(each.values[0], each.attempt) for each in harness.arrived[-2:]] == [("1-1", 6), ("2-1", 6)]


def test_the_sink_acks_what_was_added(stream: Stream) -> None:
    stream.clear()
    feeder = FeederSpout(["fields"])
    builder = TopologyBuilder("sink")
    builder.set_spout("feeder", feeder)
    builder.set_bolt("sink", RedisStreamSink(stream.server.url, STREAM)).shuffle_grouping("feeder")
    with LocalCluster() as cluster:
        cluster.submit(builder.create_topology())
        for n in range(3):
            feeder.feed(
                [{"body": b"%d" % n} if n != 1 else {}], message_id=n
            )  # an entry has a field at least
        cluster.advance()
    assert feeder.acked == [0, 2]
    assert [message_id for message_id, _ in feeder.failed] == [1]
    assert [fields for _, fields in stream.client.xrange(STREAM)] == [{b"body": b"0"}, {b"body": b"2"}]


def test_a_url_that_is_none_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        RedisStreamSpout("http://:S3cr3t@host/", STREAM, GROUP)
    assert "S3cr3t" not in str(refused.value)


@pytest.mark.parametrize("secs", [0, -1])
def test_an_idle_time_is_seconds(secs) -> None:
    with pytest.raises(ConfigError, match="claim_idle_secs"):
        RedisStreamSpout("redis://127.0.0.1/", STREAM, GROUP, claim_idle_secs=secs)


def test_a_server_that_answers_no_more_is_an_outage(stream: Stream, monkeypatch) -> None:
    monkeypatch.setattr(redis_client, "_CONNECT_SECS", 0.5)
    check_that_a_hang_is_reported(stream)


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("field:order", [("A-17", digest(b"A-17")), (None, b"")]),
        ("entry_id", [("1-0", digest("1-0")), ("2-0", digest("2-0"))]),
        (
            lambda entry: entry["entry_id"] + entry["fields"][b"body"].decode(),
            [("1-0m", digest("1-0m")), ("2-0m", digest("2-0m"))],
        ),
    ],
)  # fmt: skip
def test_an_entry_is_named_from_where_the_spout_says(stream: Stream, place: object, names: object) -> None:
    stream.clear()
    stream.client.xadd(STREAM, {"body": b"m", "order": "A-17"}, id="1-0")
    stream.client.xadd(STREAM, {"body": b"m"}, id="2-0")
    spout = RedisStreamSpout(stream.url(), STREAM, GROUP, label=place, key=place)
    assert names_of(spout, 2) == names
    assert stream.count() == 0


def test_an_entry_with_a_key_that_was_acked_does_not_run_again(stream: Stream) -> None:
    stream.clear()
    spout = RedisStreamSpout(stream.url(), STREAM, GROUP, key="field:body")
    check_that_a_key_runs_once(spout, lambda: stream.put([b"m"]), stream.count)
    assert stream.client.xlen(STREAM) == 2


def test_what_cannot_be_emitted_goes_back(stream: Stream) -> None:
    check_that_what_cannot_be_emitted_goes_back(stream)


@pytest.mark.parametrize("owner", ["the same consumer", "another one that is dead"])
def test_pending_entries_that_were_trimmed_are_reported_once_with_their_number(
    stream: Stream, owner: str, monkeypatch
) -> None:
    stream.clear()
    stream.put([b"%d" % n for n in range(5)])
    consumer = "c" if owner == "the same consumer" else "dead"
    stream.client.xreadgroup(GROUP, consumer, {STREAM: ">"}, count=5)
    stream.client.xtrim(STREAM, maxlen=2, approximate=False)
    spout = RedisStreamSpout(stream.url(), STREAM, GROUP, consumer="c", claim_idle_secs=0.2)
    with SpoutHarness(spout) as harness:
        harness.until(lambda: len(harness.arrived) == 2 and bool(harness.reports), 10, "the others come")
        harness.ack(harness.arrived)
        harness.rest(0.5)
        [report] = harness.reports
    state = "pending" if consumer == "c" else "pending at other consumers"
    assert f"3 entries that were {state} were removed" in report.reason
    assert stream.count() == 0


def test_an_entry_that_was_trimmed_while_it_was_open_is_not_reported(stream: Stream) -> None:
    stream.clear()
    stream.put([b"0"])
    spout = RedisStreamSpout(stream.url(), STREAM, GROUP, consumer="c", claim_idle_secs=0.2)
    with SpoutHarness(spout) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        stream.client.xtrim(STREAM, maxlen=0)
        harness.rest(0.5)
        harness.ack(harness.arrived)
        assert not harness.reports


def test_a_failed_entry_that_was_trimmed_is_reported(stream: Stream) -> None:
    stream.clear()
    stream.put([b"0"])
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        stream.client.xtrim(STREAM, maxlen=0)
        harness.fail(harness.arrived)
        harness.until(lambda: bool(harness.reports), 10, "it is reported")
        assert "1 entries that were pending were removed" in harness.reports[0].reason


def test_entries_that_were_trimmed_before_they_were_delivered_are_reported(
    stream: Stream, monkeypatch
) -> None:
    monkeypatch.setattr(connector, "_LOOK_SECS", 0.01)
    stream.clear()
    stream.put([b"first"])
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        harness.ack(harness.arrived)
    stream.put([b"%d" % n for n in range(10)])
    stream.client.xtrim(STREAM, maxlen=4, approximate=False)
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 4, 10, "the others come")
        harness.ack(harness.arrived)
        harness.rest(0.2)
        stream.client.xtrim(STREAM, maxlen=0)  # of entries that are processed nothing is said
        harness.rest(0.2)
        [report] = harness.reports
    assert "6 entries that were not delivered yet were removed" in report.reason


def test_a_user_who_may_not_ask_for_the_stream_reads_it_all_the_same(stream: Stream) -> None:
    stream.clear()
    commands = ["-@all", "+@stream", "+ping", "+hello", "+client", "-xinfo"]
    stream.client.acl_setuser("poor", enabled=True, passwords=["+right"], keys=["*"], commands=commands)
    stream.put([b"0"])
    with SpoutHarness(stream.make_spout(stream.url("poor:right@"))) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        assert not harness.reports


REFUSALS = {
    "NOREPLICAS": (
        ["CONFIG", "SET", "min-replicas-to-write", 1],
        ["CONFIG", "SET", "min-replicas-to-write", 0],
    ),
    "READONLY": (["REPLICAOF", "127.0.0.1", 1], ["REPLICAOF", "NO", "ONE"]),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_an_answer_that_passes_is_one_outage(stream: Stream, code: str) -> None:
    trouble, repair = REFUSALS[code]
    stream.clear()
    stream.put([b"0"])
    with SpoutHarness(stream.make_spout()) as harness:
        harness.until(lambda: len(harness.arrived) == 1, 10, "it comes")
        harness.ack(harness.arrived)
        stream.client.execute_command(*trouble)
        try:
            harness.until(lambda: bool(harness.reports), 10, "it is reported")
            harness.rest(0.3)
        finally:
            stream.client.execute_command(*repair)
        stream.put([b"1"])
        harness.until(lambda: len(harness.arrived) == 2, 10, "it goes on")
        [report] = harness.reports
    assert code in report.reason
    assert report.exception.can_retry
