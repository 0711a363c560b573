"""A checkpoint at a URL: each file is written to the URL first, and to the driver's working copy after that.

The driver works on a local folder, as if it were the checkpoint. What a checkpoint must not lose is written
to the URL before it counts here. So the URL is never behind what the driver has acted on, and a driver on
another machine can take over.

Rules of this file
------------------
1. A file is written to the URL before it is renamed to its name here.
2. A file that is deleted here is deleted at the URL later, in the same order. After a crash the URL may have
   files that were deleted here, as after a crash at an earlier moment; it never has fewer files. Until a run
   has begun a file is deleted at once: what recovery discarded must be gone before a file of that name is
   written.
3. After a failure nothing is written or deleted at the URL any more: whether the last file is there is
   unknown, and what follows might depend on it. The topology stops, and the next driver takes what it finds.
4. The working copy of an earlier driver is never used. Each driver fetches its own.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Final

from acktree.checkpoint import disk_errors
from acktree.checkpoint.files import Files
from acktree.checkpoint.lease import RENEW_SECS, Lease, Remote
from acktree.checkpoint.staged_files import FOLDER_NAME as STAGED
from acktree.errors import AcktreeError, CheckpointError
from acktree.logs.loggers import logger
from acktree.system.private_files import make_private_folder

log = logger("acktree")

_FOLDERS: Final = ("inbox", "commits", "payloads", "ids", "verdicts", STAGED)
"""The folders whose files must not be lost. So must the file of facts. Staged files are there only where the
checkpoint was a folder before."""
_FACTS: Final = "acktree.json"
_AT_ONCE: Final = 64
"""How many files are deleted at most before the lease is checked again."""
_PUTS_AT_ONCE: Final = 8
"""How many files are written at the same time."""
_CLOSE_SECS: Final = 10.0


class Mirror(Files):
    """The files of a checkpoint at a URL, and the working copy that belongs to them.

    Attributes:
        folder: The working copy: a checkpoint folder like any other.
    """

    is_seen = False

    def __init__(self, remote: Remote, folder: Path, lease: Lease) -> None:
        """Begin with an empty working copy; called by :meth:`open`."""
        self.folder = folder
        self._remote, self._lease = remote, lease
        self._to_delete: dict[str, None] = {}  # in the order in which they were deleted here
        self._deleting: str | None = None
        self._changed = Condition()
        self._stops = Event()
        self._has_begun = False
        self._is_closed = False
        self._on_lost: Callable[[], None] = _do_nothing
        self._last_logged: Path | None = None
        self._thread = Thread(target=self._work, name=f"acktree {remote.url}", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, remote: Remote, parent: str | None = None) -> Mirror:
        """Take over the checkpoint at a URL.

        Args:
            parent: The folder for the working copy. None: the machine's folder of temporary files.

        Raises:
            CheckpointError: Another driver runs on it, or it cannot be reached.
        """
        folder = Path(tempfile.mkdtemp(prefix="acktree-checkpoint-", dir=parent))
        try:
            remote.make("")
            lease = Lease.take(remote, folder)
            mirror = cls(remote, folder, lease)  # it renews the lease from now on
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        try:
            mirror._fetch()
        except BaseException:
            mirror.close()
            raise
        return mirror

    def _fetch(self) -> None:
        for name in _FOLDERS:
            self._remote.make(name)
            make_private_folder(self.folder / name)
            for file in self._remote.names(name):
                if file.startswith(".") and file.endswith(".tmp"):  # Spark's, of a writer that died
                    self._remote.delete(f"{name}/{file}")
                else:
                    self._remote.get(f"{name}/{file}", self.folder / name / file)
        if self._remote.exists(_FACTS):
            self._remote.get(_FACTS, self.folder / _FACTS)

    def publish(self, new: Path, file: Path) -> Path:
        with self._or_lost():
            self._put(new, file)
            return super().publish(new, file)

    def publish_all(self, prepared: Sequence[tuple[Path, Path]]) -> None:
        """Publish files, several at a time: each waits for the file system."""
        with self._or_lost():
            _at_once([partial(self._put, new, file) for new, file in prepared])
            for new, file in prepared:
                super().publish(new, file)

    def _put(self, new: Path, file: Path) -> None:
        name = self._name(file)
        self._lease.check()
        with self._changed:
            self._to_delete.pop(name, None)
            self._changed.wait_for(lambda: self._deleting != name)
        self._remote.put(new, name)

    def remove(self, file: Path) -> None:
        super().remove(file)
        if self.lost is not None:
            return
        if not self._has_begun:
            with self._or_lost():
                self._remote.delete(self._name(file))
            return
        with self._changed:
            self._to_delete[self._name(file)] = None

    def shown(self, folder: Path) -> str:  # noqa: ARG002  # the working copy is not shown
        return self._remote.url

    def make_spark_folder(self, folder: Path) -> str:
        self._remote.make(self._name(folder))
        return f"{self._remote.url}/{self._name(folder)}"

    def leave_spark_folder(self, folder: Path) -> None:
        """Do nothing: the file system at the URL decides who may read what Spark wrote there."""

    def logged(self, folder: Path) -> Iterable[str]:
        return self._remote.names(self._name(folder))

    def read_log(self, file: Path) -> str:
        return self._remote.read(self._name(file)).decode()

    def is_logged(self, file: Path) -> bool:
        if file != self._last_logged:  # the same one is asked for many times, and is never deleted
            if not self._remote.exists(self._name(file)):
                return False
            self._last_logged = file
        return True

    def begin(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._has_begun = True

    def check(self) -> None:
        with self._or_lost():
            self._lease.check()

    def explained(self, error: BaseException) -> BaseException:
        if not disk_errors.is_of_the_query(error):
            return error
        try:
            with self._or_lost():
                self._lease.renew()  # raises if the lease is lost: then that is the cause
        except CheckpointError as ours:
            ours.__cause__ = error
            return ours
        return error

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stops.set()
        self._thread.join(_CLOSE_SECS)
        if self.lost is None:
            try:
                while self._to_delete:
                    self._sweep()
                self._lease.release()
            except CheckpointError as error:
                log.warning("checkpoint=%s was not closed in order, and may be taken a little later: %s",
                            self._remote.url, error)  # fmt: skip
        shutil.rmtree(self.folder, ignore_errors=True)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        """After an error in the body nothing is written any more: :attr:`lost` is set."""
        if self.lost is not None:
            raise self.lost
        try:
            yield
        except BaseException as error:
            lost = disk_errors.explained(error, self.folder)
            if not isinstance(lost, CheckpointError):
                lost = CheckpointError(
                    f"the checkpoint's working copy failed: {type(error).__name__}: {error}",
                    str(self.folder),
                    "submit again on the same checkpoint: it goes on where it was, nothing is lost",
                )
            self.lost = lost
            self._on_lost()
            if lost is error or not isinstance(error, Exception):  # an interruption stays one
                raise
            raise lost from error

    def _work(self) -> None:
        """The mirror's thread: renews the lease, and deletes files at the URL."""
        renewed = time.monotonic()
        with suppress(AcktreeError):  # ``lost`` holds it, and the supervisor reports it
            while not self._stops.wait(min(1.0, RENEW_SECS)):
                if time.monotonic() - renewed >= RENEW_SECS:
                    with self._or_lost():
                        self._lease.renew()
                    renewed = time.monotonic()
                if self._to_delete:
                    with self._or_lost():
                        self._lease.check()
                        self._sweep()

    def _sweep(self) -> None:
        """Delete at the URL what was deleted here, in the same order."""
        for _ in range(_AT_ONCE):
            with self._changed:
                self._deleting = next(iter(self._to_delete), None)
            if self._deleting is None:
                return
            try:
                self._remote.delete(self._deleting)
            finally:
                with self._changed:
                    self._to_delete.pop(self._deleting, None)
                    self._deleting = None
                    self._changed.notify_all()


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls, several at a time; the first error is raised once none goes on."""
    calls_left, errors = iter(calls), list[BaseException]()
    taking = Lock()

    def work() -> None:
        try:
            while not errors:
                with taking:
                    call = next(calls_left, None)
                if call is None:
                    return
                call()
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    # Daemons: a file system that does not answer does not hold up the end of the process.
    threads = [Thread(target=work, name="acktree put", daemon=True) for _ in calls[:_PUTS_AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _do_nothing() -> None:
    """The callback until a run has begun."""
