"""The driver's door: a Unix socket on which this user's other processes ask, and give orders.

It writes ``control.json`` and ``snapshot.json`` into the checkpoint.

Answers are made of values that are already there; orders are methods of the running topology, called on the
door's own threads (``door_routes.py``, ``door_server.py``).

Rules of this file
------------------
1. Nobody but the driver's own user is answered: the folder is 0700, the socket 0600, and the peer's user is
   checked where the system tells it.
2. A GET changes nothing. An order is a POST with a JSON object.
3. Nothing that arrives is unpickled, and no path of a request names a file.
4. A door that cannot be opened is logged; the topology runs without it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

from acktree.driver.handle import SubmittedTopology
from acktree.driver.run import Run
from acktree.errors import AcktreeError
from acktree.logs.log_levels import FILE as LOG_LEVELS
from acktree.logs.loggers import logger
from acktree.system.private_files import Disk
from acktree.ui.door_routes import Routes
from acktree.ui.door_server import DoorServer
from acktree.ui.history import open_store
from acktree.ui.log_levels import LogLevels
from acktree.ui.observer import TopologyObserver
from acktree.ui.places import (
    POINTER,
    SNAPSHOT,
    Entry,
    key_of,
    read_entry,
    remove_socket,
    runtime_folder,
    socket_path,
    write_entry,
)
from acktree.ui.snapshot import Snapshot

log = logger("acktree")


class Door:
    """The door of one run: made with the run, opened when the run begins, closed by its supervisor.

    Args:
        disk: What files of the checkpoint are written by; None where it is at a URL, which gets none.
        version: The version of acktree.
    """

    def __init__(self, disk: Disk | None, version: str) -> None:
        self._disk, self._version = disk, version
        self._began_ms = time.time_ns() // 1_000_000
        self._observer: TopologyObserver | None = None
        self._levels = LogLevels(None if disk is None else self._write_levels)
        self._routes: Routes | None = None
        self._server: DoorServer | None = None
        self._entry: Entry | None = None
        self._entry_file: Path | None = None
        self._folder: Path | None = None
        self._is_serving = self._is_closing = False

    def open(
        self, running: SubmittedTopology, run: Run, batch_ms: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """Begin to answer. An error is logged, and the topology runs without a door.

        Args:
            running: Takes the orders.
            run: What is watched.
            batch_ms: Gives where the time of the last micro-batch went, in milliseconds by phase.
        """
        self._folder = run.checkpoint.folder if self._disk is not None else None
        try:
            store = open_store(self._folder, run.name)
            self._observer = TopologyObserver(
                run, self._began_ms, self._version, batch_ms, self._keep, store=store
            )
            self._observer.begin()
            self._levels.begin()
            self._routes = Routes(running, run, self._observer, self._levels)
            self._listen(run, self._routes)
        except Exception as error:  # noqa: BLE001  # no more threads, for example: the topology runs all the same
            log.warning("topology=%s has no socket for operators: %s", run.name, error)
            if self._server is not None and not self._is_serving:
                self._server.server_close()

    def close(self, stopped_by: BaseException | None) -> None:
        """Keep the last snapshot, then answer no more. Never raises.

        The socket stays until :meth:`leave`: who ordered the end waits until it is gone.
        """
        self._is_closing = True
        self._levels.close()
        if self._observer is not None:
            self._observer.close(stopped_by)
        if self._server is not None:
            if self._is_serving:
                self._server.shutdown()
            self._server.server_close()
        if self._observer is not None:  # no snapshot will be asked for
            self._observer.history.store.close()

    def leave(self) -> None:
        """Delete the socket, once the next driver may have the checkpoint. Never raises."""
        if self._entry is None or self._entry_file is None:
            return
        is_replaced = read_entry(self._entry_file) != self._entry
        if not is_replaced:  # its socket is at the same path
            remove_socket(Path(self._entry.socket))

    def _listen(self, run: Run, routes: Routes) -> None:
        place = str(run.checkpoint.place)
        folder, key = runtime_folder(), key_of(place)
        file = folder / f"{key}.json"
        before = read_entry(file)
        if before is not None and before.checkpoint == place:
            remove_socket(Path(before.socket))  # of a driver that died: this one holds the checkpoint's lock
        path = socket_path(folder, key)
        path.unlink(missing_ok=True)
        self._server = DoorServer(path, routes)
        Thread(target=self._server.serve, name=f"door {run.name}", daemon=True).start()
        self._is_serving = True
        entry = Entry(
            run.name, routes.id, checkpoint=place, socket=str(path), pid=os.getpid(),
            host=socket.gethostname(), began_ms=self._began_ms,
        )  # fmt: skip
        self._entry, self._entry_file = entry, file
        write_entry(entry, file, Disk())
        if self._folder is not None and self._disk is not None:
            write_entry(entry, self._folder / POINTER, self._disk)

    def _listen_again(self, routes: Routes) -> None:
        """Make the socket anew where it was deleted: logout empties a user's runtime folder."""
        old, entry = self._server, self._entry
        if old is None or entry is None:
            return
        path = Path(entry.socket)
        try:
            if self._is_closing or path.exists():
                return
            log.warning("topology=%s the socket %s is gone; another one is made", routes.run.name, path)
            self._listen(routes.run, routes)
        except (OSError, AcktreeError) as error:
            log.warning("topology=%s has no socket for operators: %s", routes.run.name, error)
        if self._server is not old:
            old.shutdown()
            old.server_close()

    def _write_levels(self, levels: bytes) -> None:
        """Let workers read the levels of loggers. There is no file until some are set."""
        if self._folder is None or self._disk is None:
            return
        file = self._folder / LOG_LEVELS
        if levels == b"{}" and not self._disk.exists(file):
            return
        self._disk.replace(file, levels)

    def _keep(self, snapshot: Snapshot) -> None:
        """See that the socket is there, and write the last snapshot into the checkpoint."""
        if self._routes is not None:
            self._listen_again(self._routes)
        if self._folder is not None and self._disk is not None:
            self._disk.replace(self._folder / SNAPSHOT, snapshot.to_json())
