"""Messages in msgpack: however they are cut, what is no message, and children that speak it."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import ConfigError, TopologyBuilder
from acktree.multilang import ShellBolt, SubprocessError
from acktree.multilang.child import Child
from acktree.multilang.framing import FramingError, UnwritableError, serializer_named
from acktree.testing import FeederSpout, LocalCluster

msgpack = pytest.importorskip("msgpack")

from acktree.multilang.packing import PackedFrames, packed  # noqa: E402

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
)
VALUES = st.recursive(
    LEAVES, lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each, max_size=3)
)
MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=5), VALUES, max_size=20) | st.lists(VALUES, max_size=20), max_size=6
)
LINES = st.lists(st.sampled_from(["a debugging line", "naïve", "{", "[1]", " x"]), max_size=2)


@given(MESSAGES, LINES, st.lists(st.integers(1, 40), min_size=1), st.booleans())
def test_messages_are_the_same_however_they_are_cut_and_given_back_and_printed_lines_are_no_mistake(
    messages, printed, sizes, moves
):
    frames, received = PackedFrames(), []
    data = b"".join("".join(f"{line}\n" for line in printed).encode() + packed(each) for each in messages)
    while data:
        size = sizes[len(data) % len(sizes)]
        received += frames.feed(data[:size])
        data = data[size:]
        if moves:  # to another worker, in the middle of a message
            rest, frames = frames.rest, PackedFrames()
            received += frames.feed(rest)
    assert [message for message, _ in received] == messages
    assert all(lines == printed for _, lines in received)
    assert frames.text == ""


@pytest.mark.parametrize(
    "said",
    [
        b"\x81\x01\x02",
        b"\x91\xc1",
        b"\x91\xa1\xff",
        b"\x91" * 2000 + b"\x90",
    ],
    ids=["a number as key", "no byte of msgpack", "no UTF-8", "too deep"],
)
def test_what_is_no_message_is_an_error_that_shows_it(said):
    with pytest.raises(FramingError, match=r"what is not msgpack .*: b"):
        list(PackedFrames().feed(said))


def test_a_message_has_a_largest_size_and_an_announced_one_takes_no_memory():
    assert [message for message, _ in PackedFrames(20).feed(packed([1, 2]) * 100)] == [[1, 2]] * 100
    for said in (b"\x91\xda\xff\xff" + b"x" * 20, b"x" * 21):
        with pytest.raises(FramingError, match="more than 20 bytes"):
            list(PackedFrames(20).feed(said))
    frames = PackedFrames()
    assert list(frames.feed(b"\xdd\xff\xff\xff\xff" * 300)) == []  # lists of 4,294,967,295 values


def test_numbers_of_other_types_are_numbers_and_what_msgpack_has_not_is_refused():
    values = [Decimal(2), Decimal("0.5"), np.int64(3), np.float64(0.5), (1, b"two"), float("inf")]
    assert msgpack.unpackb(packed(values)) == [2, 0.5, 3, 0.5, [1, b"two"], float("inf")]
    for value in (
        2**64,
        {1, 2},
        object(),
        dt.datetime.now(tz=dt.UTC),
        {1: 2},
        [{"a": {b"b": 1}}],
        "\ud800",
    ):
        with pytest.raises(UnwritableError):
            packed([value])


SPLIT = """
from acktree.pystorm import Bolt

class Split(Bolt):
    outputs = ["word", "serializer"]
    count = 0

    def process(self, tup):
        self.count += 1
        for word in tup.values[0].split():
            self.emit([word, type(self.serializer).__name__, self.count])

if __name__ == "__main__":
    Split(serializer="msgpack").run()
"""
OUTPUTS = ["word", "serializer", "count"]


def run_bolt(command, folder, *messages, serializer="msgpack", **more):
    """What a child emits, and the feeder with the verdicts; each message in a micro-batch of its own."""
    feeder, builder = FeederSpout(["text"]), TopologyBuilder("packed")
    builder.set_spout("source", feeder)
    bolt = ShellBolt(command, OUTPUTS, resources=folder, serializer=serializer, **more)
    builder.set_bolt("shell", bolt).shuffle_grouping("source")
    with LocalCluster() as cluster:
        running = cluster.submit(builder.create_topology())
        for message in messages:
            feeder.feed([message], message_id=str(message))
            cluster.advance(0)
        return running.tuples("shell"), feeder


def test_a_child_that_speaks_msgpack_serves_micro_batches_and_gets_bytes_too(tmp_path):
    (tmp_path / "split.py").write_text(SPLIT)
    emitted, feeder = run_bolt(
        [sys.executable, "split.py"], tmp_path, "naïve café", b"two words", {1: "a"}, "last"
    )
    assert feeder.acked == ["naïve café", "b'two words'", "last"]
    words = [("naïve", 1), ("café", 1), (b"two", 2), (b"words", 2), ("last", 3)]
    assert emitted == [[word, "MsgpackSerializer", count] for word, count in words]
    ((_, failure),) = feeder.failed
    assert (
        "field 'text' is dict, which msgpack does not have (the key 1 of a dict is no text)" in failure.reason
    )


def test_a_child_that_speaks_another_format_than_its_bolt_is_one_clear_failure(tmp_path):
    (tmp_path / "split.py").write_text(SPLIT.replace("msgpack", "json"))
    command = [sys.executable, "split.py"]
    _, feeder = run_bolt(command, tmp_path, "a", subprocess_timeout_secs=5)
    ((_, failure),) = feeder.failed
    assert "child process" in failure.reason
    (tmp_path / "split.py").write_text(SPLIT)
    _, feeder = run_bolt(command, tmp_path, "a", serializer="json", subprocess_timeout_secs=5)
    assert len(feeder.failed) == 1


HOSTILE = {
    "half a message": (r"printf '\\201\\247comm'; exit 3", "ended with exit code 3; unfinished output: b'"),
    "no end": (
        r"printf '\\335\\377\\377\\377\\377'; exec tr '\\0' '\\1' < /dev/zero",
        "more than 16,777,216 bytes",
    ),
    "garbage": (r"printf '\\221\\301'; sleep 1000", "wrote what is not msgpack"),
    "JSON": ("""printf '{"pid": 1}\\nend\\n'; sleep 1000""", "sent no message for 0.5 s"),
}


@pytest.mark.parametrize(("script", "text"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_child_that_speaks_msgpack_is_one_error_and_gone(script, text):
    script = script.replace("\\\\", "\\")
    child = Child(["sh", "-c", script], "here", 0.5 if "0.5" in text else 60, serializer="msgpack")
    with pytest.raises(SubprocessError) as caught:
        child.receive()
    assert text in caught.value.what
    assert caught.value.fix == "mend the program; a message is a map in msgpack"


def test_the_serializer_is_named_as_in_storm():
    names = [
        "json",
        "org.apache.storm.multilang.JsonSerializer",
        "msgpack",
        "bench.MsgpackSerializer",
        "a.MessagePackSerializer",
    ]
    assert [serializer_named(name) for name in [None, *names]] == [
        "json",
        "json",
        "json",
        "msgpack",
        "msgpack",
        "msgpack",
    ]
    assert serializer_named("a.KryoSerializer") is None


def test_without_the_package_the_bolt_is_refused_with_the_name_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    monkeypatch.delitem(sys.modules, "acktree.multilang.packing")
    with pytest.raises(ConfigError, match="is not here") as caught:
        ShellBolt(["cat"], ["n"], serializer="msgpack")
    assert "pip install '.[msgpack]' in a clone of acktree" in str(caught.value)
    assert "ShellBolt(serializer=...)" in str(caught.value)
