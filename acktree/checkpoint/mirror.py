"""A checkpoint at a URL: what is put into the working copy is there first, and a driver elsewhere finds it.

The driver works on a folder of its own, as if it were the checkpoint. What a checkpoint must not lose goes to
the URL before it counts here; so what is there is never behind what anybody was told.

Rules of this file
------------------
1. A file is at the URL before it is in its place here.
2. What is deleted here is deleted there later, in the same order. A crash finds files there that were done
   with, as a crash at an earlier moment would; what stands there is never less. Until a run has begun it is
   deleted at once: what recovery threw away must not be there when something else is put.
3. After a failure nothing is written or deleted there any more: whether the last file is there nobody knows,
   and what followed might build on it. The topology stops, and the next driver takes what it finds.
4. The working copy of an earlier driver is never used. Each driver fetches its own.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Final

from acktree.checkpoint import full_disk
from acktree.checkpoint.files import Files
from acktree.checkpoint.lease import RENEW_SECS, Lease, Remote
from acktree.errors import AcktreeError, CheckpointError
from acktree.logs import logger
from acktree.private_files import make_private_folder

log = logger("acktree")

_FOLDERS: Final = ("inbox", "acker", "payloads", "ids", "verdicts")
"""What holds files that must not be lost, beside the facts."""
_FACTS: Final = "acktree.json"
_AT_ONCE: Final = 64
"""So many files are deleted between two looks at the lease."""
_CLOSE_SECS: Final = 10.0


class Mirror(Files):
    """The files of a checkpoint at a URL, and the working copy that belongs to them.

    Attributes:
        folder: The working copy: a checkpoint folder like any other.
    """

    is_seen = False

    def __init__(self, remote: Remote, folder: Path, lease: Lease) -> None:
        """Begin with what was fetched; made by :meth:`open`."""
        self.folder = folder
        self._remote, self._lease = remote, lease
        self._doomed: dict[str, None] = {}  # in the order in which they were deleted here
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
        """Take over what is at a URL.

        Args:
            parent: Where the working copy goes. None: the machine's folder of temporary files.

        Raises:
            CheckpointError: Another driver runs on it, or it cannot be reached.
        """
        folder = Path(tempfile.mkdtemp(prefix="acktree-checkpoint-", dir=parent))
        try:
            remote.make("")
            lease = Lease.take(remote, folder)
            mirror = cls(remote, folder, lease)  # from now on it is renewed, however long it takes to fetch
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
            for its in self._remote.names(name):
                if its.startswith("."):  # what a writer that died had begun beside its place
                    self._remote.delete(f"{name}/{its}")
                else:
                    self._remote.get(f"{name}/{its}", self.folder / name / its)
        if self._remote.exists(_FACTS):
            self._remote.get(_FACTS, self.folder / _FACTS)

    def place(self, new: Path, file: Path) -> Path:
        name = self._name(file)
        with self._or_lost():
            self._lease.check()
            with self._changed:
                self._doomed.pop(name, None)
                self._changed.wait_for(lambda: self._deleting != name)
            self._remote.put(new, name)
            return super().place(new, file)

    def remove(self, file: Path) -> None:
        super().remove(file)
        if self.lost is not None:
            return
        if not self._has_begun:
            with self._or_lost():
                self._remote.delete(self._name(file))
            return
        with self._changed:
            self._doomed[self._name(file)] = None

    def shown(self, folder: Path) -> str:  # noqa: ARG002  # the working copy is nobody's business
        return self._remote.url

    def make_spark_folder(self, folder: Path) -> str:
        self._remote.make(self._name(folder))
        return f"{self._remote.url}/{self._name(folder)}"

    def leave_spark_folder(self, folder: Path) -> None:
        """Who may read what Spark wrote there says the file system at the URL."""

    def logged(self, folder: Path) -> Iterable[str]:
        return self._remote.names(self._name(folder))

    def read_log(self, file: Path) -> str:
        return self._remote.read(self._name(file)).decode()

    def is_logged(self, file: Path) -> bool:
        if file != self._last_logged:  # asked of the same one again and again, and it never goes
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

    def told(self, error: BaseException) -> BaseException:
        if not full_disk.is_of_the_query(error):
            return error
        try:
            with self._or_lost():
                self._lease.renew()  # a query fails for many reasons; this one fails for ours
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
                while self._doomed:
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
        """What fails meanwhile is the end of all writing."""
        if self.lost is not None:
            raise self.lost
        try:
            yield
        except BaseException as error:
            told = full_disk.told(error, self.folder)
            if not isinstance(told, CheckpointError):
                told = CheckpointError(
                    f"the checkpoint's working copy failed: {type(error).__name__}: {error}",
                    str(self.folder),
                    "submit again on the same checkpoint: it goes on where it was, nothing is lost",
                )
            self.lost = told
            self._on_lost()
            if told is error or not isinstance(error, Exception):  # an interruption stays one
                raise
            raise told from error

    def _work(self) -> None:
        """The mirror's thread: says that this driver lives, and deletes what is done with."""
        renewed = time.monotonic()
        with suppress(AcktreeError):  # it is told by whoever looks at ``lost``
            while not self._stops.wait(min(1.0, RENEW_SECS)):
                if time.monotonic() - renewed >= RENEW_SECS:
                    with self._or_lost():
                        self._lease.renew()
                    renewed = time.monotonic()
                if self._doomed:
                    with self._or_lost():
                        self._lease.check()
                        self._sweep()

    def _sweep(self) -> None:
        """Delete there what was deleted here, first things first."""
        for _ in range(_AT_ONCE):
            with self._changed:
                self._deleting = next(iter(self._doomed), None)
            if self._deleting is None:
                return
            try:
                self._remote.delete(self._deleting)
            finally:
                with self._changed:
                    self._doomed.pop(self._deleting, None)
                    self._deleting = None
                    self._changed.notify_all()


def _do_nothing() -> None:
    """Nothing runs yet."""
