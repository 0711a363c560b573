"""A folder in a file system of Hadoop's, through the JVM beside the driver.

Bytes go from file to file in the JVM; what crosses to Python are names. Files are put by the checkpoint file
manager that Spark puts its own with, so what a store can do at once or not is known in one place.

Source: Spark's ``CheckpointFileManager``: ``createAtomic`` shows a file whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, UnsupportedOperationException

from acktree.checkpoint.lease import Remote
from acktree.checkpoint.location import hadoop_path
from acktree.errors import CheckpointError, ConfigError
from acktree.spark.session.settings import MANAGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Java = Any
"""An object of the JVM's, as py4j shows it."""

_MANAGER_KEY: Final = "spark.sql.streaming.checkpointFileManagerClass"
_GONE: Final = frozenset({"java.io.FileNotFoundException"})
_UNKNOWN: Final = ("UnsupportedFileSystemException", "ClassNotFoundException", "UnknownHostException")


class HadoopFolder(Remote):
    """A folder at a URL; see ``Remote`` for what its methods promise."""

    def __init__(self, jvm: Java, conf: Java, url: str) -> None:
        """Find the file system of a URL.

        Args:
            jvm: The JVM, as py4j shows it.
            conf: Hadoop's configuration there.

        Raises:
            ConfigError: Hadoop knows no such file system.
        """
        self.url = url
        self._conf = conf
        with self._explaining("to open it", _UNKNOWN):
            # py4j searches all jars for each part of a dotted name, in each use. These are found once.
            self._path_class, self._stream_class = jvm.org.apache.hadoop.fs.Path, jvm.java.io.FileInputStream
            self._copy = jvm.org.apache.hadoop.io.IOUtils.copyBytes
            self._to_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
            self._root = self._path_class(url)
            self._files = self._root.getFileSystem(conf)
            package = jvm
            for part in MANAGER.rpartition(".")[0].split("."):
                package = getattr(package, part)
            # Scala's companion of a trait: what Spark calls CheckpointFileManager.create.
            managers = getattr(getattr(package, "CheckpointFileManager$"), "MODULE$")
            self._manager = managers.create(self._root, conf)
            self._private = jvm.org.apache.hadoop.fs.permission.FsPermission("700")

    @classmethod
    def of_session(cls, session: SparkSession, url: str) -> HadoopFolder:
        """With a session's settings, which may hold what the file system asks for."""
        inner: Any = session
        conf = inner._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        if (
            conf.get(_MANAGER_KEY) == MANAGER
        ):  # for folders: at HDFS it would leave an older file, and say nothing
            conf.unset(_MANAGER_KEY)
        return cls(inner._jvm, conf, url)  # noqa: SLF001

    def make(self, name: str) -> None:
        path = self._path(name)
        with self._explaining(f"to make {name or 'it'}"):
            if not self._files.exists(path):
                self._files.mkdirs(path, self._private)

    def names(self, folder: str) -> dict[str, int]:
        with self._explaining(f"to list {folder}"):
            try:
                statuses = self._files.listStatus(self._path(folder))
            except Py4JJavaError as error:
                if error.java_exception.getClass().getName() in _GONE:
                    return {}
                raise
            return {status.getPath().getName(): status.getModificationTime() for status in statuses}

    def exists(self, name: str) -> bool:
        with self._explaining(f"to look for {name}"):
            return bool(self._files.exists(self._path(name)))

    def read(self, name: str) -> bytes:
        with self._explaining(f"to read {name}"):
            stream = self._files.open(self._path(name))
            try:
                return bytes(self._to_bytes(stream))
            finally:
                stream.close()

    def get(self, name: str, file: Path) -> None:
        with self._explaining(f"to fetch {name}"):
            local = self._path_class(hadoop_path(file))
            self._files.copyToLocalFile(False, self._path(name), local, True)  # noqa: FBT003  # Java's order

    def put(self, file: Path, name: str) -> None:
        with self._explaining(f"to write {name}"):
            self._put(file, name, overwrite=True)

    def put_new(self, file: Path, name: str) -> bool:
        with self._explaining(f"to write {name}"):
            if self._files.exists(self._path(name)):
                return False
            try:
                self._put(file, name, overwrite=False)
            except Py4JJavaError:
                if self._files.exists(self._path(name)):
                    return False
                raise
        return True

    def delete(self, name: str) -> None:
        with self._explaining(f"to delete {name}"):
            self._files.delete(self._path(name), False)  # noqa: FBT003  # Java's order: not what is in it

    def _put(self, file: Path, name: str, *, overwrite: bool) -> None:
        source = self._stream_class(str(file))
        try:
            target = self._manager.createAtomic(self._path(name), overwrite)
            try:
                self._copy(source, target, self._conf, False)  # noqa: FBT003
                target.close()  # not by copyBytes, which does so after a failure too: then it would be there
            except BaseException:
                with suppress(Py4JError):
                    target.cancel()
                raise
        finally:
            source.close()

    def _path(self, name: str) -> Java:
        return self._path_class(self._root, name) if name else self._root

    @contextmanager
    def _explaining(self, what: str, unknown: tuple[str, ...] = ()) -> Iterator[None]:
        """Whatever Hadoop says is the checkpoint's error; with one of these names in it, the URL's."""
        try:
            yield
        except (Py4JError, PySparkException) as error:  # PySpark has its own classes for some of Java's
            said = _first_line(error)
            is_read_only = isinstance(error, UnsupportedOperationException)
            if is_read_only or any(name in said for name in unknown):
                raise ConfigError(
                    f"this Spark {'can only read' if is_read_only else 'finds no'} such file system: {said}",
                    f"submit(checkpoint={self.url!r})",
                    "see that the URL is right; what is not part of Hadoop needs its package in the session "
                    "(spark.jars.packages), and its settings there as spark.hadoop.*",
                ) from error
            raise CheckpointError(
                f"the checkpoint's file system failed {what}: {said}",
                self.url,
                "see that it can be reached, has room and lets this user write; then submit again on the "
                "same checkpoint: it goes on where it was, nothing is lost",
            ) from error


def refuse_unseen(session: SparkSession, folder: Path) -> None:
    """See that Spark finds a folder of this machine under its name: Java reads names by its locale.

    Raises:
        CheckpointError: It does not.
    """
    inner: Any = session
    path = inner._jvm.org.apache.hadoop.fs.Path(hadoop_path(folder))  # noqa: SLF001
    if not path.getFileSystem(inner._jsc.hadoopConfiguration()).exists(path):  # noqa: SLF001
        raise CheckpointError(
            "Spark's Java does not find the checkpoint's folder under its name",
            str(folder),
            "start it with a locale that knows the name's characters (LC_ALL=C.UTF-8), or name a folder in "
            "plain ASCII",
        )


def _first_line(error: Py4JError | PySparkException) -> str:
    said = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return (said.strip().splitlines() or ["the JVM is gone"])[0][:300]
