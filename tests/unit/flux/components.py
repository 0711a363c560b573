"""Components that the files of these tests name."""

from __future__ import annotations

from enum import Enum

from acktree import BasicBolt, Bolt, Config, IterableSpout, TopologyBuilder, WorkerHook, bolt


class Colour(Enum):
    RED = 1
    BLUE = 2


class Recorder:
    """Keeps all that it is given."""

    factor = 1

    def __init__(self, *args, **keywords):
        self.args, self.keywords, self.calls = args, keywords, []

    @classmethod
    def of(cls, *args):
        return cls("made", *args)

    def set_size(self, size):
        self.calls.append(("size", size))

    def with_pair(self, first, second):
        self.calls.append((first, second))

    class Inner:
        pass


class Painted:
    def __init__(self, colour: Colour, size: int = 1):
        self.colour, self.size = colour, size


class Raising:
    def __init__(self):
        raise ValueError("two\nlines")


def lines(*texts):
    return IterableSpout([[text] for text in texts], outputs=["line"])


class Lines:
    """Makes spouts."""

    @staticmethod
    def of(*texts):
        return lines(*texts)


class Split(BasicBolt):
    outputs = {"default": ["word"], "long": ["word"]}

    def __init__(self, longest=99):
        self.longest = longest

    def execute(self, tup, collector):
        for word in tup["line"].split():
            if word == "bad":
                raise ValueError("a bad word")
            collector.emit([word], stream="default" if len(word) < self.longest else "long")


@bolt(outputs=["word", "n"])
def measure(tup):
    yield [tup["word"], len(tup["word"])]


class Ticking(Bolt):
    outputs = ["n"]

    def execute(self, tup):
        self.collector.ack(tup)

    def tick(self, tup):
        pass

    def prepare(self, config, context, collector):
        self.collector = collector


class Hook(WorkerHook):
    pass


class Source:
    def __init__(self, word="a"):
        self.word = word

    def get_topology(self):
        builder = TopologyBuilder("made")
        builder.set_spout("lines", lines(self.word))
        return builder

    def by_config(self, config: Config):
        assert config.message_timeout_secs == 7
        return self.get_topology().create_topology()

    def by_map(self, settings):
        assert settings == {"topology.message.timeout.secs": 7}
        return self.get_topology()

    def none(self):
        return 3
