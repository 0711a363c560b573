"""The archive of classes: whole, written once by a JVM that ran a micro-batch, used only while it is ours."""

from __future__ import annotations

import os
import resource
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from acktree.errors import ConfigError
from acktree.spark.session import class_archive, gateway
from acktree.spark.session.class_archive import ClassArchive, archive_options, note_micro_batch
from acktree.spark.session.java import java_folder
from tests.in_module import replace

WHOLE = b"\xa8\xba\x0b\xf0 and the classes"


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch):
    """An environment without options for Java, and a JVM that has not been asked for an archive."""
    names = (
        *class_archive._CLASS_PATHS,
        *class_archive._OPTIONS,
        class_archive._SUBMIT,
        class_archive._SWITCH,
    )
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(class_archive, "_to_note", None)


@pytest.fixture
def archive(tmp_path) -> ClassArchive:
    return ClassArchive(tmp_path / "cache", "key")


@pytest.fixture
def home(tmp_path) -> Path:
    """A home with one jar."""
    jars = tmp_path / "home" / "jars"
    jars.mkdir(parents=True)
    with zipfile.ZipFile(jars / "one.jar", "w") as jar:
        jar.writestr("text", "no class")
    return jars.parent


@pytest.fixture
def java() -> Path:
    folder = java_folder()
    if folder is None or not (folder / "lib/server/classes.jsa").is_file():
        pytest.skip("this Java has no archive of its own")
    return folder


@pytest.fixture
def bare_java(tmp_path) -> Path:
    """A folder that looks like a Java's; it has no program."""
    server = tmp_path / "java" / "lib" / "server"
    server.mkdir(parents=True)
    for name in ("classes.jsa", "libjvm.so"):
        (server / name).touch()
    return tmp_path / "java"


def written(archive: ClassArchive, content: bytes = WHOLE) -> Path:
    """What a JVM wrote after a micro-batch."""
    new = archive.ordered()
    assert new is not None
    new.write_bytes(content)
    new.with_suffix(".ran").touch()
    return new


def test_of_jvms_that_start_at_once_one_is_asked(archive):
    with ThreadPoolExecutor(8) as threads:
        asked = list(threads.map(lambda _: archive.ordered(), range(8)))
    assert len([each for each in asked if each is not None]) == 1
    assert archive.cache.stat().st_mode & 0o777 == 0o700


def test_what_a_jvm_wrote_is_the_archive_and_others_need_not_write_it(archive):
    written(archive)
    found = archive.found()
    assert found is not None
    assert found == archive.found()
    assert found.read_bytes() == WHOLE
    assert [each.name for each in archive.cache.iterdir()] == [f"classes-key-{len(WHOLE)}.jsa"]


def test_what_is_half_written_or_of_a_jvm_without_a_micro_batch_is_no_archive(archive):
    new = written(archive, b"\0" * 4096)  # the header comes last
    assert archive.found() is None
    new.write_bytes(WHOLE)
    new.with_suffix(".ran").unlink()
    assert archive.found() is None


def test_an_archive_of_another_length_is_deleted_and_one_that_others_may_write_is_not_used(archive):
    written(archive)
    found = archive.found()
    found.chmod(0o666)
    assert archive.found() is None
    found.chmod(0o600)
    found.write_bytes(WHOLE[:-1])
    assert archive.found() is None
    assert not found.exists()


def test_in_a_folder_that_others_may_write_no_archive_is_found_taken_or_written(archive):
    written(archive)
    found = archive.found()
    archive.cache.chmod(0o777)
    assert archive.found() is None
    assert archive.ordered() is None
    archive.cache.chmod(0o700)
    assert archive.found() == found
    found.unlink()
    new = written(archive)
    for mode in (0o720, 0o702):
        archive.cache.chmod(mode)
        assert archive.found() is None
        assert new.exists()


def test_a_folder_or_an_archive_of_another_user_is_not_used(archive, monkeypatch):
    written(archive)
    found = archive.found()
    other_user = found.stat().st_uid + 1
    replace(monkeypatch, class_archive, "os", getuid=lambda: other_user)
    assert archive.found() is None
    assert archive.ordered() is None
    assert not class_archive._is_ours_alone(found)


def test_an_archive_is_on_disk_before_it_has_its_name(archive, monkeypatch):
    new = written(archive)
    synced = []

    def fsync(file: int) -> None:
        synced.append((os.fstat(file).st_ino, new.exists()))

    replace(monkeypatch, class_archive, "os", fsync=fsync)
    assert archive.found().stat().st_ino == synced[0][0]
    assert [had_its_old_name for _, had_its_old_name in synced] == [True]


def test_the_jvm_is_told_to_check_the_content_of_the_archive(home, bare_java, tmp_path):
    cache = tmp_path / "cache"
    asked = archive_options(home, bare_java, cache, "")
    note_micro_batch()
    Path(asked.removeprefix("-XX:ArchiveClassesAtExit=").split()[0]).write_bytes(WHOLE)
    options = archive_options(home, bare_java, cache, "").split()
    (file,) = cache.glob("*.jsa")
    assert options == [f"-XX:SharedArchiveFile={file}", "-XX:+VerifySharedSpaces", "-Xlog:cds*=off"]


@pytest.fixture
def launched(home, bare_java, tmp_path, monkeypatch):
    """Launches with what PySpark's function would do with the options of Java."""

    def launch(start):
        tried = []

        def launch_gateway(conf, options):
            tried.append(conf.get(gateway._JAVA_OPTIONS))
            os.write(options["stderr"], b"Java prints this\n")
            start(tried[-1])
            return SimpleNamespace(proc=None)

        monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch_gateway)
        conf = SparkConf(loadDefaults=False).set(gateway._JAVA_OPTIONS, "-Dmine=1")
        try:
            assert gateway.launch(conf).proc is None
        finally:
            assert conf.get(gateway._JAVA_OPTIONS) == tried[-1] == "-Dmine=1"
            assert tried[0].startswith("-Dmine=1 -XX:ArchiveClassesAtExit=")
            assert len(tried) == 2
            note_micro_batch()
            assert not list((tmp_path / "cache").glob("*.ran")), "that JVM writes no archive"

    @contextmanager
    def lent_home():
        yield home

    for name, value in [
        ("refuse_missing_java", lambda: None),
        ("lent_home", lent_home),
        ("java_folder", lambda: bare_java),
        ("cache_folder", lambda: tmp_path / "cache"),
    ]:
        monkeypatch.setattr(gateway, name, value)
    return launch


def refuse(options: str) -> None:
    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def test_a_jvm_that_does_not_start_with_the_options_is_started_without_them(launched, caplog, capsys):
    launched(lambda options: refuse(options) if "Archive" in options else None)
    assert [record.getMessage().split(", and")[1] for record in caplog.records] == [
        " has started without them. fix: set ACKTREE_CLASS_ARCHIVE=off"
    ]
    assert capsys.readouterr().err == "Java prints this\n"


def test_a_jvm_that_starts_with_no_options_shows_what_it_printed_and_not_a_fix_that_is_none(
    launched, caplog, capsys
):
    with pytest.raises(ConfigError, match="did not start"):
        launched(refuse)
    assert not caplog.records
    assert capsys.readouterr().err == "Java prints this\n" * 2


def test_where_few_files_may_be_open_the_limit_is_named_and_not_java(launched):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1023, hard))  # tests before this one hold some hundred open
    try:
        with pytest.raises(ConfigError, match="may have 1023 files open") as refused:
            launched(refuse)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n 1024" in refused.value.fix
    assert "install" not in refused.value.fix


def test_killed_jvms_leave_nothing_for_ever_and_the_archives_used_last_stay(archive):
    old = time.time() - 2 * class_archive._LEFT_SECS
    left = written(archive)
    for each in (left, left.with_suffix(".ran"), archive.cache / "classes-key.claim"):
        os.utime(each, (old, old))
    for number in range(5):
        other = archive.cache / f"classes-{number}-0.jsa"
        other.touch()
        os.utime(other, (old + number, old + number))
    assert archive.ordered() is not None, "the claim was old"
    assert sorted(each.name for each in archive.cache.iterdir()) == [
        "classes-3-0.jsa", "classes-4-0.jsa", "classes-key.claim",
    ]  # fmt: skip


def test_what_jvms_of_environments_that_are_gone_have_written_counts_among_the_archives(archive):
    archive.cache.mkdir(mode=0o700)
    for number in range(5):
        new = archive.cache / f"classes-gone{number}.token.new"
        new.write_bytes(WHOLE if number else b"\0" * 4096)  # the first is being written
        new.with_suffix(".ran").touch()
        moment = time.time() + number - 10
        os.utime(new, (moment, moment))
    archive.ordered()
    assert sorted(each.name for each in archive.cache.glob("*.new")) == [
        "classes-gone0.token.new", "classes-gone3.token.new", "classes-gone4.token.new",
    ]  # fmt: skip
    assert not (archive.cache / "classes-gone1.token.ran").exists()


def test_a_disk_with_little_room_or_a_folder_that_cannot_be_made_means_no_archive(
    home, java, tmp_path, monkeypatch
):
    monkeypatch.setattr(class_archive, "_FREE_BYTES", 1 << 80)
    assert archive_options(home, java, tmp_path / "cache", "") == ""
    monkeypatch.undo()
    (tmp_path / "file").touch()
    assert archive_options(home, java, tmp_path / "file" / "cache", "") == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JDK_JAVA_OPTIONS", "-Xshare:off"),
        ("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=/mine.jsa"),
        ("SPARK_SUBMIT_OPTS", "-Xshare:off"),
        ("ACKTREE_CLASS_ARCHIVE", "off"),
        ("SPARK_CONF_DIR", "/etc/spark"),
        ("PYSPARK_SUBMIT_ARGS", "--jars /a.jar pyspark-shell"),
    ],
)
def test_options_and_class_paths_of_the_users_stay_his(home, java, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert archive_options(home, java, tmp_path / "cache", "") == ""
    assert not (tmp_path / "cache").exists()


def test_a_jvm_that_may_only_use_an_archive_writes_none(home, bare_java, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("ACKTREE_CLASS_ARCHIVE", "use")
    assert archive_options(home, bare_java, cache, "") == ""
    assert not cache.exists()
    monkeypatch.delenv("ACKTREE_CLASS_ARCHIVE")
    asked = archive_options(home, bare_java, cache, "")
    note_micro_batch()
    Path(asked.removeprefix("-XX:ArchiveClassesAtExit=").split()[0]).write_bytes(WHOLE)
    monkeypatch.setenv("ACKTREE_CLASS_ARCHIVE", "use")
    assert archive_options(home, bare_java, cache, "").startswith("-XX:SharedArchiveFile=")


def test_a_folder_whose_name_java_would_misread_means_no_archive(home, java, tmp_path):
    for name in ("a b", "a:b"):
        assert archive_options(home, java, tmp_path / name, "") == ""


def test_java_writes_the_archive_uses_it_and_starts_with_a_damaged_one(home, java, tmp_path):
    cache = tmp_path / "cache"

    def run() -> tuple[str, str]:
        options = archive_options(home, java, cache, "")
        program = [str(java / "bin" / "java"), "-cp", f"{home}/jars/*", *options.split()]
        done = subprocess.run([*program, "-version"], capture_output=True, text=True, check=True)
        assert done.stdout == "", "nothing is printed to the user"
        return options, done.stderr

    asked, _ = run()
    assert "-XX:ArchiveClassesAtExit=" in asked
    assert run()[0] == "", "no micro-batch has run"
    note_micro_batch()
    used, said = run()
    assert "-XX:SharedArchiveFile=" in used
    assert "sharing" in said
    (file,) = cache.glob("*.jsa")
    damaged = bytearray(file.read_bytes())
    for at in range(len(damaged) // 2, len(damaged)):
        damaged[at] ^= 0xFF
    file.chmod(0o600)
    file.write_bytes(damaged)
    assert run()[0] == used, "it has the right length"
    (home / "jars" / "two.jar").write_bytes((home / "jars" / "one.jar").read_bytes())
    assert run()[0] != used, "another class path has another archive"
