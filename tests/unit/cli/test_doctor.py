"""``acktree doctor``: which versions do not fit, who has a checkpoint, and what was left behind."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from acktree.checkpoint.folder import Checkpoint
from acktree.cli.doctor import fits, python_range, requirements
from acktree.cli.main import main
from acktree.system.private_files import Disk
from acktree.ui.places import POINTER, entries, write_entry
from tests.unit.ui.driver_without_spark import started

pytestmark = pytest.mark.usefixtures("runtime")


def checks(capsys, *command):
    """The checks by name, and the lines that are printed."""
    capsys.readouterr()
    codes = main(["doctor", *command, "--json"]), main(["doctor", *command])
    assert codes[0] == codes[1]
    data, _, lines = capsys.readouterr().out.partition("\n")
    found = json.loads(data)
    assert found["ok"] == (codes[0] == 0)
    for check in found["checks"]:
        assert bool(check["fix"]) == (check["is_note"] or not check["is_ok"]), check
    return {check["name"]: check for check in found["checks"]}, lines


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of another version in front of all others, as far as its metadata says."""

    def put(name, version, *more):
        info = tmp_path / "site" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, ""]
        (info / "METADATA").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return put


@pytest.mark.parametrize(
    ("name", "version"),
    [("numpy", "1.25.2"), ("pyarrow", "99.0.0"), ("pyspark", "3.5.1"), ("pyspark", "4.2.0.dev3"),
     ("pandas", "3.0.0")],
)  # fmt: skip
def test_a_version_that_does_not_fit_is_bad_and_its_mend_has_the_range(name, version, install, capsys):
    install(name, version)
    wanted = next(each for each in requirements() if each.name == name).range
    found, lines = checks(capsys)
    assert not found[name]["is_ok"]
    assert found[name]["found"] == f"{version}, and acktree needs {wanted}"
    assert f"  BAD  {name}: {version}, and acktree needs {wanted}\n" in lines
    assert f"       fix: pip install '{name}{wanted}'\n" in lines


def test_a_python_that_does_not_fit_is_bad(install, capsys):
    install("acktree", "9.0", "Requires-Python: >=3.99")
    found, _ = checks(capsys)
    assert not found["python"]["is_ok"]
    assert found["python"]["found"].endswith(", and acktree needs >=3.99")
    assert ">=3.99" in found["python"]["fix"]


def test_a_package_of_an_extra_that_does_not_fit_is_a_note_since_it_may_not_be_used(install, capsys):
    install("redis", "99.0")
    found, lines = checks(capsys)
    assert (found["redis"]["is_ok"], found["redis"]["is_note"]) == (True, True)
    assert "  note redis: 99.0, and acktree needs >=5.0,<9 for acktree[redis]\n" in lines
    assert "       fix: pip install 'redis>=5.0,<9'\n" in lines


def test_what_is_installed_here_fits(capsys):
    found, _ = checks(capsys)
    for name in ("python", "numpy", "pyarrow", "cloudpickle"):
        assert found[name]["is_ok"], found[name]
    assert python_range() == ">=3.11"


@pytest.mark.parametrize(
    ("version", "wanted", "does"),
    [
        ("4.2", ">=4.2,<4.4", True), ("4.2.0", ">=4.2,<4.4", True), ("4.10.0", ">=4.2,<4.4", False),
        ("4.4.0rc1", "<4.4", False), ("4.3.9.post1", "<4.4", True), ("3.0rc1", ">=3.0", False),
        ("2.0+cu12", "==2.0", True), ("2.1", "!=2.1", False), ("2.1", ">2.1", False),
        ("2.1", "<=2.1.0", True), ("1.0", "", True), ("what", ">=1", True), ("1.0", "~=1.0", True),
    ],
)  # fmt: skip
def test_versions_are_compared_as_pip_does(version, wanted, does):
    assert fits(version, wanted) is does


def test_nobody_a_driver_and_a_driver_without_a_socket_are_told_apart(tmp_path, capsys):
    place = str(tmp_path / "cp")
    with started(tmp_path / "cp"):
        found, _ = checks(capsys, place)
        assert found["lock"]["found"].startswith("runs: process")
    found, _ = checks(capsys, place)
    assert found["lock"]["found"] == "nobody on this machine runs it"
    with closing(Checkpoint(tmp_path / "cp")):  # as Config(control=False) has it
        found, lines = checks(capsys, place)
    assert (found["lock"]["is_ok"], found["lock"]["is_note"]) == (True, True)
    assert "  note lock: held by a driver without a socket (control=False): no command reaches it\n" in lines
    assert f"fuser {place}/lock" in lines


def test_a_driver_of_another_machine_is_no_driver_that_is_gone(tmp_path, capsys):
    with started(tmp_path / "cp") as topology:
        entry = topology.door._entry
    write_entry(replace(entry, host="elsewhere"), tmp_path / "cp" / POINTER, Disk())
    found, lines = checks(capsys, str(tmp_path / "cp"))
    assert found["lock"]["found"] == "its last driver ran on elsewhere, whose locks are not seen from here"
    assert "       fix: run this command there\n" in lines


def test_a_folder_for_sockets_with_wrong_rights_is_one_bad_check_among_all(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run" / "acktree"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    before, _ = checks(capsys)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    found, lines = checks(capsys)
    assert found.keys() == before.keys()
    changed = [name for name in found if found[name]["is_ok"] != before[name]["is_ok"]]
    assert changed == ["sockets"]
    assert "chmod 700" in lines


def test_a_stale_socket_is_a_note_with_its_mend(tmp_path, capsys):
    with started(tmp_path / "cp"):
        (entry,) = entries()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(entry.socket)
    write_entry(replace(entry, pid=2**22 + 1), next(Path(entry.socket).parent.glob("*.json")), Disk())
    found, lines = checks(capsys)
    assert found["stale socket"]["is_ok"]
    assert f"  note stale socket: {entry.id}: {entry.socket}; its driver died\n" in lines
    assert f"       fix: submit it again on {tmp_path / 'cp'}, or delete it: rm {entry.socket}\n" in lines
    Path(entry.socket).unlink()
    assert "stale socket" not in checks(capsys)[0]
