"""Log levels that an operator sets while a topology runs: in the driver, in workers, and taken back."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from acktree.cli.main import main
from acktree.errors import ConfigError, MisuseError
from acktree.logs.log_levels import LevelSetter
from acktree.spark.worker.log_levels import follow_log_levels
from acktree.system.private_files import DISK
from acktree.ui.client import DoorError, find
from acktree.ui.door import Door
from acktree.ui.log_levels import LogLevels

NAME = "acktree.tests.levels"


@pytest.fixture(autouse=True)
def old_levels():
    before = logging.getLogger(NAME).level
    yield
    assert logging.getLogger(NAME).level == before


def level():
    return logging.getLevelName(logging.getLogger(NAME).level)


def test_a_level_is_set_shown_and_taken_back():
    written = []
    levels = LogLevels(written.append)
    shown = levels.change({"set": {NAME: {"level": "debug"}}})
    assert level() == "DEBUG"
    assert shown == {
        "namedLoggerLevels": {
            NAME: {"target_level": "DEBUG", "reset_level": "NOTSET", "timeout": 0, "timeout_epoch": 0}
        },
        "workers": True,
    }
    levels.change({"set": {NAME: {"level": "ERROR", "secs": 60}}})
    assert level() == "ERROR"
    assert levels.shown()["namedLoggerLevels"][NAME]["timeout"] == 60
    assert levels.change({"reset": [NAME]})["namedLoggerLevels"] == {}
    assert level() == "NOTSET"
    assert [json.loads(each) for each in written] == [{NAME: "DEBUG"}, {NAME: "ERROR"}, {}]
    levels.change(
        {"set": {NAME: {"level": "OFF"}, "ROOT": {"level": logging.getLevelName(logging.root.level)}}}
    )
    levels.close()
    assert level() == "NOTSET"


def test_a_logger_without_a_level_of_its_own_has_none_to_take_back_and_nothing_is_changed():
    levels = LogLevels(None)
    wrong = {"set": {NAME: {"level": "DEBUG"}}, "reset": ["acktree.tset"]}
    with pytest.raises(ConfigError) as refused:
        levels.change(wrong)
    assert refused.value.what == "logger 'acktree.tset' has no level of its own"
    assert refused.value.fix == "leave it out: no logger has one"
    assert level() == "NOTSET"
    levels.change({"set": {f"{NAME}.{number:02}": {"level": "DEBUG"} for number in range(12)}})
    with pytest.raises(ConfigError) as refused:
        levels.change({"reset": [f"{NAME}.03", "acktree.tset"]})
    assert refused.value.fix.startswith(f"these have one: '{NAME}.00', '{NAME}.01', ")
    assert refused.value.fix.endswith("09', 2 more")
    assert len(levels.shown()["namedLoggerLevels"]) == 12
    levels.close()


def test_a_level_ends_by_itself():
    levels = LogLevels(None)
    assert levels.change({"set": {NAME: {"level": "TRACE", "secs": 0.05}}})["workers"] is False
    deadline = time.monotonic() + 120
    while levels.shown()["namedLoggerLevels"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert level() == "NOTSET"


@pytest.mark.parametrize(
    "wrong",
    [
        {"set": {NAME: {"level": "LOUD"}}},
        {"set": {NAME: {"level": "DEBUG", "secs": 0}}},
        {"set": {NAME: {"level": "DEBUG", "secs": 1e9}}},
        {"set": {"\x1b[2J": {"level": "DEBUG"}}},
        {"set": {f"{NAME}.{number}": {"level": "DEBUG"} for number in range(201)}},
    ],
    ids=["level", "no time", "too long", "name", "too many"],
)
def test_what_cannot_be_is_refused_and_changes_nothing(wrong):
    levels = LogLevels(None)
    with pytest.raises(ConfigError):
        levels.change(wrong)
    assert levels.shown()["namedLoggerLevels"] == {}
    assert level() == "NOTSET"


def test_a_full_disk_does_not_keep_the_driver_from_it():
    def full(_):
        raise OSError("no space left on device")

    levels = LogLevels(full)
    levels.change({"set": {NAME: {"level": "DEBUG"}}})
    assert level() == "DEBUG"
    levels.close()


def test_a_worker_follows_the_file_and_another_run_has_its_own(tmp_path):
    file = tmp_path / "log-levels.json"
    follow_log_levels(None)
    follow_log_levels(str(file))
    assert level() == "NOTSET"
    for at, (said, wanted) in enumerate(
        [('{"%s": "DEBUG"}' % NAME, "DEBUG"), ("{", "DEBUG"), ('{"%s": "WARN"}' % NAME, "WARNING")]  # noqa: UP031
    ):
        file.write_text(said)
        os.utime(file, (at + 1, at + 1))
        follow_log_levels(str(file))
        assert level() == wanted
    DISK.replace(file, b'{"%s": "INFO"}' % NAME.encode())  # within the same tick of the file system's clock
    os.utime(file, (3, 3))
    follow_log_levels(str(file))
    assert level() == "INFO"
    follow_log_levels(str(tmp_path / "other-run.json"))
    assert level() == "NOTSET"


def test_a_setter_gives_back_what_was_there_before_the_first_change():
    logging.getLogger(NAME).setLevel(logging.ERROR)
    setter = LevelSetter()
    for name in ("DEBUG", "INFO"):
        setter.apply({NAME: name})
    assert setter.before(NAME) == "ERROR"
    setter.apply({})
    assert level() == "ERROR"
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def test_the_command_orders_it_through_the_door(running, capsys):
    assert main(["set-log-level", "numbers", "-l", f"{NAME}=DEBUG:60", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["namedLoggerLevels"][NAME]["timeout"] == 60
    assert told["workers"] is True
    assert level() == "DEBUG"
    file = find("numbers").folder / "log-levels.json"
    assert json.loads(file.read_text()) == {NAME: "DEBUG"}
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["set-log-level", "numbers"]) == 0
    assert f"{NAME}  DEBUG" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["set-log-level", "numbers", "-r", "acktree.tset"]) == 1
    assert f"fix:   these have one: '{NAME}'" in capsys.readouterr().err
    assert main(["set-log-level", "numbers", "-r", NAME]) == 0
    assert level() == "NOTSET"
    assert json.loads(file.read_text()) == {}
    for wrong in ("DEBUG", f"{NAME}=", "=DEBUG", f"{NAME}=DEBUG:soon", f"{NAME}=LOUD"):
        with pytest.raises(SystemExit) as stopped:
            main(["set-log-level", "numbers", "-l", wrong])
        assert stopped.value.code == 2
    for wrong in ({"set": {NAME: {}}}, {"set": {NAME: 7}}, {"set": [7]}):
        with pytest.raises(DoorError) as refused:
            find("numbers").door.order("log-levels", wrong)
        assert refused.value.status == 400


def test_an_order_after_the_end_of_the_run_is_refused():
    levels = LogLevels(None)
    levels.close()
    with pytest.raises(MisuseError, match="is stopping"):
        levels.change({"set": {"late": {"level": "DEBUG"}}})
    assert levels.shown()["namedLoggerLevels"] == {}


def test_the_file_of_the_workers_ends_as_the_last_of_several_orders_at_once_said(tmp_path):
    orders = [{"set": {f"{NAME}.{at}": {"level": "DEBUG"}}} for at in range(12)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            door = Door(DISK, "1.2.3")
            door._folder = tmp_path
            with ThreadPoolExecutor(len(orders)) as pool:
                assert len([*pool.map(door._levels.change, orders)]) == len(orders)
            written = json.loads((tmp_path / "log-levels.json").read_bytes())
            assert written.keys() == door._levels.shown()["namedLoggerLevels"].keys()
            assert len(written) == len(orders)
            door._levels.close()
            assert json.loads((tmp_path / "log-levels.json").read_bytes()) == {}
    finally:
        sys.setswitchinterval(before)
