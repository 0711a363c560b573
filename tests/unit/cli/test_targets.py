"""What a command runs: `submit` hands all of it to the process that it starts."""

from __future__ import annotations

import io
import json
import sys
from argparse import ArgumentParser
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.cli.main import main
from acktree.cli.targets import add_target, load_target, options_of
from acktree.config import Config
from acktree.errors import ConfigError

TEXTS = st.text("ab=-_.:/ @", min_size=1, max_size=8).map(lambda text: f"x{text}")
LISTS = st.lists(TEXTS, max_size=3)


@given(
    st.fixed_dictionaries(
        {
            "target": TEXTS,
            "environment": st.none() | TEXTS,
            "name": st.none() | TEXTS,
            "options": LISTS,
            "filter": st.none() | TEXTS,
            "env_filter": st.booleans(),
            "classes": LISTS,
        }
    )
)
def test_the_process_that_submit_starts_is_given_each_option(options) -> None:
    parser = ArgumentParser()
    add_target(parser, "TARGET", "what to run")
    given_options = parser.parse_args(["x"])
    vars(given_options).update(options)
    again = parser.parse_args(options_of(given_options))
    assert {name: getattr(again, name) for name in options} == options


PROGRAM = """
from acktree import Config, IterableSpout, TopologyBuilder

def topology():
    builder = TopologyBuilder("numbers")
    builder.set_spout("numbers", IterableSpout(range(3), outputs=["n"]))
    return {returned}
"""
OWN = Config(run_salt=1, max_spout_pending=5)
BESIDE = Config(run_salt=2, partitions=3)


def loaded(folder, program: str, *arguments: str) -> Config:
    """The settings with which a program would run."""
    file = folder / "has_settings.py"
    file.write_text(program)
    sys.modules.pop("has_settings", None)
    parser = ArgumentParser()
    add_target(parser, "TARGET", "what to run")
    config, topology = load_target(parser.parse_args([str(file), *arguments]))
    assert topology.name == "numbers"
    return config


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the same file again, in the same second
    yield tmp_path
    sys.modules.pop("has_settings", None)


@pytest.mark.parametrize(("returns", "module", "options"), [*product([False, True], repeat=3)])
def test_options_come_before_what_a_function_returns_and_that_before_config_of_its_module(
    returns, module, options, folder
):
    program = PROGRAM.format(returned=f"builder, {OWN!r}" if returns else "builder")
    program += f"\nCONFIG = {BESIDE!r}" * module
    expected = OWN if returns else BESIDE if module else Config()
    if options:
        expected = replace(expected, run_salt=3)
    assert loaded(folder, program, *(["-c", "run_salt=3"] if options else [])) == expected


@pytest.mark.parametrize(
    ("program", "place"),
    [
        (PROGRAM.format(returned="builder") + "\nCONFIG = {'run_salt': 1}", "CONFIG is dict"),
        (PROGRAM.format(returned="builder, None"), "the second of 'topology' is NoneType"),
        (PROGRAM.format(returned="Config(), builder"), "'topology' is Config, and no topology"),
        (PROGRAM.format(returned="builder, Config(), 1"), "'topology' is tuple, and no topology"),
    ],
)
def test_settings_that_are_none_are_refused_with_their_place(program, place, folder):
    with pytest.raises(ConfigError, match=place):
        loaded(folder, program)


def test_a_function_that_needs_arguments_is_refused_with_those_that_need_none(folder):
    program = PROGRAM.format(returned="builder").replace("def topology()", "def topology(spout)")
    with pytest.raises(ConfigError, match="needs arguments, and is given none") as refused:
        loaded(folder, f"{program}\ndef service():\n    return topology(None)\n")
    assert refused.value.fix.endswith("there is only 'service'")


def test_a_decorated_function_that_is_given_its_arguments_is_called(folder):
    program = PROGRAM.format(returned="builder").replace("def topology()", "@given\ndef topology(spout)")
    given = """
from functools import wraps

def given(function):
    @wraps(function)
    def call(*arguments):
        return function(None)
    return call
"""
    assert loaded(folder, given + program) == Config()


def test_a_module_without_a_socket_is_not_submitted(folder, capsys):
    """`submit` would wait for an answer that never comes; its driver refuses that, and starts no Spark."""
    program = folder / "no_socket.py"
    program.write_text(PROGRAM.format(returned="builder") + "\nCONFIG = Config(control=False)")
    assert main(["submit", str(program), "--checkpoint", str(folder / "cp")]) == 1
    assert "control=False gives it no socket" in capsys.readouterr().err


def test_settings_from_stdin_are_read_once(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("run_salt=9"))
    program = PROGRAM.format(returned="builder") + f"\nCONFIG = {BESIDE!r}"
    assert loaded(folder, program, "-c", "@-") == replace(BESIDE, run_salt=9)


def test_doctor_checks_a_component_with_the_settings_of_its_module(folder, capsys):
    program = folder / "asks.py"
    program.write_text(
        PROGRAM.format(returned="builder").replace("IterableSpout(", "Asks(")
        + """
class Asks(IterableSpout):
    def check(self, config, context):
        raise RuntimeError(f"salt {config.run_salt}")

CONFIG = Config(run_salt=77)
"""
    )
    assert main(["doctor", f"{program}:topology", "--json"]) == 1
    assert "salt 77" in json.loads(capsys.readouterr().out)["checks"][-1]["found"]
