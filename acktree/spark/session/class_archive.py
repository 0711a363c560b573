"""An archive of the classes that Spark's JVM loads: the next JVM maps it instead of reading 15,000 classes.

Before the first ack a JVM takes about a third of all CPU to find classes in 300 jars, to parse and to verify
them. HotSpot can write what it has loaded to a file when it ends (class data sharing, JDK 13 and later; JEP
350), and map that file at the next start. The JVM checks that Java, class path and jars are those of the
file, and starts without it otherwise.

Rules of this file
------------------
1. Only a JVM that acktree starts, with the class path of the lean home, uses or writes an archive.
2. A JVM writes to a name of its own. Its file counts once it is whole and on disk, and if a micro-batch ran:
   the archive of a JVM that loaded little would never be replaced.
3. A file that others could have written, or of another length, is not mapped: it would run code of theirs, or
   end the JVM with SIGBUS. Nor is a file in a folder that others may write to. Its content is checked by the
   JVM, which ignores what does not fit its sums.
4. Whatever fails here, Spark starts, without an archive. A JVM that does not start with these options is
   started once more without them: see gateway.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acktree.logs.loggers import logger
from acktree.system.private_files import make_private_file, make_private_folder

log = logger("acktree.spark")

_FREE_BYTES: Final = 1 << 30
"""No archive is written with less than this left on the disk; one takes 180 MB."""
_KEPT: Final = 3
"""How many archives stay, the latest used: each Spark, Java and virtual environment has its own."""
_CLAIM_SECS: Final = 3600.0
"""For this number of seconds after one JVM was asked for an archive, no other is asked."""
_LEFT_SECS: Final = 86_400.0
"""Files of JVMs that were killed are deleted after this time."""
_CLASS_PATHS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Variables that add folders to the JVM's class path. HotSpot archives classes of jars only."""
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_OPTIONS: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Variables with options for the JVM. Spark's start script adds the last one."""
_OWN_WISHES: Final = re.compile(r"-Xshare|SharedArchiveFile|ArchiveClassesAtExit|SharedClassList|AOT")
_SWITCH: Final = "ACKTREE_CLASS_ARCHIVE"
"""With ``off`` in this variable the JVM neither uses nor writes an archive; with ``use`` it writes none."""
_PLAIN_PATH: Final = re.compile(r"[\w./+@-]+")
"""Spark splits options at blanks, and the JVM splits the path of an archive at colons."""

# Without the messages about an archive that does not fit, and about each class that cannot be archived.
_QUIET: Final = "-Xlog:cds*=off"

_to_note: Path | None = None
"""The file to be made once a micro-batch has run in this process's JVM."""


def archive_options(home: Path, java: Path | None, cache: Path, variant: str) -> str:
    """The options with which the JVM uses the archive, or writes one when it ends; empty for neither.

    Args:
        home: The lean home, whose jars are the class path.
        java: The folder of the Java that will run.
        cache: Where archives are.
        variant: What else changes the classes that are loaded: the JVM's other options, for example.
    """
    global _to_note  # noqa: PLW0603  # a process has one JVM
    if java is None or not _may_share(java, cache, os.environ):
        return ""
    try:
        archive = ClassArchive(cache, _key(home, java, variant))
        file = archive.found()
        if file is not None:
            # With the sums of its content checked: 0.1 s.
            return f"-XX:SharedArchiveFile={file} -XX:+VerifySharedSpaces {_QUIET}"
        ordered = None if os.environ.get(_SWITCH) == "use" else archive.ordered()
    except OSError as error:
        log.debug("no archive of classes in %s: %s", cache, error)
        return ""
    if ordered is None:
        return ""
    _to_note = ordered.with_suffix(".ran")
    return f"-XX:ArchiveClassesAtExit={ordered} {_QUIET}"


def note_micro_batch() -> None:
    """What the JVM writes at its end is worth being kept. Called after each micro-batch."""
    global _to_note
    file, _to_note = _to_note, None
    if file is not None:
        with suppress(OSError):  # then there is no archive
            make_private_file(file)


def forget_order() -> None:
    """The JVM was started without the options: it writes no archive."""
    global _to_note  # noqa: PLW0603  # a process has one JVM
    _to_note = None


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one Spark and Java.

    ``classes-KEY-BYTES.jsa`` is the archive; its name has its length. ``classes-KEY.TOKEN.new`` is what a JVM
    writes, ``.ran`` beside it says that a micro-batch ran, and ``classes-KEY.claim`` that a JVM was asked.
    """

    cache: Path
    key: str

    def found(self) -> Path | None:
        """The archive, also one that a JVM has written meanwhile; None if there is none."""
        if not self.cache.is_dir() or not _is_ours_alone(self.cache):
            return None
        self._take_new()
        for file in self.cache.glob(f"classes-{self.key}-*.jsa"):
            if _is_ours_alone(file):
                if file.stem.endswith(f"-{file.stat().st_size}"):
                    os.utime(file)  # the archives that were used last are kept
                    return file
                file.unlink()  # cut off by a full disk or a copy
        return None

    def ordered(self) -> Path | None:
        """The name to which a JVM should write; None if another was asked, or the disk has little room."""
        make_private_folder(self.cache)
        if not _is_ours_alone(self.cache):
            return None
        if shutil.disk_usage(self.cache).free < _FREE_BYTES:
            return None
        self._remove_old()
        claim = self.cache / f"classes-{self.key}.claim"
        if not make_private_file(claim):
            return None
        return self.cache / f"classes-{self.key}.{secrets.token_hex(8)}.new"

    def _take_new(self) -> None:
        """Make the newest whole file that a JVM wrote after a micro-batch the archive."""
        for ran in self.cache.glob(f"classes-{self.key}.*.ran"):
            new = ran.with_suffix(".new")
            with suppress(FileNotFoundError):  # another process was faster, or the JVM still runs
                if not _is_whole(new):
                    continue
                with new.open("rb") as file:
                    os.fsync(file.fileno())
                    size = os.fstat(file.fileno()).st_size
                new.rename(self.cache / f"classes-{self.key}-{size}.jsa")
                ran.unlink()
                (self.cache / f"classes-{self.key}.claim").unlink(missing_ok=True)

    def _remove_old(self) -> None:
        """Delete what killed JVMs left, old claims, and archives but the latest used.

        What JVMs of environments that start no more have written counts as their archive.
        """
        now = time.time()
        for ending, secs in ((".claim", _CLAIM_SECS), (".new", _LEFT_SECS), (".ran", _LEFT_SECS)):
            for file in self.cache.glob(f"classes-*{ending}"):
                with suppress(FileNotFoundError):
                    if now - file.stat().st_mtime > secs:
                        file.unlink()
        archives = []
        for file in (*self.cache.glob("classes-*.jsa"), *self.cache.glob("classes-*.new")):
            with suppress(FileNotFoundError):
                if file.suffix == ".jsa" or _is_whole(file):
                    archives.append((file.stat().st_mtime, file))
        for _, file in sorted(archives)[: max(0, len(archives) - _KEPT + 1)]:  # one more is coming
            file.unlink(missing_ok=True)
            file.with_suffix(".ran").unlink(missing_ok=True)


def _is_ours_alone(path: Path) -> bool:
    """Whether no other user could have written it: a file, or a file in a folder."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _is_whole(file: Path) -> bool:
    """Whether the JVM has written all of it: the header, which begins with a number, is written last."""
    with file.open("rb") as written:
        return any(written.read(4))


def _may_share(java: Path, cache: Path, environment: Mapping[str, str]) -> bool:
    """Whether Java can share classes, the class path is ours, and the user has given no such options."""
    return (
        (java / "lib" / "server" / "classes.jsa").is_file()  # the JDK's archive, on which ours is built
        and environment.get(_SWITCH) != "off"
        and not any(environment.get(name) for name in _CLASS_PATHS)
        and environment.get(_SUBMIT, "pyspark-shell") == "pyspark-shell"
        and not any(_OWN_WISHES.search(environment.get(name, "")) for name in _OPTIONS)
        and _PLAIN_PATH.fullmatch(str(cache)) is not None
    )


def _key(home: Path, java: Path, variant: str) -> str:
    """The digest of everything that the JVM compares before it uses an archive."""
    used = [java / "lib" / "server" / "libjvm.so", *sorted((home / "jars").glob("*.jar"))]
    stats = [(str(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in used]
    return hashlib.sha256(repr((stats, variant)).encode()).hexdigest()[:16]
