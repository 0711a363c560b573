"""The checkpoint folder: what belongs to one topology across its runs.

::

    acktree.json     the numbers that must not change (salt, partitions) and the shape they belong to
    lock             held by the one driver that may run it
    synced           the last micro-batch that outlives a power cut, where those are survived
    spark/           Spark's own checkpoint: offsets, commits, state
    spark-N/         the same in generation N, from 2 on; ``spark/`` is generation 1; see offline.py
    memory-N/        what bolts remembered when spark-N began, a file a task
    acker/           what is open
    payloads/        rows of DataFrames that are open, where there is a retry policy
    inbox/           what spouts emitted, until committed and done with
    marks/           what levels are executing, for when it kills them
    verdicts/        the journal, where a spout's messages are brought back by us
    dead_letters.sqlite
    plan-*           what the workers of the current run read
    control.json     where the driver's socket is
    snapshot.json    the last numbers, for operators
    driver.log       the output of a driver that ``acktree submit`` started

Everything in it is the user's alone (0700, and what we write in it 0600), whatever the umask.

Where the checkpoint is at a URL this folder is the driver's working copy of it (``mirror.py``), which lacks
Spark's part, marks and plan.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from acktree.checkpoint import full_disk
from acktree.checkpoint.files import FOLDER, UNPLACED, Files
from acktree.checkpoint.holding import holder_in, make_folder, sign_lock, warn_of_other_files, warn_of_writers
from acktree.checkpoint.inbox_files import waiting_spouts
from acktree.checkpoint.layout import FRESH, check_version
from acktree.checkpoint.power_cut import SYNC_NOTES, forget_synced, note_synced, roll_back
from acktree.config import Config
from acktree.errors import CheckpointError
from acktree.logs import logger
from acktree.private_files import make_private_folder
from acktree.topology.changes import CHECKPOINT, changes
from acktree.topology.model import Topology
from acktree.topology.shape import Shape, numbered

log = logger("acktree")

BLOCK: Final = 1 << 28
"""How many sequences are reserved at once: a run starts after what the last one had reserved."""


class Checkpoint:
    """One checkpoint folder, held by this process until :meth:`close`."""

    def __init__(self, folder: Path, files: Files = FOLDER) -> None:
        """Take the folder; it is made if it is not there.

        Args:
            files: How its files come to be there. They are closed with it, or where it cannot be taken.

        Raises:
            CheckpointError: Another driver runs on it, or a later acktree wrote it.
        """
        self.folder, self.files = folder, files
        self._disk = files.disk
        self._is_new = not self._disk.exists(folder)
        make_folder(folder, self._disk)
        warn_of_writers(folder, self._disk)
        warn_of_other_files(folder, self._disk)
        self._facts: dict[str, Any] = {}
        self._changing = Lock()  # of the facts: each spout thread reserves sequences
        self._syncing = Lock()
        self._disk.make_file(folder / "lock")
        self._held: int | None = None
        try:
            self._held = self._disk.lock(folder / "lock")
        except (BlockingIOError, FileNotFoundError) as error:  # it may have been unmade meanwhile
            files.close()
            raise CheckpointError(
                "another driver runs on this checkpoint",
                f"{self.place}: held by {holder_in(folder / 'lock', self._disk)}",
                "stop it first, or give this topology a checkpoint of its own",
            ) from error
        try:
            sign_lock(self._held, self._disk)
            self._facts = self._read()
            self._synced = roll_back(folder, self.spark, self.first_batch, self._disk)
            self.spark_url = files.make_spark_folder(self.spark)
            if not files.survives_power_cut:
                forget_synced(folder, self._disk)
            elif self._synced is None:
                self.sync(self.last_committed())
        except BaseException:
            self.close()
            raise

    def _unmake(self) -> None:
        """Delete a folder that this object made, and that nothing was put into."""
        if self._disk.exists(self.spark):
            self._disk.remove_empty(self.spark)
        if {*self._disk.names(self.folder)} <= {"lock", *SYNC_NOTES}:
            for name in (*SYNC_NOTES, "lock"):
                self._disk.remove(self.folder / name)
            self._disk.remove_empty(self.folder)

    def sync(self, committed: int) -> None:
        """Where power cuts are survived: see that everything up to this micro-batch is on the disk itself.

        Called before anything is told of a committed micro-batch, or deleted because of it; by the
        supervisor and by the sink, whichever comes first. A restart after a power cut goes back to the last
        micro-batch of which this was done.

        Raises:
            OSError: The disk refuses; nothing must be told.
        """
        if not self.files.survives_power_cut:
            return
        with self._syncing:
            if self._synced is None or committed > self._synced:
                self.files.sync_all(self.folder)
                note_synced(self.folder, committed, self._disk)
                self._synced = committed

    @property
    def place(self) -> Path | str:
        """What a person calls it: the folder, or the URL of which the folder is a working copy."""
        return self.files.shown(self.folder)

    @property
    def spark(self) -> Path:
        """Where Spark's part is in the folder; where it really is :attr:`spark_url` says."""
        return self._of_generation("spark")

    @property
    def memory(self) -> Path | None:
        """What bolts remembered when Spark's checkpoint began; None for nothing."""
        return self._of_generation("memory") if self._facts.get("memory") else None

    def _of_generation(self, name: str) -> Path:
        generation = int(self._facts.get("generation", 1))
        return self.folder / (name if generation == 1 else f"{name}-{generation}")

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
        self._disk.make_folder(folder)
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

    @property
    def letters_to_redrive(self) -> list[int]:
        """The ids of the dead letters that the next run sends again: ordered while nobody ran it."""
        return list(self._facts.get("redrive", ()))

    def order_redrive(self, ids: Iterable[int]) -> None:
        """Note dead letters that the next run is to send again; with no ids, that they were sent.

        Raises:
            CheckpointError: No topology was run on this checkpoint.
        """
        if not self._facts:
            raise CheckpointError(
                "no topology was run on this checkpoint", str(self.place), "name the one that gave them up"
            )
        asked = sorted({*ids})
        with self._changing:
            self._write(
                {**self._facts, "redrive": sorted({*self.letters_to_redrive, *asked}) if asked else []}
            )

    @property
    def first_batch(self) -> int:
        """What Spark's first micro-batch counts as: its checkpoint may be younger than ours."""
        return int(self._facts.get("first_batch", 0))

    @property
    def begins_after(self) -> int:
        """The inbox number after which Spark's first micro-batch begins."""
        return int(self._facts.get("begins_after", -1))

    @property
    def acker_from(self) -> int:
        """Of micro-batches before this one the acker knows nothing any more."""
        return int(self._facts.get("acker_from", 0))

    @property
    def lost_through(self) -> int:
        """Open messages up to this inbox number were forgotten, and run again; -1 for none."""
        return int(self._facts.get("lost_through", -1))

    @property
    def shape(self) -> Shape | None:
        """The shape of the topology that ran last; None where none did."""
        return Shape.from_json(self._facts["shape"]) if "shape" in self._facts else None

    def begin_run(self, topology: Topology, config: Config, partitions: int) -> Topology:
        """Start a run: pin what must not change, or see that nothing did that must not.

        Args:
            partitions: How many to have in a fresh checkpoint.

        Returns:
            The topology, with the task ids that its components have on this checkpoint.

        Raises:
            CheckpointError: The topology has changed in a way that the checkpoint cannot follow.
        """
        is_tracked, before = config.acker_executors != 0, self.shape
        if not self._facts:
            salt = secrets.randbits(64) if config.run_salt is None else config.run_salt
            self._facts = {
                **FRESH,
                "run_salt": salt,
                "partitions": config.partitions or partitions,
                "run": 0,
                "reserved": 0,
            }
        elif before is not None:
            topology = numbered(topology, before)
            self._compare(topology.name, before, Shape.of(topology, self.partitions, is_tracked=is_tracked))
        if config.partitions not in (None, self.partitions):
            log.warning(
                "topology=%s has %s partitions as this checkpoint was begun, not %s. fix: to change them, "
                "`python -m acktree rebalance %s --partitions %s`",
                topology.name, self.partitions, config.partitions, self.place, config.partitions,
            )  # fmt: skip
        now = Shape.of(topology, self.partitions, is_tracked=is_tracked, before=before)
        self._write({
            **self._facts, "ended": self.has_ended and not self.letters_to_redrive,
            "shape": now.to_json(), "run": self._facts["run"] + 1, "first_sequence": self._facts["reserved"],
        })  # fmt: skip
        return topology

    def _compare(self, name: str, before: Shape, now: Shape) -> None:
        if replace(now, tasks_given=before.tasks_given) == before:
            return
        found = changes(before, now, waiting_spouts(self.inbox, self._disk))
        refused = [change for change in found if change.refused]
        if refused:
            raise CheckpointError(
                "; ".join(f"{change.what}, but {change.refused}" for change in refused),
                f"topology {name!r} on the checkpoint {self.place}",
                "; ".join(dict.fromkeys(c.way.replace(CHECKPOINT, str(self.place)) for c in refused)),
            )
        for change in found:
            log.info("topology=%s changed since its last run: %s", name, change.what)

    def begin_generation(self, shape: Shape, partitions: int, *, has_memory: bool, is_lost: bool) -> None:
        """Leave what Spark has behind: its next micro-batch is the first of a checkpoint of its own.

        What :attr:`memory` names from now on is there already. Everything else stays as it is, numbered on.

        Args:
            shape: With the task ids from now on.
            has_memory: Whether bolts go on with what lies there.
            is_lost: Whether what was open is to be forgotten by the acker, and run again.
        """
        committed, end = self.last_committed(), self.committed_end()
        facts = self._facts | {
            "generation": self.next_generation,
            "partitions": partitions,
            "first_batch": committed + 1,
            "begins_after": end,
            "shape": replace(shape, state=None).to_json(),
            "memory": has_memory,
        }
        if is_lost:
            facts |= {"acker_from": committed + 1, "lost_through": end}
        self._write(facts)
        self.drop_earlier_generations()
        self.spark_url = self.files.make_spark_folder(self.spark)

    @property
    def next_generation(self) -> int:
        """The number of the next generation."""
        return int(self._facts.get("generation", 1)) + 1

    def drop_earlier_generations(self) -> None:
        """Delete what no run looks at any more; a tool that died may have left some."""
        kept = {self.spark, self.memory}
        for folder in (*self.folder.glob("spark*"), *self.folder.glob("memory-*")):
            if folder not in kept:
                shutil.rmtree(folder)
        shutil.rmtree(self.folder / "marks", ignore_errors=True)  # of micro-batches whose numbers come again

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
        return self._end_of(self._last_logged("offsets"))

    def committed_end(self) -> int:
        """The last inbox number that a committed micro-batch ran over; -1 for none."""
        return self._end_of(self._last_logged("commits"))

    def _end_of(self, logged: int) -> int:
        if logged >= 0:
            for line in self.files.read_log(self.spark / "offsets" / str(logged)).splitlines():
                if line.startswith('{"chunk"'):
                    return int(json.loads(line)["chunk"])
        return self.begins_after

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has committed a micro-batch."""
        return self.files.is_logged(self.spark / "commits" / str(batch_id - self.first_batch))

    def last_committed(self) -> int:
        """The last micro-batch that Spark has committed; -1 for none. The one after it will run again."""
        return self.first_batch + self._last_logged("commits")

    def _last_logged(self, log: str) -> int:
        """The last entry of one of Spark's logs, a file for each micro-batch; -1 for none."""
        return max(map(int, filter(str.isdigit, self.files.logged(self.spark / log))), default=-1)

    def close(self) -> None:
        """Let the next driver have it. A second call does nothing."""
        if self._held is not None:
            with suppress(OSError):
                if self._facts:
                    self.files.leave_spark_folder(self.spark)
                elif self._is_new:  # nothing has begun: no half-made checkpoint stays
                    self._unmake()
            self._disk.unlock(self._held)
            self._held = None
            self.files.close()

    def _read(self) -> dict[str, Any]:
        file = self.folder / "acktree.json"
        if not self._disk.exists(file):
            return {}
        try:
            facts: dict[str, Any] = dict(json.loads(self._disk.read(file)))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"{file.name} cannot be read: {error}",
                str(self.place),
                "bring it back from a copy, or give the topology a new checkpoint",
            ) from error
        check_version(facts, self.place)
        return dict(facts)

    def _write(self, facts: dict[str, Any]) -> None:
        new = self.folder / f"{UNPLACED}acktree.json"
        # Synced, and its name too: a reservation that a power cut takes back would hand out ids twice.
        self._disk.write(new, json.dumps(facts, indent=1).encode(), sync=True)
        self.files.place(new, self.folder / "acktree.json")
        self._disk.sync_folder(self.folder)
        self._facts = facts  # only what is on disk: a reservation that found no room is none for anybody


def scratch_folder(spark_folder: str | None) -> Path:
    """A new folder of the user's own, beside Spark's shuffle files.

    Args:
        spark_folder: What ``spark.local.dir`` says; None for the machine's folder of temporary files.
    """
    first = (spark_folder or "").split(",")[0] or tempfile.gettempdir()
    make_private_folder(Path(first))
    return Path(tempfile.mkdtemp(prefix="acktree-", dir=first))
