"""The traceback of a user's mistake ends at the user's line; ACKTREE_TRACEBACK=full shows all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from types import SimpleNamespace

import pytest

import acktree
from acktree import BasicBolt, Config, IterableSpout, TopologyBuilder
from acktree.dead_letters.conversion import redriven_letter
from acktree.errors import AcktreeError, ConfigError, ProtocolError, SpoutError, ending_at_caller
from acktree.testing import LocalCluster


class NoOpen(IterableSpout):
    def __init__(self):
        super().__init__([[1]], ["n"])

    def open(self, *_):
        raise OSError("the queue is not there")


def builder_of(spout) -> TopologyBuilder:
    builder = TopologyBuilder("mistakes")
    builder.set_spout("spout", spout)
    return builder


def run(topology) -> None:
    with LocalCluster() as cluster:
        cluster.submit(topology)
        cluster.advance()


class Silent(BasicBolt):
    outputs = []

    def execute(self, tup, collector):
        pass


def no_input() -> None:
    builder = builder_of(IterableSpout([[1]], ["n"]))
    builder.set_bolt("bolt", Silent())
    builder.create_topology()


MISTAKES = {
    "a value of a setting": lambda: Config(message_timeout_secs=-1),
    "a setting": lambda: Config(message_timeout=1),
    "a keyword": lambda: TopologyBuilder("t").set_bolt("bolt", Silent(), paralelism=2),
    "no input": no_input,
    "no topology": lambda: run(3),
    "levels": lambda: builder_of(IterableSpout([[1]], ["n"])).create_topology().levels(0),
    "open": lambda: run(builder_of(NoOpen()).create_topology()),
    "submit": lambda: acktree.submit(3, checkpoint="c"),
}


def files_of(error: BaseException) -> set[str]:
    return {frame.filename for frame in traceback.extract_tb(error.__traceback__)}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_traceback_of_a_mistake_ends_at_the_users_line(mistake: str, monkeypatch) -> None:
    if mistake == "submit":
        pytest.importorskip("pyspark")
    with pytest.raises(AcktreeError) as raised:
        MISTAKES[mistake]()
    assert files_of(raised.value) == {__file__}
    monkeypatch.setattr("acktree.errors.full_tracebacks", True)
    with pytest.raises(AcktreeError) as raised:
        MISTAKES[mistake]()
    assert files_of(raised.value) > {__file__}


def test_what_a_users_method_raised_is_shown_with_the_users_line() -> None:
    with pytest.raises(SpoutError) as raised:
        MISTAKES["open"]()
    cause = raised.value.__cause__
    assert traceback.extract_tb(cause.__traceback__)[-1].line == 'raise OSError("the queue is not there")'


def users_reader(name: str) -> None:
    Config(message_timeout_secs=int(name))


def test_lines_of_a_user_between_two_calls_stay() -> None:
    with pytest.raises(ConfigError) as raised:
        ending_at_caller(users_reader)("-1")
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][-1] == "users_reader"


def test_a_bug_of_acktree_has_its_whole_traceback() -> None:
    with pytest.raises(ProtocolError) as raised:
        ending_at_caller(redriven_letter)(SimpleNamespace(id=None, message_id_repr="7"))
    assert any(file.endswith("conversion.py") for file in files_of(raised.value))


def test_causes_that_form_a_circle_are_looked_at_once() -> None:
    first, second = ConfigError("a", "b", "c"), ConfigError("a", "b", "c")
    first.__cause__, second.__cause__ = second, first

    @ending_at_caller
    def fails() -> None:
        raise first

    with pytest.raises(ConfigError):
        fails()


def test_the_environment_chooses_whole_tracebacks() -> None:
    program = "from acktree import Config\nConfig(message_timeout_secs=-1)"
    for chosen in ("", "full"):
        environment = {**os.environ, "ACKTREE_TRACEBACK": chosen}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert (done.stderr.count('  File "') > 1) == (chosen == "full"), done.stderr
