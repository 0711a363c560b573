"""The checkpoint folder: what belongs to one topology across its runs.

::

    acktree.json     the numbers that must not change (salt, partitions) and the shape they belong to
    lock             held by the one driver that may run it
    spark/           Spark's own checkpoint: offsets, commits, state
    acker/           what is open
    payloads/        rows of DataFrames that are open, where there is a retry policy
    inbox/           what spouts emitted, until committed and done with
    marks/           what levels are executing, for when it kills them
    verdicts/        the journal, where a spout's messages are brought back by us
    dead_letters.sqlite
    plan-*           what the workers of the current run read

Everything in it is the user's alone (0700, and what we write in it 0600), whatever the umask.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final

from acktree.config import Config
from acktree.errors import CheckpointError
from acktree.private_files import make_private_file, make_private_folder, write_private
from acktree.spark import full_disk
from acktree.spark.scratch import scratch_folder
from acktree.topology.model import Topology

log = logging.getLogger("acktree")

VERSION: Final = 1
"""The version of this layout; a checkpoint of a later one is refused."""
BLOCK: Final = 1 << 28
"""Sequences are reserved in blocks of so many: a run starts behind what the last one had reserved."""


class Checkpoint:
    """One checkpoint folder, held by this process until :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it is made if it is not there.

        Raises:
            CheckpointError: Another driver runs on it, or a later acktree wrote it.
        """
        self.folder = folder
        make_private_folder(folder)
        make_private_folder(self.spark)  # before Spark makes it as the umask says
        _warn_of_writers(folder)
        self._changing = Lock()  # of the facts: each spout thread reserves sequences
        make_private_file(folder / "lock")
        self._held: int | None = os.open(folder / "lock", os.O_RDWR)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise CheckpointError(
                "another driver runs on this checkpoint",
                str(folder),
                "stop it first, or give this topology a checkpoint of its own",
            ) from error
        try:
            self._facts = self._read()
        except BaseException:
            self.close()
            raise

    @property
    def spark(self) -> Path:
        """Spark's ``checkpointLocation``."""
        return self.folder / "spark"

    @property
    def inbox(self) -> Path:
        """The folder of the inbox."""
        return self.folder / "inbox"

    @property
    def verdicts(self) -> Path:
        """The folder of the journal."""
        return self.folder / "verdicts"

    @property
    def marks(self) -> Path:
        """The folder in which levels mark what they execute."""
        folder = self.folder / "marks"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def dead_letters(self) -> Path:
        """The file of the dead letters."""
        return self.folder / "dead_letters.sqlite"

    def new_plan_file(self) -> Path:
        """Where this run's plan goes; those of earlier runs are deleted."""
        for old in self.folder.glob("plan-*"):
            old.unlink()
        return self.folder / f"plan-{self.run}-{secrets.token_hex(4)}"

    def new_scratch_folder(self, spark_folder: str | None) -> Path:
        """Where this run's large rows go, outside of the checkpoint; that of an earlier run is deleted."""
        self.drop_scratch_folder()
        folder = scratch_folder(spark_folder)
        self._write({**self._facts, "scratch": str(folder)})
        return folder

    def drop_scratch_folder(self) -> None:
        """Delete the folder of large rows."""
        for folder in self.places[1:]:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def places(self) -> list[Path]:
        """Folders that a run writes to: this one, and its large rows' if it has one."""
        scratch = self._facts.get("scratch")
        return [self.folder] if scratch is None else [self.folder, Path(scratch)]

    @property
    def run_salt(self) -> int:
        """What root ids are mixed with."""
        return int(self._facts["run_salt"])

    @property
    def partitions(self) -> int:
        """How many partitions every level has."""
        return int(self._facts["partitions"])

    @property
    def run(self) -> int:
        """Which run this is, from 1."""
        return int(self._facts["run"])

    @property
    def first_sequence(self) -> int:
        """The first sequence of this run."""
        return int(self._facts["first_sequence"])

    @property
    def has_ended(self) -> bool:
        """Whether an earlier run came to its end: every spout ended, every message had its verdict."""
        return bool(self._facts.get("ended"))

    def begin_run(self, topology: Topology, config: Config, partitions: int) -> None:
        """Start a run: pin what must not change, or see that it did not.

        Args:
            partitions: How many to have in a fresh checkpoint.

        Raises:
            CheckpointError: The checkpoint belongs to a topology of another shape.
        """
        if not self._facts:
            salt = secrets.randbits(64) if config.run_salt is None else config.run_salt
            partitions = config.partitions or partitions
            self._facts = {
                "version": VERSION,
                "run_salt": salt,
                "partitions": partitions,
                "run": 0,
                "reserved": 0,
            }
            self._facts["shape"] = shape_of(topology, config, partitions)
        else:
            now = shape_of(topology, config, self.partitions)
            changed = [
                name
                for name in sorted(now | self._facts["shape"])
                if now.get(name) != self._facts["shape"].get(name)
            ]
            if changed:
                name = changed[0]
                before = self._facts["shape"].get(name)
                raise CheckpointError(
                    f"{name} is {now.get(name)} now and was {before} when this checkpoint was begun",
                    str(self.folder),
                    "run the topology as it was, or give the changed one a checkpoint of its own",
                )
        self._write({**self._facts, "run": self._facts["run"] + 1, "first_sequence": self._facts["reserved"]})

    def reserve(self, first: int) -> int:
        """Reserve the sequences from ``first`` to the end of a block, durably; returns that end."""
        end = first + BLOCK
        with self._changing:
            if end > self._facts["reserved"]:
                with full_disk.telling(self.folder):
                    self._write({**self._facts, "reserved": end})
        return end

    def mark_ended(self) -> None:
        """Note that the topology came to its end."""
        with self._changing:
            self._write({**self._facts, "ended": True})

    def admitted(self) -> int:
        """The last inbox number that a logged micro-batch runs over; -1 for none."""
        logged = _last_logged(self.spark / "offsets")
        if logged < 0:
            return -1
        for line in (self.spark / "offsets" / str(logged)).read_text().splitlines():
            if line.startswith('{"chunk"'):
                return int(json.loads(line)["chunk"])
        return -1

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has committed a micro-batch."""
        return (self.spark / "commits" / str(batch_id)).exists()

    def last_committed(self) -> int:
        """The last micro-batch that Spark has committed; -1 for none. The one after it will run again."""
        return _last_logged(self.spark / "commits")

    def close(self) -> None:
        """Let the next driver have it. A second call does nothing."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _read(self) -> dict[str, Any]:
        file = self.folder / "acktree.json"
        if not file.exists():
            return {}
        try:
            facts: dict[str, Any] = dict(json.loads(file.read_text()))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"{file.name} cannot be read: {error}",
                str(self.folder),
                "bring it back from a copy, or give the topology a new checkpoint",
            ) from error
        if facts.get("version") != VERSION:
            raise CheckpointError(
                f"this checkpoint has version {facts.get('version')}, and this acktree reads {VERSION}",
                str(self.folder),
                "run it with the acktree that wrote it, or give the topology a new checkpoint",
            )
        return facts

    def _write(self, facts: dict[str, Any]) -> None:
        new = self.folder / "acktree.json.new"
        # Synced: a reservation that a power cut takes back would hand out ids twice.
        write_private(new, json.dumps(facts, indent=1).encode(), sync=True)
        new.rename(self.folder / "acktree.json")
        self._facts = facts  # only what is on disk: a reservation that found no room is none for anybody


def _warn_of_writers(folder: Path) -> None:
    """A folder that was there keeps its rights; but whoever may write there can run code in this driver."""
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        log.warning(
            "checkpoint=%s can be written by others than its owner: they could run code in this driver. "
            "fix: chmod go-w %s",
            folder,
            folder,
        )


def _last_logged(folder: Path) -> int:
    """The last entry of one of Spark's logs, a file for each micro-batch; -1 for none."""
    return max((int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()), default=-1)


def shape_of(topology: Topology, config: Config, partitions: int) -> Mapping[str, Any]:
    """What of a topology the state in a checkpoint depends on, as JSON has it."""
    shape: dict[str, Any] = {
        f"the level of {name!r}": level.index for level in topology.levels(partitions) for name in level.bolts
    }
    for component in topology.components.values():
        shape[f"the kind of {component.id!r}"] = component.kind
        shape[f"the task ids of {component.id!r}"] = list(component.task_ids)
        shape[f"what {component.id!r} remembers"] = sorted(component.remembers)
    shape["whether messages are tracked"] = config.acker_executors != 0
    shape["the stateful levels"] = [level.index for level in topology.levels(partitions) if level.stateful]
    return shape
