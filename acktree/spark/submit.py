"""Start a topology as one streaming query."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from sys import maxsize
from threading import Thread
from typing import TYPE_CHECKING

from pyspark import TaskContext

from acktree.checkpoint import disk_errors, staged_files
from acktree.checkpoint.files import Files
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.location import location_of, refuse_letters_without_database
from acktree.checkpoint.logs.commit_log import CommitLog
from acktree.checkpoint.mirror import Mirror
from acktree.config import Config, given_config
from acktree.driver.assembly import assembled_run, ended_run
from acktree.driver.handle import SubmittedTopology
from acktree.driver.importing import refuse_submit_by_import
from acktree.driver.logs.run_log import RunLog
from acktree.driver.metrics.consumers import Source
from acktree.driver.query import ENDED_QUERY
from acktree.driver.run import Run, do_nothing
from acktree.driver.shutdown import start_interruptibly
from acktree.driver.signals import signals_wait
from acktree.driver.spouts.spout_threads import now_ms
from acktree.driver.supervisor import Supervisor
from acktree.errors import ConfigError, naming_keywords
from acktree.logs import log_levels
from acktree.logs.loggers import logger, print_by_default
from acktree.spark.hadoop import HadoopFolder, refuse_unseen
from acktree.spark.query.handle import SparkQuery
from acktree.spark.query.ladder import ladder
from acktree.spark.query.operators import Places
from acktree.spark.query.phases import Phases
from acktree.spark.query.sink import QuerySink
from acktree.spark.realtime.drive import Drive
from acktree.spark.realtime.query import ResidentQuery
from acktree.spark.realtime.session import (
    partitions_of,
    refuse_unfit,
    refuse_without_slots,
    start_realtime_session,
    take_slots,
)
from acktree.spark.session.class_archive import note_micro_batch
from acktree.spark.session.settings import (
    PARTS_RUN_AGAIN_ALONE,
    lend_session,
    lent_settings,
    most_carried,
    no_retries_hint,
    other_python_hint,
    prepare_session,
    refuse_without_java,
)
from acktree.spark.session.shipping import ship_code
from acktree.spark.worker.process import SharedPlan
from acktree.tasks.component_checks import refuse_unusable
from acktree.tasks.waits import forget_waits
from acktree.topology.model import Topology, refuse_other_than_topology
from acktree.traces.events import EventLogger
from acktree.traces.of_run import refuse_missing_exporter
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
        ConfigError: ``checkpoint``, ``spark`` or ``config`` is of another type; ``checkpoint`` is a URL of no
            file system that Hadoop knows, or dead letters would have no place beside it;
            ``dead_letters_url`` cannot be read, or what it or ``otlp_endpoint`` needs is not installed.
        ConnectorError: The store of dead letters cannot be opened, or the ``check`` of a spout or bolt says
            that it cannot work. What is only away for now is logged.
    """
    refuse_other_than_topology(topology, "submit")
    refuse_submit_by_import(topology.name, is_worker=TaskContext.get() is not None)
    config = given_config(config, "submit")
    _refuse_other_than_session(spark)
    print_by_default(config.log_format)
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


def _refuse_other_than_session(spark: object) -> None:
    """Check what ``submit`` is given as ``spark``."""
    if spark is None:
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415  # who gives none may not need it yet

    if not isinstance(spark, SparkSession):
        raise ConfigError(
            f"spark is {spark!r:.60}, and must be a SparkSession",
            "submit(spark=...)",
            "give what SparkSession.builder.getOrCreate() returns, or leave it out for a local session",
        )


def _temp_folder() -> Path | None:
    """Where Python and Spark put what they need for a while; None where no such folder can be written to."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None


def _submit_in(
    folder: Path,
    topology: Topology,
    spark: SparkSession | None,
    config: Config,
    event_logger: EventLogger | None,
) -> SubmittedTopology:
    """Run on a checkpoint that is a folder."""
    began = time.monotonic()
    with disk_errors.explaining(folder, scratch=_temp_folder()), ExitStack() as given_up:
        held = Checkpoint(folder, Files(survives_power_cut=config.survive_power_cut))
        given_up.callback(held.close)
        if held.is_over:
            running = _ended(topology, held, config, _nothing)
        else:
            session, give_back = _session_in(topology, held, spark, config)
            given_up.callback(give_back)
            running = _start(
                session, give_back, topology, held, config, began=began, event_logger=event_logger
            )
        given_up.pop_all()
        return running


def _session_in(
    topology: Topology, held: Checkpoint, spark: SparkSession | None, config: Config
) -> tuple[SparkSession, Callable[[], None]]:
    """The session of a run on a folder; in real time one in which all tasks of the topology run at once."""
    if not config.real_time:
        session, give_back = _session(topology, spark)
        try:
            refuse_without_slots(session)
        except ConfigError:
            give_back()
            raise
        return session, give_back
    partitions = partitions_of(topology, config) if held.shape is None else held.partitions
    levels = len(topology.levels(partitions))
    start = partial(start_realtime_session, slots=levels * partitions)
    session, give_back = _session(topology, spark, starting=start)
    try:
        give_slots_back = take_slots(session, topology.name, levels, partitions)
    except ConfigError:
        give_back()
        raise

    def give_all_back() -> None:
        give_slots_back()
        give_back()

    return session, give_all_back


def _submit_at(
    url: str,
    topology: Topology,
    spark: SparkSession | None,
    config: Config,
    event_logger: EventLogger | None,
) -> SubmittedTopology:
    """Run on a checkpoint at a URL, which can only be read with a session."""
    began = time.monotonic()
    refuse_letters_without_database(url, topology, config)
    with disk_errors.explaining(scratch=_temp_folder()), ExitStack() as given_up:
        session, give_back = _session(topology, spark, is_folder=False)
        given_up.callback(give_back)
        parent = session.conf.get("spark.local.dir", None)
        files = Mirror.open(HadoopFolder.of_session(session, url), (parent or "").split(",")[0] or None)
        held = Checkpoint(files.folder, files)
        given_up.callback(held.close)
        if held.is_over:
            running = _ended(topology, held, config, give_back)
        else:
            running = _start(
                session, give_back, topology, held, config, began=began, event_logger=event_logger
            )
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
    refuse_without_java()
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
    run = ended_run(topology, held, config, version=own_version(), stop_session=give_back)
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
    topology = held.begin_run(topology, config, _partitions(session, topology, config))
    door = Door(held.files.disk if held.files.is_seen else None, own_version()) if config.control else None
    run, commits = assembled_run(
        topology,
        held,
        config,
        log=RunLog(topology.name, began),
        version=own_version(),
        max_chunk_bytes=None if held.files.is_seen else most_carried(session),
        event_logger=event_logger,
        stop_session=give_back,
        close_door=do_nothing if door is None else door.close,
        leave_door=do_nothing if door is None else door.leave,
    )
    query = _query(session, topology, run, commits)
    supervisor = Supervisor(run, query, commits.close)
    if isinstance(query, Drive):
        query.on_commit = supervisor.committed
    running = SubmittedTopology(run, supervisor)
    if door is not None:
        door.open(running, run, lambda: run.results.times.with_parts(*query.last_phases()))
    if run.consumers is not None:
        at_once = {each.id: each.at_once for each in run.plan.topology.components.values()}
        run.consumers.begin(Source(run.counters, lambda: run.results.metrics.metrics(now_ms()), at_once))
    supervisor.begin()
    return running


def _partitions(session: SparkSession, topology: Topology, config: Config) -> int:
    """How many partitions a new checkpoint gets."""
    if config.real_time:
        return partitions_of(topology, config)
    wanted = max((bolt.parallelism for bolt in topology.bolts), default=1)
    return min(wanted, session.sparkContext.defaultParallelism)


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
            staged=str(held.folder / staged_files.FOLDER_NAME),
            # The micro-batch after the last committed one may have begun; in real time several may have.
            new_from=maxsize if plan.config.real_time else held.last_committed() + 2 - first,
        )  # fmt: skip
    else:
        shared = SharedPlan.send(plan, held.new_plan_file().name, session.sparkContext)
        marks = f"acktree-marks-{secrets.token_hex(8)}"
        places = Places(str(held.inbox), marks, scratch, is_seen=False, first_batch=first)

    def on_batch() -> None:
        held.files.check()
        if not plan.config.real_time:  # there the commit follows at once, in this thread
            run.threads.wake()  # what ran waits no more: there is room
            run.change.set()
        note_micro_batch()

    used = [*([held.marks] if held.files.is_seen else []), *([] if folder is None else [folder])]
    sink = QuerySink(
        run.results, run.inbox, commits, scratch, folders=used, dispatch=run.threads.hold, on_batch=on_batch,
        sync=held.sync, phases_ms=(phases := Phases()).of_batch, first_batch=held.first_batch,
        has_payloads=plan.has_payloads, has_gates=run.gates is not None,
    )  # fmt: skip
    if plan.config.real_time:
        resident = ResidentQuery(session, plan, shared, places, held.last_committed())
        drive = Drive(resident, held, run.inbox, plan, sink, on_commit=run.change.set)
        drive.begin()
        return drive
    frames = {spout.id: spout.user_object for spout in topology.spouts if spout.is_dataframe}
    # Where bolts remember in Spark's state, a part that ran again has written over what is told of the first.
    more = {} if places.state is None else PARTS_RUN_AGAIN_ALONE
    with lent_settings(session, plan.partitions, more):
        query = (
            ladder(session, plan, shared, places, spouts=frames, after=held.begins_after)
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
