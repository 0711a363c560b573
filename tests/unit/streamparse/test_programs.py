"""Programs in the shape of public ones, as their authors wrote them for Storm."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter

from acktree import Verdict
from acktree.core.data import context as contexts
from acktree.streamparse import BatchingBolt, Bolt, Grouping, Spout, Stream, Topology, load
from acktree.streamparse.testing import run_topology
from acktree.testing import FeederSpout, LocalCluster

# --- SpamScope's debug topology, reduced to its graph ----------------------------------------------------


class Mails(Spout):
    outputs = ["mail_path", "mail_server", "priority"]


class Tokenizer(Bolt):
    outputs = [
        Stream(["sha256_random", "mail", "is_filtered"], name="mail"),
        Stream(["sha256_random", "body", "is_filtered"], name="body"),
        Stream(["sha256_random", "network"], name="network"),
        Stream(["sha256_random", "with_attachments", "attachments"], name="attachments"),
        Stream(["sha256_random", "raw_mail"], name="raw_mail"),
    ]

    def initialize(self, stormconf, context):
        self.seen = set()

    def process(self, tup):
        try:
            path = tup.values.mail_path
            if path.startswith("bad"):
                {}[path]
            is_filtered = path in self.seen
            self.seen.add(path)
            key = f"{path}_{len(self.seen)}"
            self.emit([key, {"path": path}, is_filtered], stream="mail")
            self.emit([key, f"body of {path}", is_filtered], stream="body")
            self.emit([key, ["10.0.0.1"]], stream="network")
            self.emit([key, True, [b"\x00attachment"]], stream="attachments")
            self.emit([key, path.upper()], stream="raw_mail")
        except KeyError as error:
            self.raise_exception(error, tup)  # and the mail is acked

    def process_tick(self, tup):
        self.seen.clear()


class Analysis(Bolt):
    outputs = ["sha256_random", "result"]

    def process(self, tup):
        self.emit([tup.values.sha256_random, {type(self).__name__: tup.values[1]}])


class Phishing(Analysis):
    pass


class Network(Analysis):
    pass


class Attachments(Analysis):
    outputs = ["sha256_random", "with_attachments", "attachments"]

    def process(self, tup):
        self.emit([tup.values.sha256_random, True, tup.values.attachments])


class JsonMaker(Bolt):
    outputs = ["sha256_random", "json"]
    input_bolts = frozenset({"tokenizer", "phishing", "network", "attachments", "raw"})

    def initialize(self, stormconf, context):
        self.mails = {}

    def process(self, tup):
        key = tup.values[0]
        parts = self.mails.setdefault(key, {})
        parts[tup.component] = tup.values
        if parts.keys() == self.input_bolts:
            self.mails.pop(key)
            self.emit([key, {name: list(values[1:]) for name, values in parts.items()}])


class Raw(Analysis):
    pass


class Debug(Bolt):
    outputs = ["json"]

    def process(self, tup):
        self.emit([tup.values.json["tokenizer"][0]["path"]])


KEY = Grouping.fields("sha256_random")


class SpamScope(Topology):
    config = {"topology.tick.tuple.freq.secs": 60, "topology.workers": 2}
    mails = Mails.spec()
    tokenizer = Tokenizer.spec(inputs={mails: Grouping.fields("mail_path")}, par=2)
    phishing = Phishing.spec(inputs=[tokenizer["body"]], par=2)
    network = Network.spec(inputs=[tokenizer["network"]])
    attachments = Attachments.spec(inputs=[tokenizer["attachments"]])
    raw = Raw.spec(inputs=[tokenizer["raw_mail"]])
    json = JsonMaker.spec(
        inputs={tokenizer["mail"]: KEY, phishing: KEY, network: KEY, attachments: KEY, raw: KEY}, par=2
    )
    debug = Debug.spec(inputs=[json])


def test_each_mail_of_spamscope_comes_out_once_and_all_are_acked_also_what_could_not_be_parsed():
    mails = [f"mail{n}" for n in range(20)] + ["bad mail"]
    results = run_topology(SpamScope, {"mails": [[mail, "server", 1] for mail in mails]})
    assert sorted(results.tuples("debug")) == sorted([mail] for mail in mails[:-1])
    assert results.verdicts.count(Verdict.ACKED) == len(mails)
    assert [error.reason for error in results.stats().errors] == ["KeyError: 'bad mail'"]


# --- a counter in a store, with a connection that cannot be pickled ---------------------------------------


STORE: Counter[str] = Counter()
CONNECTIONS = itertools.count()


class Client:
    """Stands for a client of Redis: it has a lock, and its data are elsewhere."""

    def __init__(self):
        self.lock, self.number = threading.Lock(), next(CONNECTIONS)

    def zincrby(self, word, by):
        with self.lock:
            STORE[word] += by
            return STORE[word]


class RedisCount(Bolt):
    outputs = ["word", "count"]

    def initialize(self, conf, ctx):
        self.redis = Client()
        self.total = 0

    def process(self, tup):
        self.total += 1
        self.emit([tup.values[0], self.redis.zincrby(tup.values[0], 10 if tup.values[0] == "dog" else 1)])


class CyclingWords(Spout):
    outputs = ["word"]

    def initialize(self, stormconf, context):
        self.words = itertools.cycle(["dog", "cat", "zebra", "elephant"])

    def next_tuple(self):
        self.emit([next(self.words)])


class RedisWordCount(Topology):
    words = CyclingWords.spec()
    count = RedisCount.spec(inputs=[words], par=4)


def test_a_connection_is_made_once_in_each_process_of_a_task_and_kept_there():
    STORE.clear()
    before = next(CONNECTIONS)
    with LocalCluster() as cluster:
        cluster.submit(load(RedisWordCount).topology)
        for _ in range(4):
            cluster.run(most_messages=100)
        assert next(CONNECTIONS) - before - 1 == 4
        contexts._cached.clear()  # every task comes to another process
        cluster.run(most_messages=4)
        assert STORE == {"dog": 1010, "cat": 101, "zebra": 101, "elephant": 101}


# --- pixels by URL: a batch a URL at every second tick ------------------------------------------------------


class Pixels(Spout):
    outputs = ["pixel"]


class PixelDeserializer(Bolt):
    outputs = ["ip", "ts", "url"]

    def process(self, tup):
        pixel = json.loads(tup.values[0])
        self.emit([pixel.get("ip"), pixel.get("ts"), pixel.get("url")])


class PixelCounter(BatchingBolt):
    outputs = []

    def initialize(self, conf, ctx):
        self.counts = Counter()

    def group_key(self, tup):
        return tup.values[2]

    def process_batch(self, key, tups):
        self.counts[key] += len(tups)
        self.log(f"{key}: {self.counts[key]}")
        self.emit([key, self.counts[key]])  # on a stream that it does not declare


class PixelCount(Topology):
    pixels = Pixels.spec()
    deserializer = PixelDeserializer.spec(inputs=[pixels])
    counter = PixelCounter.spec(
        inputs={deserializer: Grouping.fields("url")}, config={"topology.tick.tuple.freq.secs": 1}
    )


def test_pixels_are_counted_by_url_at_every_second_tick_and_an_undeclared_stream_drops_with_a_warning(caplog):
    feeder = FeederSpout(["pixel"])
    with caplog.at_level("INFO"), LocalCluster() as cluster:
        cluster.submit(load(PixelCount, replace={"pixels": feeder}).topology)
        for n, url in enumerate(["/a", "/b", "/a", "/a"]):
            feeder.feed([json.dumps({"ip": "10.0.0.1", "ts": n, "url": url})], message_id=n)
        cluster.advance(1)
        assert feeder.acked == []
        cluster.advance(1)
        assert feeder.acked == [0, 1, 2, 3]
        assert [line for line in caplog.messages if line in {"/a: 3", "/b: 1"}] == ["/a: 3", "/b: 1"]
        assert caplog.text.count("emits on its default stream, which it does not declare") == 1


# --- the documentation's examples --------------------------------------------------------------------------


class FancySpout(Spout):
    outputs = [Stream(fields=["good_data"], name="default"), Stream(fields=["error"], name="errors")]

    def initialize(self, storm_conf, context):
        self.left = ["fine", None]

    def next_tuple(self):
        if self.left:
            data = self.left.pop()
            if data is None:
                self.emit(["no data"], stream="errors", tup_id="error")
            else:
                self.emit([data], tup_id="good")


class Sentences(Bolt):
    outputs = ["word"]

    def process(self, tup):
        sentence = tup.values[0]
        if not sentence:
            self.fail(tup)
            return
        for word in sentence.split():
            self.emit([word])


class Fancy(Topology):
    spout = FancySpout.spec()
    good = Sentences.spec(inputs=[spout])
    errors = Sentences.spec(inputs=[spout["errors"]])


class Split(Topology):
    lines = Mails.spec(outputs=["sentence"])
    split = Sentences.spec(inputs=[lines])


def test_a_spout_with_two_streams_sends_each_to_its_own_bolt():
    with LocalCluster() as cluster:
        running = cluster.submit(load(Fancy).topology)
        cluster.advance()
        assert cluster.tuples("good") == [["fine"]]
        assert cluster.tuples("errors") == [["no"], ["data"]]
        assert running.stats()["spout"].total.acked == 2


def test_a_sentence_that_its_bolt_fails_by_hand_is_failed():
    results = run_topology(Split, {"lines": [["two words"], [""]]})
    assert results.verdicts.of("lines") == [Verdict.ACKED, Verdict.FAILED]
    assert results.tuples("split") == [["two"], ["words"]]


class Flushing(Bolt):
    """The documentation's bolt with ticks: it emits what it has counted at each."""

    outputs = ["count"]

    def initialize(self, conf, ctx):
        self.count = 0

    def process(self, tup):
        self.count += 1

    def process_tick(self, tup):
        self.emit([self.count])
        self.count = 0


class Ticking(Topology):
    lines = Mails.spec(outputs=["sentence"])
    flushing = Flushing.spec(inputs=[lines], config={"topology.tick.tuple.freq.secs": 10})


def test_a_bolt_with_ticks_is_called_at_each_and_not_by_process():
    feeder = FeederSpout(["sentence"])
    with LocalCluster() as cluster:
        running = cluster.submit(load(Ticking, replace={"lines": feeder}).topology)
        for each in "ab":
            feeder.feed([each], message_id=each)
        cluster.advance(10)
        feeder.feed(["c"], message_id="c")
        cluster.advance(20)
        assert running.tuples("flushing") == [[2], [1], [0]]
        assert feeder.acked == ["a", "b", "c"]
