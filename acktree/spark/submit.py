"""Start a topology as one streaming query."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from sys import maxsize
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from acktree import log_levels
from acktree.checkpoint import full_disk
from acktree.checkpoint.acker_log import DurableAcker
from acktree.checkpoint.commit_log import CommitLog
from acktree.checkpoint.files import Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.gate_log import gate_log_of
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.inbox_files import ChunkKind
from acktree.checkpoint.key_log import KeyLog
from acktree.checkpoint.location import location_of, refuse_letters_beside
from acktree.checkpoint.mirror import Mirror
from acktree.config import Config
from acktree.dead_letters.letter import DeadLetter
from acktree.dead_letters.recorder import DeadLetterRecorder
from acktree.dead_letters.store import IN_MEMORY, DeadLetters
from acktree.driver.assembly import journal_of, recovered_log
from acktree.driver.batch import BatchResults
from acktree.driver.consumers import Consumers, Source
from acktree.driver.error_log import ErrorLog
from acktree.driver.handle import SubmittedTopology
from acktree.driver.importing import refuse_submit_by_import
from acktree.driver.query import ENDED_QUERY
from acktree.driver.run import Run, no_door
from acktree.driver.run_log import RunLog
from acktree.driver.shutdown import start_interruptibly
from acktree.driver.signals import signals_wait
from acktree.driver.spout_threads import Threads, now_ms
from acktree.driver.supervisor import Supervisor
from acktree.driver.total_counts import TotalCounts
from acktree.errors import ConfigError, naming_keywords
from acktree.logs import logger, print_by_default
from acktree.spark.hadoop import HadoopFolder, refuse_unseen
from acktree.spark.query.handle import SparkQuery
from acktree.spark.query.ladder import ladder
from acktree.spark.query.operators import Places
from acktree.spark.query.phases import Phases
from acktree.spark.query.sink import Sink
from acktree.spark.realtime.drive import Drive
from acktree.spark.realtime.query import ResidentQuery
from acktree.spark.realtime.session import (
    partitions_of,
    refuse_too_few_slots,
    refuse_unfit,
    start_realtime_session,
)
from acktree.spark.resume import add_spouts, dataframe_task, ordering, recover, redrive_ordered, send
from acktree.spark.session.class_archive import note_micro_batch
from acktree.spark.session.settings import (
    lend_session,
    lent_settings,
    most_carried,
    no_retries_hint,
    other_python_hint,
    prepare_session,
)
from acktree.spark.session.shipping import ship_code
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.broadcast import OperatorOrder
from acktree.tasks.component_checks import refuse_unusable
from acktree.tasks.plan import Plan
from acktree.tasks.waits import forget_waits
from acktree.topology.model import Topology, refuse_other_than_topology
from acktree.traces.events import FOLDER, EventFiles, EventLog, EventLogger
from acktree.traces.of_run import recorder_of_run, refuse_missing_exporter
from acktree.traces.recorder import TraceRecorder
from acktree.ui.door import Door
from acktree.ui.observer import own_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger("acktree")


@naming_keywords
def submit(
    topology: Topology,
    *,
    checkpoint: str | Path,
    spark: SparkSession | None = None,
    config: Config | None = None,
    event_logger: EventLogger | None = None,
) -> SubmittedTopology:
    """Run a topology on Spark.

    Args:
        topology: What ``create_topology()`` returned.
        checkpoint: A folder of the topology's own, made if it is not there; on a cluster one that driver and
            executors share. Or a URL of a file system that Hadoop knows, such as ``hdfs://names/orders``. The
            same one resumes: memory, open messages and position are as committed.
        spark: The session to run in. Without one a local session with our settings is made, and stopped with
            the topology.
        config: The settings; each has a default.
        event_logger: Where tuples go while ``running.debug`` is on; None for files in the checkpoint.

    Returns:
        The handle. The spouts open once the first micro-batch has warmed the query up.

    Raises:
        StoppedBySignal: Ctrl-C or SIGTERM came meanwhile: what was started is stopped again.
        CheckpointError: Another driver runs on the checkpoint, its disk is full, its URL cannot be reached,
            or the topology changed in a way that it cannot follow: see ``docs/running.md``.
        TopologyError: ``topology`` is none: a builder, for example.
        MisuseError: The module that calls this is imported, by ``acktree run`` or by a Python worker.
        ConfigError: ``checkpoint`` is a URL of no file system that Hadoop knows, or dead letters would have
            no place beside it; ``dead_letters_url`` cannot be read, or what it or ``otlp_endpoint`` needs is
            not installed.
        ConnectorError: The store of dead letters cannot be opened, or the ``check`` of a spout or bolt says
            that it cannot work. What is only away for now is logged.
    """
    refuse_other_than_topology(topology, "submit")
    refuse_submit_by_import(topology.name, is_worker=TaskContext.get() is not None)
    print_by_default((config or Config()).log_format)
    config = config or Config()
    refuse_missing_exporter(config, "submit")
    refuse_unusable(topology, config)
    where = location_of(checkpoint)
    if config.real_time:
        refuse_unfit(topology, is_folder=not isinstance(where, str))

    def start() -> SubmittedTopology:
        if isinstance(where, str):
            return _submit_at(where, topology, spark, config, event_logger)
        return _submit_in(where, topology, spark, config, event_logger)

    return start_interruptibly(start, topology.name, where)


def _submit_in(
    folder: Path,
    topology: Topology,
    spark: SparkSession | None,
    config: Config,
    event_logger: EventLogger | None,
) -> SubmittedTopology:
    """Run on a checkpoint that is a folder."""
    began = time.monotonic()
    with full_disk.explaining(folder, Path(tempfile.gettempdir())), ExitStack() as given_up:
        held = Checkpoint(folder, Files(survives_power_cut=config.survive_power_cut))
        given_up.callback(held.close)
        if held.is_over:
            running = _ended(topology, held, config, _nothing)
        else:
            session, give_back = _session_in(topology, held, spark, config)
            given_up.callback(give_back)
            running = _start(session, give_back, topology, held, config, began, event_logger)
        given_up.pop_all()
        return running


def _session_in(
    topology: Topology, held: Checkpoint, spark: SparkSession | None, config: Config
) -> tuple[SparkSession, Callable[[], None]]:
    """The session of a run on a folder; in real time one in which all tasks of the topology run at once."""
    if not config.real_time:
        return _session(topology, spark)
    partitions = partitions_of(topology, config) if held.shape is None else held.partitions
    levels = len(topology.levels(partitions))
    start = partial(start_realtime_session, slots=levels * partitions)
    session, give_back = _session(topology, spark, starting=start)
    try:
        refuse_too_few_slots(session, levels, partitions)
    except ConfigError:
        give_back()
        raise
    return session, give_back


def _submit_at(
    url: str,
    topology: Topology,
    spark: SparkSession | None,
    config: Config,
    event_logger: EventLogger | None,
) -> SubmittedTopology:
    """Run on a checkpoint at a URL, which can only be read with a session."""
    began = time.monotonic()
    refuse_letters_beside(url, topology, config)
    with full_disk.explaining(Path(tempfile.gettempdir())), ExitStack() as given_up:
        session, give_back = _session(topology, spark, is_folder=False)
        given_up.callback(give_back)
        parent = session.conf.get("spark.local.dir", None)
        files = Mirror.open(HadoopFolder.of_session(session, url), (parent or "").split(",")[0] or None)
        held = Checkpoint(files.folder, files)
        given_up.callback(held.close)
        if held.is_over:
            running = _ended(topology, held, config, give_back)
        else:
            running = _start(session, give_back, topology, held, config, began, event_logger)
        given_up.pop_all()
        return running


def _session(
    topology: Topology,
    spark: SparkSession | None,
    *,
    is_folder: bool = True,
    starting: Callable[[str], SparkSession] | None = None,
) -> tuple[SparkSession, Callable[[], None]]:
    """The session to run in, prepared, and how to give it back."""
    give_back = _nothing
    if not is_folder and any(bolt.remembers for bolt in topology.bolts):
        # Spark's stateful levels need pandas: import it meanwhile.
        Thread(target=import_module, args=("pandas",), name="acktree imports", daemon=True).start()
    try:
        if spark is None:
            log.info("topology=%s is starting Spark", topology.name)
        with signals_wait():  # a JVM that is left half started stays
            session, give_back = (spark, _nothing) if spark else lend_session(topology.name, starting)
        prepare_session(session, is_folder=is_folder)
        retries = None if starting else no_retries_hint(session)
        for hint in filter(None, (retries, other_python_hint(session))):
            log.warning("topology=%s %s", topology.name, hint)
    except BaseException:
        give_back()
        raise
    return session, give_back


def _ended(
    topology: Topology, held: Checkpoint, config: Config, give_back: Callable[[], None]
) -> SubmittedTopology:
    """What is over needs no Spark: a handle to look at its dead letters."""
    topology = held.begin_run(topology, config, held.partitions)
    plan = Plan.of(topology, config.without_secrets(), held.partitions, held.run_salt)
    errors = ErrorLog(config)
    run = Run(
        plan=plan,
        checkpoint=held,
        inbox=_inbox(held, config, None),
        results=BatchResults(plan, None, errors),
        threads=Threads(),
        dead_letters=_letters(held, config, topology, None),
        errors=errors,
        change=Event(),
        ended=Event(),
        stop_session=give_back,
        described=topology.describe(held.partitions),
        log=RunLog(topology.name),
        keys=KeyLog(plan),
        traces=_traces(held, plan, Config()),
    )
    log.warning(
        "topology=%s ended in an earlier run on this checkpoint, and stays ended: %s",
        topology.name,
        held.place,
    )
    supervisor = Supervisor(run, ENDED_QUERY)
    supervisor.close()
    return SubmittedTopology(run, supervisor)


def _nothing() -> None:
    """A session that the user brought is the user's to stop."""


def _start(
    session: SparkSession,
    give_back: Callable[[], None],
    topology: Topology,
    held: Checkpoint,
    config: Config,
    began: float,
    event_logger: EventLogger | None,
) -> SubmittedTopology:
    ship_code(session)
    if held.files.is_seen:
        refuse_unseen(session, held.spark)
    wanted = max((bolt.parallelism for bolt in topology.bolts), default=1)
    partitions = min(wanted, session.sparkContext.defaultParallelism)
    topology = held.begin_run(
        topology, config, partitions_of(topology, config) if config.real_time else partitions
    )
    secretless = config.without_secrets()
    plan = Plan.of(topology, secretless, held.partitions, held.run_salt, held.first_sequence)
    inbox = _inbox(held, config, None if held.files.is_seen else most_carried(session))
    run_log = RunLog(topology.name, began)
    errors, threads, change, ended = ErrorLog(config, run_log.errors), Threads(), Event(), Event()
    given: dict[str, Any] = {"is_open": threads.has_open_letter}
    if plan.is_tracking:  # else no verdict would ever end the order
        given["ordering"] = partial(ordering, topology, threads, ended, held)
    letters = _letters(held, config, topology, partial(send, topology, threads, ended), **given)
    replays = any(not spout.user_object.redelivers for spout in topology.spouts)
    journal = journal_of(held, inbox, threads) if replays else None
    acker = DurableAcker(plan, held.folder, held.acker_from, held.files) if plan.is_tracking else None
    keys = KeyLog(plan)
    gates = None if acker is None else gate_log_of(plan, acker.still_open, keys, threads.ids_at)
    recorder = DeadLetterRecorder(
        letters, topology, config, change.set, None if gates is None else gates.origins_of
    )
    door = _door(held) if config.control else None
    traces = _traces(held, plan, config)
    events = EventLog(event_logger or _event_files(held), topology.name)
    run = Run(
        plan=plan,
        checkpoint=held,
        inbox=inbox,
        results=BatchResults(plan, acker, errors, journal, traces, events, TotalCounts(topology.name)),
        threads=threads,
        dead_letters=letters,
        errors=errors,
        change=change,
        ended=ended,
        stop_session=give_back,
        log=run_log,
        keys=keys,
        journal=journal,
        recorder=recorder,
        close_door=no_door if door is None else door.close,
        leave_door=no_door if door is None else door.leave,
        described=topology.describe(held.partitions),
        consumers=Consumers(config, topology.name, errors),
        events=events,
        traces=traces,
        gates=gates,
    )
    commits = recovered_log(held, run, acker)
    add_spouts(topology, run, recorder)
    last_sequence = recover(plan, inbox, journal, threads, held.last_committed(), held.lost_through)
    held.refuse_used_sequences(last_sequence)
    if acker is not None:
        for task_id, message_ids in acker.open_row_ids():
            dataframe_task(threads, task_id).note_open(message_ids)
        acker.forget_before(plan.first_sequences)
    run_log.begins(held.run, run.account().open_count, held.place)
    inbox.append_control(ChunkKind.RUN, {"run": held.run, "first_sequences": dict(plan.first_sequences)})
    if inbox.has_watch:  # what operators wanted to see of the last run
        inbox.append_watch(OperatorOrder(plan.trace_rate).to_bytes(), len(plan.levels))
    redrive_ordered(held, letters)  # before the query: where the store is away, nothing is started
    query = _query(session, topology, run, commits)
    supervisor = Supervisor(run, query, commits.close)
    running = SubmittedTopology(run, supervisor)
    if door is not None:
        door.open(running, run, lambda: run.results.times.with_parts(*query.last_phases()))
    if run.consumers is not None:
        at_once = {each.id: each.at_once for each in run.plan.topology.components.values()}
        run.consumers.begin(Source(run.counters, lambda: run.results.metrics.metrics(now_ms()), at_once))
    supervisor.begin()
    return running


def _door(held: Checkpoint) -> Door:
    """The run's door for operators, not open yet."""
    return Door(held.files.disk if held.files.is_seen else None, own_version())


def _query(session: SparkSession, topology: Topology, run: Run, commits: CommitLog) -> SparkQuery | Drive:
    plan, held = run.plan, run.checkpoint
    first = held.first_batch
    folder = _scratch_folder(session, held)
    scratch = None if folder is None else str(folder)
    if held.files.is_seen:
        shared = SharedPlan.write(plan, held.new_plan_file())
        forget_waits(held.marks)
        memory = None if held.memory is None else str(held.memory)
        levels = str(held.folder / log_levels.FILE) if plan.config.control else None
        places = Places(
            str(held.inbox), str(held.marks), scratch, memory, log_levels=levels, first_batch=first,
            state=None if held.state is None else str(held.state), state_from=held.state_from or 0,
            # The micro-batch after the last committed one may have begun; in real time several may have.
            new_from=maxsize if plan.config.real_time else held.last_committed() + 2 - first,
        )  # fmt: skip
    else:
        shared = SharedPlan.send(plan, held.new_plan_file().name, session.sparkContext)
        marks = f"acktree-marks-{secrets.token_hex(8)}"
        places = Places(str(held.inbox), marks, scratch, is_seen=False, first_batch=first)

    def on_batch() -> None:
        held.files.check()
        run.threads.wake()  # what ran waits no more: there is room
        run.change.set()
        note_micro_batch()

    used = [*([held.marks] if held.files.is_seen else []), *([] if folder is None else [folder])]
    sink = Sink(
        run.results,
        run.inbox,
        commits,
        scratch,
        used,
        run.threads.hold,
        on_batch,
        held.sync,
        (phases := Phases()).of_batch,
        held.first_batch,
        plan.has_payloads,
    )
    if plan.config.real_time:
        resident = ResidentQuery(session, plan, shared, places, held.last_committed())
        drive = Drive(resident, held, plan.partitions, sink.take, run.change.set)
        drive.begin()
        return drive
    frames = {spout.id: spout.user_object for spout in topology.spouts if spout.is_dataframe}
    with lent_settings(session, plan.partitions):
        query = (
            ladder(session, plan, shared, places, frames, held.begins_after)
            .writeStream.queryName(plan.topology.name)
            .foreachBatch(sink)
            .option("checkpointLocation", held.spark_url)
            .trigger(processingTime="0 seconds")
            .start()
        )
    phases.begin(query)
    return SparkQuery(query, held)


def _scratch_folder(session: SparkSession, held: Checkpoint) -> Path | None:
    """Where large rows go; None where driver and workers do not share a machine."""
    if not (session.sparkContext.master or "").startswith("local"):
        return None
    return held.new_scratch_folder(session.conf.get("spark.local.dir", None))


def _inbox(held: Checkpoint, config: Config, max_chunk_bytes: int | None) -> FileInbox:
    most = config.inbox_max_messages, config.inbox_max_bytes
    return FileInbox(held.inbox, held.admitted(), *most, held.files, max_chunk_bytes)


def _letters(
    held: Checkpoint,
    config: Config,
    topology: Topology,
    send: Callable[[Sequence[DeadLetter]], None] | None,
    **given: Any,  # noqa: ANN401  # as DeadLetters takes it
) -> DeadLetters:
    """The checkpoint's own file, or the place that the user names; others may store theirs there too."""
    if config.dead_letters_url is None:
        place = held.dead_letters if held.files.is_seen else IN_MEMORY
        return DeadLetters(place, send, create=True, **given)
    return DeadLetters(config.dead_letters_url, send, topology=topology.name, create=True, **given)


def _event_files(held: Checkpoint) -> EventLogger | None:
    """The default event logger: files in the checkpoint if that is a folder."""
    return EventFiles(held.folder / FOLDER) if held.files.is_seen else None


def _traces(held: Checkpoint, plan: Plan, config: Config) -> TraceRecorder:
    """Where traced messages are recorded: in the checkpoint if that is a folder, else in memory."""
    folder = held.folder if held.files.is_seen else None
    return recorder_of_run(folder, plan, config, now_ms, own_version())
