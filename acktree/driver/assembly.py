"""Puts the parts of a run together, as they were after the last commit; without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind
from acktree.checkpoint.logs.acker_log import DurableAcker
from acktree.checkpoint.logs.commit_log import CommitLog, Participant
from acktree.checkpoint.logs.gate_log import gate_log_of
from acktree.checkpoint.logs.journal import Journal
from acktree.checkpoint.logs.key_log import KeyLog
from acktree.checkpoint.logs.memory_log import MemoryLog
from acktree.config import Config
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.driver.batch import BatchResults
from acktree.driver.logs.error_log import ErrorLog
from acktree.driver.logs.run_log import RunLog
from acktree.driver.metrics.consumers import Consumers
from acktree.driver.metrics.total_counts import TotalCounts
from acktree.driver.resume import add_spouts, dataframe_task, ordering, recover, redrive_ordered, send
from acktree.driver.run import Run
from acktree.driver.run_ends import tell_ended
from acktree.driver.spouts.spout_threads import Threads, now_ms
from acktree.tasks.broadcast import OperatorOrder
from acktree.tasks.plan import Plan
from acktree.topology.model import Topology
from acktree.traces.events import FOLDER, EventFiles, EventLog, EventLogger
from acktree.traces.of_run import recorder_of_run


def assembled_run(
    topology: Topology,
    checkpoint: Checkpoint,
    config: Config,
    *,
    log: RunLog,
    version: str,
    max_chunk_bytes: int | None,
    event_logger: EventLogger | None,
    stop_session: Callable[[], None],
    close_door: Callable[[BaseException | None], None],
    leave_door: Callable[[], None],
) -> tuple[Run, CommitLog]:
    """A run with all that earlier runs left to it: no thread is started, and no query.

    Args:
        topology: As ``begin_run`` of the checkpoint returned it.
        checkpoint: The checkpoint.
        config: The settings.
        log: What the run says of itself.
        version: acktree's own.
        max_chunk_bytes: The most that a chunk may have where executors do not see the checkpoint.
        event_logger: The user's; None for files in the checkpoint.
        stop_session: As ``Run`` has it.
        close_door: Likewise.
        leave_door: Likewise.

    Raises:
        CheckpointError: The checkpoint is damaged.
        ConnectorError: The store of dead letters cannot be reached.
    """
    plan = Plan.of(
        topology,
        config.without_secrets(),
        checkpoint.partitions,
        checkpoint.run_salt,
        checkpoint.first_sequence,
    )
    inbox = _inbox(checkpoint, config, max_chunk_bytes)
    errors, threads, change, ended = ErrorLog(config, log.errors), Threads(), Event(), Event()
    options: dict[str, Any] = {"is_open": threads.has_open_letter}
    if plan.is_tracking:  # else no verdict would ever end the order
        options["ordering"] = partial(ordering, topology, threads, ended, checkpoint)
    letters = _letters(checkpoint, config, topology, partial(send, topology, threads, ended), **options)
    replays = any(not spout.user_object.redelivers for spout in topology.spouts)
    journal = journal_of(checkpoint, inbox, threads) if replays else None
    acker = (
        DurableAcker(plan, checkpoint.folder, checkpoint.acker_from, checkpoint.files)
        if plan.is_tracking
        else None
    )
    keys = KeyLog(plan, lambda: time.monotonic_ns() // 1_000_000)
    gates = (
        None
        if acker is None
        else gate_log_of(
            plan, acker.still_open, keys, threads.ids_at, checkpoint=checkpoint.folder, files=checkpoint.files
        )
    )
    recorder = DeadLetterRecorder(
        letters, topology, config, change.set, None if gates is None else gates.origins_of
    )
    traces = recorder_of_run(_own_folder(checkpoint), plan, config, now_ms, version)
    events = EventLog(event_logger or _event_files(checkpoint), topology.name)
    totals = TotalCounts(topology.name)
    run = Run(
        plan=plan,
        checkpoint=checkpoint,
        inbox=inbox,
        results=BatchResults(plan, acker, errors, journal, traces=traces, events=events, totals=totals),
        threads=threads,
        dead_letters=letters,
        errors=errors,
        change=change,
        ended=ended,
        stop_session=stop_session,
        log=log,
        keys=keys,
        journal=journal,
        recorder=recorder,
        close_door=close_door,
        leave_door=leave_door,
        tell_ended=partial(tell_ended, topology, plan.run_id),
        described=topology.describe(checkpoint.partitions),
        consumers=Consumers(config, topology.name, errors),
        events=events,
        traces=traces,
        gates=gates,
    )
    commits = recovered_log(checkpoint, run, acker)
    add_spouts(topology, run, recorder)
    _recover(run, acker, commits)
    redrive_ordered(checkpoint, letters)  # before the query: where the store is away, nothing is started
    return run, commits


def ended_run(
    topology: Topology,
    checkpoint: Checkpoint,
    config: Config,
    *,
    version: str,
    stop_session: Callable[[], None],
) -> Run:
    """A run of a topology that ended in an earlier one: its dead letters, traces and numbers."""
    plan = Plan.of(topology, config.without_secrets(), checkpoint.partitions, checkpoint.run_salt)
    errors = ErrorLog(config)
    return Run(
        plan=plan,
        checkpoint=checkpoint,
        inbox=_inbox(checkpoint, config, None),
        results=BatchResults(plan, None, errors),
        threads=Threads(),
        dead_letters=_letters(checkpoint, config, topology, None),
        errors=errors,
        change=Event(),
        ended=Event(),
        stop_session=stop_session,
        described=topology.describe(checkpoint.partitions),
        log=RunLog(topology.name),
        keys=KeyLog(plan),
        traces=recorder_of_run(_own_folder(checkpoint), plan, Config(), now_ms, version),
    )


def _recover(run: Run, acker: DurableAcker | None, commits: CommitLog) -> None:
    """Let spout tasks take up what earlier runs left, and tell the source that a run begins."""
    checkpoint, plan = run.checkpoint, run.plan
    last_sequence = recover(run, checkpoint.last_committed(), checkpoint.lost_through)
    checkpoint.refuse_used_sequences(last_sequence)
    if acker is not None:
        for task_id, message_ids in acker.open_row_ids():
            dataframe_task(run.threads, task_id).note_open(message_ids)
        acker.forget_before(plan.first_sequences)
    checkpoint.note_run(commits.sweep)
    run.log.begins(checkpoint.run, run.account().open_count, checkpoint.place)
    run.inbox.append_control(ChunkKind.RUN, run_orders(checkpoint.run, plan))
    if run.inbox.has_watch:  # what operators wanted to see of the last run
        run.inbox.append_watch(OperatorOrder(plan.trace_rate).to_bytes(), len(plan.levels))


def run_orders(number: int, plan: Plan) -> dict[str, object]:
    """What the inbox's entry of a run tells the source."""
    firsts, sinks = dict(plan.first_sequences), [part.id for part in plan.topology.bolts if part.is_sink]
    levels = sorted({plan.level_of[sink] for sink in sinks})
    return {"run": number, "first_sequences": firsts, "sink_levels": levels}


def journal_of(checkpoint: Checkpoint, inbox: FileInbox, threads: Threads) -> Journal:
    """The verdicts of messages that only the inbox has."""
    return Journal(
        checkpoint.verdicts, threads.delivered_through, lambda: inbox.oldest_kept, checkpoint.files,
        lambda: inbox.newest,
    )  # fmt: skip


def recovered_log(checkpoint: Checkpoint, run: Run, acker: DurableAcker | None) -> CommitLog:
    """The commit log, whose participants have their state as of the last commit."""
    # The acker judges before anything is written; what it decided is in the outcome.
    candidates: list[Participant | None] = [
        acker, run.keys, run.gates, run.journal, _memory_log_of(checkpoint), run.results.metrics,
        run.results.totals,
    ]  # fmt: skip
    participants = [candidate for candidate in candidates if candidate is not None]
    checkpoint.refuse_later_run(run.inbox.last_run)
    commits = CommitLog(checkpoint.folder, participants, checkpoint.files, lambda: checkpoint.written)
    commits.recover(checkpoint.last_committed(), checkpoint.refuse_older)
    if run.journal is not None:
        run.inbox.drop_before(run.journal.first_entry)
    return commits


def _memory_log_of(checkpoint: Checkpoint) -> MemoryLog | None:
    """What bolts remember, where that is in files; None if none has ever remembered."""
    if checkpoint.state is None or checkpoint.state_from is None:
        return None
    return MemoryLog(checkpoint.state, checkpoint.state_from, checkpoint.files)


def _inbox(checkpoint: Checkpoint, config: Config, max_chunk_bytes: int | None) -> FileInbox:
    most = config.inbox_max_messages, config.inbox_max_bytes
    return FileInbox(checkpoint.inbox, checkpoint.admitted(), *most, checkpoint.files, max_chunk_bytes)


def _letters(
    checkpoint: Checkpoint,
    config: Config,
    topology: Topology,
    send: Callable[[Sequence[DeadLetter]], None] | None,
    **options: Any,  # noqa: ANN401  # as DeadLetters takes it
) -> DeadLetters:
    """The checkpoint's own file, or the place that the user names; others may store theirs there too."""
    if config.dead_letters_url is None:
        place = checkpoint.dead_letters if checkpoint.files.is_seen else IN_MEMORY
        return DeadLetters(place, send, create=True, **options)
    return DeadLetters(config.dead_letters_url, send, topology=topology.name, create=True, **options)


def _event_files(checkpoint: Checkpoint) -> EventLogger | None:
    """The default event logger: files in the checkpoint if that is a folder."""
    return EventFiles(checkpoint.folder / FOLDER) if checkpoint.files.is_seen else None


def _own_folder(checkpoint: Checkpoint) -> Path | None:
    """Where traced messages are recorded: in the checkpoint if that is a folder; None for in memory."""
    return checkpoint.folder if checkpoint.files.is_seen else None
