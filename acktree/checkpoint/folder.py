"""The checkpoint folder: what one topology keeps across its runs.

::

    acktree.json     the numbers that must not change (salt, partitions) and the shape they belong to
    lock             held by the one driver that may run it
    synced-N         all before micro-batch N survives a power cut, with ``survive_power_cut``
    spark/           Spark's own checkpoint: offsets, commits, state
    spark-N/         the same in generation N, from 2 on; ``spark/`` is generation 1; see offline.py
    state/           what bolts remember, and state-N/ in generation N; at a URL it is in Spark's state
    memory-N/        the bolts' memory when generation N began, a file for each task
    commits/         what each micro-batch changed: what is open, verdicts, metrics, counts
    payloads/        open rows of DataFrames, where there is a retry policy
    staged/          values of tuples that wait in front of gates
    inbox/           messages of spouts, until they are committed and no longer needed
    marks/           execution marks: what each level is executing, in case it kills its worker
    verdicts/        which verdicts were delivered, where acktree brings a spout's messages back
    dead_letters.sqlite
    history.sqlite   numbers over time, for operators
    traces.sqlite    the paths of traced messages
    events/          tuples that were logged while debugging was on
    plan-*           the plan that the workers of the current run read
    control.json     the address of the driver's socket
    snapshot.json    the last numbers, for operators
    driver.log       the output of a driver that ``acktree submit`` started

Only the user may read it (0700, and 0600 for the files that acktree writes), whatever the umask.

Where the checkpoint is at a URL, this folder is the driver's working copy of it (``mirror.py``). It has no
Spark folder, marks and plan.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from acktree.checkpoint import disk_errors
from acktree.checkpoint.envelope import damaged, missing
from acktree.checkpoint.facts import CheckpointFacts
from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.holding import holder_in, make_folder, sign_lock, warn_of_other_files, warn_of_writers
from acktree.checkpoint.inbox_files import waiting_spouts
from acktree.checkpoint.layout import FRESH, VERSION
from acktree.checkpoint.logs.gate_log import waiting_gates
from acktree.checkpoint.power_cut import RollBack, Synced, note_synced
from acktree.config import Config
from acktree.errors import CheckpointError
from acktree.logs.loggers import logger
from acktree.system.private_files import make_private_folder
from acktree.texts import is_number
from acktree.topology.changes import CHECKPOINT, changes
from acktree.topology.gates import GATE
from acktree.topology.model import Topology
from acktree.topology.shape import Shape, numbered

log = logger("acktree")

BLOCK: Final = 1 << 28
"""How many sequences are reserved at once. A run starts after the last reserved sequence of the run
before."""
_PLAN: Final = re.compile(r"plan-[0-9]+-[0-9a-f]{8}")
_OF_GENERATION: Final = re.compile(r"(?:spark|state)(-[0-9]+)?|memory-[0-9]+")


class Checkpoint(CheckpointFacts):
    """One checkpoint folder, held by this process until :meth:`close`."""

    def __init__(self, folder: Path, files: Files = FOLDER) -> None:
        """Lock the folder; it is made if it is not there.

        Args:
            files: How its files are written. They are closed with it, or when it cannot be locked.

        Raises:
            CheckpointError: Another driver runs on it, or a later acktree wrote it.
        """
        super().__init__(folder, files)
        self._is_new = not self._disk.exists(folder)
        make_folder(folder, self._disk)
        warn_of_writers(folder, self._disk)
        if files.is_seen:  # a working copy is acktree's own
            warn_of_other_files(folder, self._disk)
        self._changing = Lock()  # guards the facts: each spout thread reserves sequences
        self._syncing = Lock()
        self._has_dropped = self._is_noted = False
        self._disk.make_file(folder / "lock")
        self._held: int | None = None
        try:
            self._held = self._disk.lock(folder / "lock")
        except (BlockingIOError, FileNotFoundError) as error:  # another driver may have deleted it meanwhile
            files.close()
            raise CheckpointError(
                "another driver runs on this checkpoint",
                f"{self.place}: held by {holder_in(folder / 'lock', self._disk)}",
                "stop it first, or give this topology a checkpoint of its own",
            ) from error
        try:
            sign_lock(self._held, self._disk)
            self._facts = self._read()
            self._roll_back = RollBack(folder, self.spark, self.first_batch, files)
            self._synced = self._roll_back.synced
            self.spark_url = files.make_spark_folder(self.spark)
        except BaseException:
            self.close()
            raise

    def _unmake(self) -> None:
        """Delete a folder that this object made, if nothing was written into it."""
        if self._disk.exists(self.spark):
            self._disk.remove_empty(self.spark)
        if {*self._disk.names(self.folder)} <= {"lock"}:
            self._disk.remove(self.folder / "lock")
            self._disk.remove_empty(self.folder)

    def sync(self, committed: int, *, has_begun: bool = False) -> None:
        """With ``survive_power_cut``: sync everything up to this micro-batch.

        Args:
            has_begun: Whether the next micro-batch, whose offsets Spark has logged, must run over the same
                messages after a power cut.

        Called before a verdict of a committed micro-batch is delivered, or anything is deleted because of it;
        by the supervisor or the sink, whichever comes first. After a power cut a restart resumes from the
        last micro-batch that was synced.

        Raises:
            OSError: The disk refuses; no verdict must be delivered.
        """
        if not self.files.survives_power_cut:
            return
        with self._syncing:
            synced = Synced(committed, has_begun)
            if self._synced is None or synced > self._synced:
                self.files.sync_all(self.folder)
                note_synced(self.folder, synced, self._synced, self._disk)
                self._synced = synced

    @property
    def spark(self) -> Path:
        """Spark's part in the folder. Its URL for Spark is :attr:`spark_url`."""
        return self._of_generation("spark")

    @property
    def state(self) -> Path | None:
        """Where the files are in which bolts remember; None where that is Spark's state."""
        return self._of_generation("state") if self.has_state_files else None

    @property
    def memory(self) -> Path | None:
        """The bolts' memory when Spark's checkpoint began; None if they had none."""
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
        """The folder of execution marks."""
        folder = self.folder / "marks"
        self._disk.make_folder(folder)
        return folder

    @property
    def dead_letters(self) -> Path:
        """The file of the dead letters."""
        return self.folder / "dead_letters.sqlite"

    def new_plan_file(self) -> Path:
        """The file for this run's plan; those of earlier runs are deleted."""
        for old in self.folder.glob("plan-*"):
            if _PLAN.fullmatch(old.name):
                old.unlink()
        return self.folder / f"plan-{self.run}-{secrets.token_hex(4)}"

    def new_scratch_folder(self, spark_folder: str | None) -> Path:
        """A folder for this run's large rows, outside the checkpoint; that of an earlier run is deleted."""
        self.drop_scratch_folder()
        folder = scratch_folder(spark_folder)
        self._write({**self._facts, "scratch": str(folder)})
        return folder

    def drop_scratch_folder(self) -> None:
        """Delete the folder of large rows."""
        for folder in self.folders[1:]:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def folders(self) -> list[Path]:
        """The folders that a run writes to: this one and, if there is one, that of its large rows."""
        scratch = self._facts.get("scratch")
        return [self.folder] if scratch is None else [self.folder, Path(scratch)]

    def order_redrive(self, ids: Iterable[int], now_ms: int) -> None:
        """Order dead letters to be sent again by the next run. Durable when this returns.

        Raises:
            CheckpointError: No topology was run on this checkpoint.
        """
        if not self._facts:
            raise CheckpointError(
                "no topology was run on this checkpoint", str(self.place), "name the one that gave them up"
            )
        self._change_redrive(lambda ordered: ordered | dict.fromkeys(ids, now_ms))

    def keep_redrive(self, ids: Iterable[int]) -> None:
        """Keep these orders and drop the others: their letters have verdicts, or are gone."""
        kept = {*ids}
        self._change_redrive(
            lambda ordered: {letter_id: at for letter_id, at in ordered.items() if letter_id in kept}
        )

    @contextmanager
    def ordering_redrive(self, ids: Collection[int], now_ms: int) -> Iterator[None]:
        """Order dead letters as :meth:`order_redrive`, unless the block raises."""
        before = self.letters_to_redrive
        self.order_redrive(ids, now_ms)
        try:
            yield
        except BaseException:
            earlier = {letter_id: before[letter_id] for letter_id in ids if letter_id in before}
            with suppress(CheckpointError, OSError):  # then the next run sends them
                self._change_redrive(
                    lambda ordered: {e: at for e, at in ordered.items() if e not in ids} | earlier
                )
            raise

    def drop_settled(self, ids: Iterable[int]) -> None:
        """Forget the orders of letters that have their verdict; the file follows with the next write."""
        settled = {*map(str, ids)}
        with self._changing:
            ordered = self._facts.get("redrive", {})
            kept = {letter_id: at for letter_id, at in ordered.items() if letter_id not in settled}
            self._facts = self._facts | {"redrive": kept}
            self._has_dropped = self._has_dropped or len(kept) < len(ordered)

    def write_dropped(self) -> None:
        """Write what :meth:`drop_settled` forgot; a run that stops in order calls it."""
        if self._has_dropped:
            with suppress(OSError):  # the next run drops them too
                self._change_redrive(lambda ordered: ordered)

    def _change_redrive(self, change: Callable[[dict[int, int]], Mapping[int, int]]) -> None:
        """Replace the orders. CheckpointError once this driver has released the checkpoint."""
        with self._changing:
            self._refuse_released("order it for the next run: acktree dead-letters redrive CHECKPOINT ID ...")
            ordered = sorted(change(self.letters_to_redrive).items())
            self._write({**self._facts, "redrive": {str(letter_id): at for letter_id, at in ordered}})

    def _refuse_released(self, fix: str) -> None:
        if self._held is None:
            raise CheckpointError(
                "the topology has stopped, and another driver may have its checkpoint", str(self.place), fix
            )

    def begin_run(self, topology: Topology, config: Config, partitions: int) -> Topology:
        """Start a run: store what must not change, or check that it has not changed.

        The facts of another run than the first are written by :meth:`note_run`, once all else was read.

        Args:
            partitions: The number of partitions of a new checkpoint.

        Returns:
            The topology, with the task ids that its components have on this checkpoint.

        Raises:
            CheckpointError: The topology has changed in a way that the checkpoint cannot follow.
        """
        is_tracked, before, is_first = config.acker_executors != 0, self.shape, not self._facts
        if self.state_from is not None and not self.files.is_seen:
            raise CheckpointError(
                "what bolts remember is in files of a folder, and workers see no files at a URL",
                str(self.place),
                "run it in a folder that all executors see, or give the topology a new checkpoint",
            )
        if is_first:
            salt = secrets.randbits(64) if config.run_salt is None else config.run_salt
            self._facts = {
                **FRESH,
                "has_state_files": self.files.is_seen,
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
        state_from = self.state_from
        if state_from is None and self.has_state_files and now.state:
            state_from = self.last_committed() + 1
        self._facts = {
            **self._facts,
            "state_from": state_from,
            "shape": now.to_json(), "run": self._facts["run"] + 1, "first_sequence": self._facts["reserved"],
        }  # fmt: skip
        if is_first:  # nothing is there that could contradict them
            self._write(self._facts)
        return topology

    def note_run(self, sweep: Callable[[], None] = lambda: None) -> None:
        """Delete what does not count, and write the facts of this run. All else was read, and fits.

        The run writes nothing before, apart from the facts of a new checkpoint.

        Args:
            sweep: Deletes what does not count of the commit log.
        """
        sweep()
        self._take_back()
        if self._synced is None:
            self.sync(self.last_committed())
        self._write(self._facts)
        self._is_noted = True

    def _take_back(self) -> None:
        """Delete what was logged after the last sync, and the note where this run survives no power cut."""
        self._roll_back.carry_out(survives=self.files.survives_power_cut)
        if not self.files.survives_power_cut:
            self._synced = None

    def _compare(self, name: str, before: Shape, now: Shape) -> None:
        if self.has_state_files:  # they are found by task: the levels of bolts do not matter
            before, now = replace(before, state=None), replace(now, state=None)
        if replace(now, tasks_given=before.tasks_given) == before:
            return
        waiting = waiting_spouts(self.inbox, self._disk)
        if any(name.startswith(GATE) for name in before.parts):
            waiting |= waiting_gates(self.folder, self.last_committed(), self.files)
        differences = changes(before, now, waiting)
        refused = [change for change in differences if change.refused]
        if refused:
            raise CheckpointError(
                "; ".join(f"{change.what}, but {change.refused}" for change in refused),
                f"topology {name!r} on the checkpoint {self.place}",
                "; ".join(dict.fromkeys(c.way.replace(CHECKPOINT, str(self.place)) for c in refused)),
            )
        for change in differences:
            log.info("topology=%s changed since its last run: %s", name, change.what)

    def begin_generation(self, shape: Shape, partitions: int, *, has_memory: bool, is_lost: bool) -> None:
        """Abandon Spark's checkpoint: the next micro-batch is the first of a new one.

        The folder that :attr:`memory` names after this call must exist already. Everything else stays as it
        is, and its numbers continue.

        Args:
            shape: The shape of the topology, with its task ids from now on.
            has_memory: Whether bolts resume from that folder.
            is_lost: Whether the acker forgets open messages, and they run again.
        """
        self._take_back()
        committed, end = self.last_committed(), self.committed_end()
        facts = self._facts | {
            "version": VERSION,
            "generation": self.next_generation,
            "has_state_files": self.files.is_seen,
            "state_from": None,
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

    def drop_earlier_generations(self) -> None:
        """Delete folders that no run reads any more; a tool that died may have left some."""
        kept = {self.spark, self.state, self.memory}
        for folder in self.folder.glob("*"):
            if _OF_GENERATION.fullmatch(folder.name) and folder not in kept:
                shutil.rmtree(folder)
        shutil.rmtree(self.folder / "marks", ignore_errors=True)  # micro-batches get these numbers again

    def reserve(self, first: int) -> int:
        """Reserve the sequences from ``first`` to the end of a block; returns that end.

        Durable when this returns, or with :meth:`note_run`, before which no message gets one.
        """
        end = first + BLOCK
        with self._changing:
            self._refuse_released("nothing of this run is emitted any more")
            if end > self._facts["reserved"] and not self._is_noted:
                self._facts = {**self._facts, "reserved": end}
            elif end > self._facts["reserved"]:
                with disk_errors.explaining(self.folder):
                    self._write({**self._facts, "reserved": end})
        return end

    def mark_ended(self) -> None:
        """Note that the topology has ended."""
        with self._changing:
            self._write({**self._facts, "ended": True, "redrive": {}})

    def admitted(self) -> int:
        """The last inbox number that a logged micro-batch runs over; -1 for none."""
        return self._end_of(self._last_logged("offsets"))

    def committed_end(self) -> int:
        """The last inbox number that a committed micro-batch ran over; -1 for none."""
        return self._end_of(self._last_logged("commits"))

    def _end_of(self, logged: int) -> int:
        if logged < 0:
            return self.begins_after
        file = self.spark / "offsets" / str(logged)
        try:
            lines = self.files.read_log(file).splitlines()
            return int(next(json.loads(line)["chunk"] for line in lines if line.startswith('{"chunk"')))
        except FileNotFoundError as error:
            raise missing(file) from error
        except (StopIteration, TypeError, ValueError) as error:
            raise damaged("is damaged: Spark's log says no offset of the inbox", file) from error

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has committed a micro-batch."""
        return self.files.is_logged(self.spark / "commits" / str(batch_id - self.first_batch))

    def last_committed(self) -> int:
        """The last micro-batch that Spark has committed; -1 for none. The one after it will run again."""
        return self.first_batch + self._last_logged("commits")

    @property
    def is_in_doubt(self) -> bool:
        """Whether Spark has begun a micro-batch that is not committed: it will run again."""
        return self._last_logged("offsets") > self._last_logged("commits")

    def _last_logged(self, log: str) -> int:
        """The last entry of one of Spark's logs that counts, a file for each micro-batch; -1 for none."""
        numbers = (int(name) for name in self.files.logged(self.spark / log) if is_number(name))
        return max((number for number in numbers if self._roll_back.counts(log, number)), default=-1)

    def close(self) -> None:
        """Release it for the next driver. A second call does nothing."""
        if self._held is not None:
            with suppress(OSError):
                if self._facts:
                    self.files.leave_spark_folder(self.spark)
                elif self._is_new:  # no run has begun: no incomplete checkpoint stays
                    self._unmake()
            with self._changing:
                self._disk.unlock(self._held)
                self._held = None
            self.files.close()


def scratch_folder(spark_folder: str | None) -> Path:
    """A new private folder, beside Spark's shuffle files.

    Args:
        spark_folder: The value of ``spark.local.dir``. None: the machine's folder of temporary files.
    """
    first = (spark_folder or "").split(",")[0] or tempfile.gettempdir()
    make_private_folder(Path(first))
    return Path(tempfile.mkdtemp(prefix="acktree-", dir=first))
