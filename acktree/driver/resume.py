"""The spout tasks of a run, what earlier runs left to them, and dead letters that are sent again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from threading import Event

from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import WHOLE_INBOX, FileInbox
from acktree.checkpoint.inbox_files import ChunkKind
from acktree.checkpoint.logs.journal import Journal
from acktree.dead_letters.conversion import redriven_letter, refuse_foreign_letters
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import DeadLetters
from acktree.driver.run import Run
from acktree.driver.spouts.spout_host import DriverHost
from acktree.driver.spouts.spout_threads import SpoutThread, Threads, now_ms
from acktree.errors import MisuseError
from acktree.logs.loggers import logger
from acktree.tasks.plan import Plan
from acktree.tasks.spouts.dataframe import DataFrameTask
from acktree.tasks.spouts.task import SpoutTask
from acktree.tasks.spouts.verdict_batch import RunAgain, timed_out, verdict_batches_of
from acktree.topology.gates import GateSpout
from acktree.topology.model import Topology

log = logger("acktree")


def add_spouts(topology: Topology, run: Run, recorder: DeadLetterRecorder) -> None:
    """Make the thread of each spout task; none is started."""
    plan, checkpoint, config = run.plan, run.checkpoint, run.plan.config
    spout_host = DriverHost(run, recorder)
    for spout in topology.spouts:
        bare = plan.topology.components[spout.id]
        for task_id in spout.task_ids:
            if spout.is_dataframe:
                user_object = spout.user_object  # Spark's, and never called
                task: SpoutTask = DataFrameTask(
                    user_object, bare, task=task_id, plan=plan, spout_host=spout_host,
                    first_sequence=checkpoint.first_sequence,
                )  # fmt: skip
            else:
                user_object = copy.deepcopy(spout.user_object)
                if isinstance(user_object, GateSpout):
                    assert run.gates is not None, "a topology with gates has their log"
                    user_object.connect(run.gates)
                task = SpoutTask(
                    user_object, bare, task=task_id, plan=plan, spout_host=spout_host,
                    first_sequence=checkpoint.first_sequence,
                )  # fmt: skip
                # Then it runs for its dead letters alone; what they lead to passes gates as before.
                task.has_ended = checkpoint.has_ended and spout.gated is None
            run.results.metrics.watch(spout.id, task_id, task.grown_metrics)
            run.results.totals.watch(spout.id, task_id, task)
            run.threads.by_task[task_id] = SpoutThread(task, config, run.change.set, run.inbox.is_running)


def send(topology: Topology, threads: Threads, ended: Event, letters: Sequence[DeadLetter]) -> None:
    """Let dead letters go back to the tasks that gave them up."""
    refuse_foreign_letters(letters, topology, is_running=not ended.is_set())
    old = Counter(letter.spout for letter in letters if topology.components[letter.spout].latest_by)
    for spout, count in old.items():
        log.warning(
            "topology=%s spout=%s letters=%d are sent again to a sink that keeps the latest row of each key: "
            "where a newer row was written since, they replace it. fix: see that the table is right",
            topology.name, spout, count,
        )  # fmt: skip
    if not threads.redrive([(letter.task_id, redriven_letter(letter)) for letter in letters]):
        refuse_foreign_letters(letters, topology, is_running=False)


@contextmanager
def ordering(
    topology: Topology, threads: Threads, ended: Event, checkpoint: Checkpoint, letters: Sequence[DeadLetter],
    now_ms: int,
) -> Iterator[None]:  # fmt: skip
    """Keep the order to send letters again in the checkpoint, before it is carried out in the block.

    The topology does not come to its end meanwhile, which would forget the order.
    """
    with threads.redriving:
        refuse_foreign_letters(letters, topology, is_running=not ended.is_set())
        ordered = checkpoint.letters_to_redrive
        new = {
            letter.id
            for letter in letters
            if letter.id is not None and (letter.id not in ordered or _is_settled(letter, ordered[letter.id]))
        }
        with checkpoint.ordering_redrive(new, now_ms) if new else nullcontext():
            yield


def redrive_ordered(checkpoint: Checkpoint, letters: DeadLetters) -> None:
    """Send the dead letters again that an operator chose while no driver ran, or one that died since.

    An order is kept until its letter has a verdict, or is gone. If this driver dies before that, or the
    letter is refused (its stream is not declared any more, for example), the next driver sends it.
    A topology that had ended keeps all of them until it ends again: while there are orders, another run has
    something to do, and a letter that was sent again by hand may still be open.

    Raises:
        ConnectorError: The store cannot be reached. All orders are kept.
    """
    ordered = checkpoint.letters_to_redrive
    if not ordered:
        return
    letters_by_id = {letter.id: letter for letter in letters.find(ids=list(ordered)) if letter.id is not None}
    waiting = [
        letter_id
        for letter_id, at_ms in ordered.items()
        if letter_id in letters_by_id and not _is_settled(letters_by_id[letter_id], at_ms)
    ]
    sent = _redrive(letters, waiting)
    log.info(
        "dead letters: of %d that were ordered to be sent again %d are sent now, %d are under way, "
        "%d are settled or gone",
        len(ordered), sent, len(waiting) - sent, len(ordered) - len(waiting),
    )  # fmt: skip
    if not checkpoint.has_ended:
        checkpoint.keep_redrive(waiting)


def _redrive(letters: DeadLetters, numbers: Sequence[int]) -> int:
    """Send all that can be sent; returns how many. By halves: one letter that is refused refuses all."""
    if not numbers:
        return 0
    try:
        return letters.redrive(numbers)
    except MisuseError as refused:
        if len(numbers) == 1:
            log.warning(
                "dead letter %d is not sent again now, but at the next start: %s", numbers[0], refused
            )
            return 0
        middle = len(numbers) // 2
        return _redrive(letters, numbers[:middle]) + _redrive(letters, numbers[middle:])


def _is_settled(letter: DeadLetter, ordered_ms: int) -> bool:
    """Whether the message of a letter had its verdict after that was ordered."""
    return letter.settled_ms is not None and letter.settled_ms >= ordered_ms


def _take_position(thread: SpoutThread, position: bytes) -> None:
    thread.position = position
    if isinstance(thread.task.spout, GateSpout):  # it is asked what waits in front of the gate before it runs
        thread.task.remember(position)


def recover(run: Run, last_committed: int, lost_through: int = -1) -> int:
    """Take up what an earlier run left: positions, and messages that no queue brings back.

    Returns:
        The last sequence of a message that is there; -1 for none.
    """
    inbox, journal, threads = run.inbox, run.journal, run.threads
    last_sequence = -1
    keeping = {task: thread for task, thread in threads.by_task.items() if not thread.task.spout.redelivers}
    for number, chunk in inbox.recovered():
        last_sequence = max(last_sequence, chunk.first_sequence + len(chunk) - 1)
        thread = keeping.get(chunk.task)
        if chunk.position and chunk.task in threads.by_task:  # the spout of a queue may be stateful too
            inbox.has_position(chunk.task, number)
            _take_position(threads.by_task[chunk.task], chunk.position)
        if thread is not None and chunk.is_tracked:
            thread.task.recovery.reopen(number, chunk)
        else:
            inbox.release(number)
    if journal is not None:
        known = {WHOLE_INBOX, *threads.by_task}
        inbox.refuse_older({task: number for task, number in journal.newest.items() if task in known})
    for number, chunk in inbox.recovered(ChunkKind.PARK):
        if chunk.task in keeping:
            keeping[chunk.task].task.recover_parked(number, chunk, now_ms())
        else:
            inbox.release(number)
    if journal is not None:
        _apply_journal(run.plan, inbox, journal, keeping)
    for thread in keeping.values():
        thread.task.dispatch(RunAgain(lost_through))  # after the journalled verdicts
    for thread in threads.by_task.values():
        thread.dispatch(None, last_committed)  # delivered by the first step
    return last_sequence


def dataframe_task(threads: Threads, task_id: int) -> DataFrameTask:
    """The task of a DataFrame's spout."""
    task = threads.by_task[task_id].task
    assert isinstance(task, DataFrameTask), "only rows of a DataFrame are parked, or have no sequence"
    return task


def _apply_journal(
    plan: Plan, inbox: FileInbox, journal: Journal, keeping: Mapping[int, SpoutThread]
) -> None:
    """Apply the verdicts that an earlier run journalled to recovered messages."""
    for kind in (ChunkKind.DATA, ChunkKind.PARK):
        for number, chunk in inbox.recovered(kind):
            if chunk.task in keeping:
                keeping[chunk.task].task.recovery.must_outlive(number, chunk)
    for were_delivered, verdicts, rows in journal.earlier():
        late = timed_out(plan.timeout_ms)
        verdict_batch = verdict_batches_of(
            verdicts, plan.run_salt, late, rows.failed, ids=rows.ids, timeout_of=plan.timeout_of
        )
        for task_id, letters in verdict_batch.items():
            if task_id in keeping:
                keeping[task_id].task.recovery.apply_journalled(
                    letters, now_ms(), were_delivered=were_delivered
                )
