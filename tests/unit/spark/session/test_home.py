"""The SPARK_HOME of links: made once, never of another user's making, and only where workers need no zip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acktree.spark.session.home import lean_home, lent_home


@pytest.fixture
def installed(tmp_path) -> Path:
    """Where pip puts PySpark."""
    folder = tmp_path / "lib" / "site-packages" / "pyspark"
    for name in ("bin", "jars", "python"):
        (folder / name).mkdir(parents=True)
    return folder


def test_the_home_has_jars_and_programs_and_no_python(installed, tmp_path):
    home = lean_home(installed, tmp_path / "cache")
    assert home == lean_home(installed, tmp_path / "cache")
    assert {link.name: link.resolve() for link in home.iterdir()} == {
        name: (installed / name).resolve() for name in ("bin", "jars")
    }
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [home.name], "nothing half made stays"


def test_a_home_with_links_elsewhere_or_that_others_may_write_is_not_taken(installed, tmp_path):
    home = lean_home(installed, tmp_path / "cache")
    home.chmod(0o777)
    assert lean_home(installed, tmp_path / "cache") is None
    home.chmod(0o700)
    (home / "bin").unlink()
    (home / "bin").symlink_to(tmp_path)
    assert lean_home(installed, tmp_path / "cache") is None


def test_a_spark_that_is_not_installed_as_a_package_keeps_its_home(tmp_path):
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    assert lean_home(tmp_path / "spark", tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_made_changes_nothing(installed, tmp_path):
    (tmp_path / "file").write_text("")
    assert lean_home(installed, tmp_path / "file") is None


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_PYTHON"])
def test_a_home_or_an_interpreter_of_the_users_stays(monkeypatch, name):
    for each in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "/opt/other")
    before = dict(os.environ)
    with lent_home():
        assert dict(os.environ) == before


def test_the_environment_is_as_before(monkeypatch, tmp_path):
    for each in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with lent_home():
        pass
    assert "SPARK_HOME" not in os.environ


def test_a_user_without_a_home_has_sparks_own(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as pathlib says

    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with lent_home():
        assert "SPARK_HOME" not in os.environ
