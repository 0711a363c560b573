"""The public surface is one list: what users meet they can import, and nothing is public by accident."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import acktree
import acktree.testing

PLACES = (acktree, acktree.testing)
PUBLIC = {name: getattr(place, name) for place in PLACES for name in place.__all__}
FREE = frozenset({"K", "V", "D", "_T", "T", "R"})
"""Type variables."""
FREE_ALIASES = frozenset({"Kind", "LogFormat", "MetricKind"})
"""Literals."""
NOT_MADE_BY_USERS = frozenset(
    {
        "BoltDeclarer",
        "CompletedTopology",
        "CounterMetric",
        "GaugeMetric",
        "HistogramMetric",
        "MeterMetric",
        "Page",
        "SpoutDeclarer",
        "SubmittedTopology",
        "TaskContext",
        "TimerMetric",
        "Topology",
        "Traces",
        "Tuple",
        "WorkerContext",
    }
)
"""Classes that acktree alone makes an object of: what ``__init__`` takes is its own."""
CALLED_BY_THE_ENGINE = frozenset(
    {
        "ColumnState.bind",
        "ColumnState.go_on",
        "CounterMetric.taken",
        "GaugeMetric.taken",
        "HistogramMetric.taken",
        "KeyValueState.bind",
        "KeyValueState.go_on",
        "MeterMetric.taken",
        "Retry.decide",
        "SpoutHarness.append",
        "SpoutHarness.read",
        "Stats.of",
        "TimerMetric.taken",
    }
)
"""Methods of users' classes that other rooms of acktree call."""


@cache
def names_of_ours(module: str) -> frozenset[str]:
    """The classes and aliases of acktree that a module imports or makes, and so may name in annotations."""
    source = sys.modules[module].__file__
    assert source is not None
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(source).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("acktree"):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


def named_in(annotation: object, module: str) -> set[str]:
    """The names of ours in one annotation."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return set()
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names & names_of_ours(module)


def members_of(public: object) -> Iterator[tuple[str, object, str]]:
    """What a public name shows of itself: each member with its name and the module that it is written in."""
    if inspect.isfunction(public):
        yield public.__name__, public, public.__module__
    if not inspect.isclass(public) or issubclass(public, Enum):
        return
    for kind in public.__mro__:
        if kind.__module__.startswith("acktree"):
            for name, member in vars(kind).items():
                if not name.startswith("_") or name == "__init__":
                    yield f"{public.__name__}.{name}", member, kind.__module__
            for name, annotation in vars(kind).get("__annotations__", {}).items():
                if not name.startswith("_"):
                    yield f"{public.__name__}.{name}", annotation, kind.__module__


def annotations_of(member: object) -> list[object]:
    """The annotations of a method, property, class method or field."""
    if isinstance(member, str):
        return [member]
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, classmethod | staticmethod):
        member = member.__func__
    function = inspect.unwrap(member) if callable(member) else member
    return list(getattr(function, "__annotations__", {}).values()) if inspect.isfunction(function) else []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_name_in_a_public_signature_is_public_itself(name):
    hidden = {
        (where, found)
        for where, member, module in members_of(PUBLIC[name])
        if where not in CALLED_BY_THE_ENGINE and where != f"{name}.__init__" * (name in NOT_MADE_BY_USERS)
        for annotation in annotations_of(member)
        for found in named_in(annotation, module) - PUBLIC.keys() - FREE - FREE_ALIASES
    }
    assert not hidden


MEMBERS = """
    AckerNumbers: acked acks batch_ms batch_spread failed fails inits late micro_batches next_deadline_ms
            open_roots phase_secs received resets settle_ms settle_spread timed_out
    Acknowledger: ack_batch close fail_batch keep_alive keep_alive_secs open open_batch
    AcktreeError: fix what where
    AnyBolt: cleanup outputs remembers remembers_per_task
    Arrived: attempt label message_id sequence values
    ArrowBolt: cleanup execute_batch flush outputs prepare remembers remembers_per_task
    ArrowOutputCollector: emit_batch fail_rows report_error
    BasicBolt: cleanup execute flush max_concurrency outputs prepare remembers remembers_per_task threads tick
            tick_secs
    BasicOutputCollector: emit emit_direct report_error reset_timeout
    BoltAckInfo: batch count latency_ms task_id tup
    BoltExecuteInfo: batch count latency_ms task_id tup
    BoltFailInfo: batch count latency_ms task_id tup
    Bolt: cleanup execute flush max_concurrency outputs prepare remembers remembers_per_task threads tick
            tick_secs
    BoltDeclarer: all_grouping custom_grouping direct_grouping fields_grouping global_grouping
            local_or_shuffle_grouping none_grouping partial_key_grouping set_execute_timeout_secs
            shuffle_grouping
    Broker: acks_belong_to_connection body_of clear count counts_attempts cut dead_letters drop_queue
            given_up kill makes_queues misconfigured put redelivery_secs secret shortest_lease_secs start stop
    ColumnState: add_many batches bind clear contains_many emptied get get_many go_on is_bound may_stay
            put_batch remove_many save update update_many
    CompletedTopology: dead_letters failures stats tuples verdicts
    Component: at_once exactly_once execute_timeout_secs gated id inputs is_concurrent is_dataframe is_sink
            key_column kind label_column latest_by max_concurrency max_spout_pending message_timeout_secs
            parallelism remembers retry streams task_ids threads tick_secs told_columns user_object
    ComponentStats: awaiting_retry complete_ms execute_spread failed_by held lag lag_by_partition metrics
            not_asked_secs oldest_held_secs oldest_open_secs open outage outages process_spread streams tasks
            total
    Config: acker_executors batch_interval_secs control dead_letter_limit_count
            dead_letter_limit_ratio dead_letter_limit_window_secs dead_letters_url debug
            enable_message_timeouts
            error_throttle_interval_secs eventlogger_executors execute_timeout_secs
            fail_forgotten from_mapping inbox_max_bytes inbox_max_messages key_retention_secs log_format
            max_error_report_per_interval max_spout_pending max_traces_per_sec message_timeout_secs
            otlp_endpoint partitions real_time run_salt
            spout_wait_park_microsec spout_wait_progressive_level1_count
            spout_wait_progressive_level2_count spout_wait_progressive_level3_sleep_millis
            metrics_consumers metrics_interval_secs spout_wait_strategy stats_sample_rate
            survive_power_cut task_hooks tick_tuple_freq_secs to_mapping trace_sample_rate
            without_secrets worker_hooks worker_max_bytes
    CounterMetric: inc kind taken
    CustomGrouping: choose_tasks prepare
    DataFrameSpout: ack ack_batch acknowledger activate close deactivate fail fail_batch id_columns
            key keep_alive keep_alive_secs label lag next_tuple open outputs own_dead_letters
            redelivers remembers
    DataPoint: dimensions name value
    DeadLetter: attempts cause component dead_ms exception_type fields first_emitted_ms id kind label
            message_id_repr origins payload plain_origins plain_values reason redriven_ms root settled_ms
            spout story stream task_id topology traceback values
    DeadLetters: close count dead_again export find get known_roots mark_redriven mark_settled page
            place purge put redrive summary
    Description: data mermaid
    EmitInfo: batch count out_tasks stream task_id values
    EndOfStream:
    Event: component from_json root stream task_id time_ms to_json values
    EventLogger: close log open
    Failure: attempt cause component exception exception_types final from_bytes kind others reason
            to_bytes traceback
    FailureCause: CONFIGURATION EXCEPTION FAILED_BY_BOLT GAVE_UP HUNG KILLED_WORKER MISUSE TIMEOUT
            UNAVAILABLE
    FailureKind: FAILED TIMED_OUT
    FeederSpout: ack ack_batch activate close deactivate end fail fail_batch feed keep_alive
            keep_alive_secs lag next_tuple open outputs own_dead_letters redelivers remembers
    Filters: before cause component exception ids kind label reason redriven settled since spout topology
    FunctionBolt: cleanup execute flush max_concurrency outputs prepare remembers remembers_per_task threads
            tick tick_secs
    GaugeMetric: kind look set taken
    Grouping: crosses name
    Histogram: add add_all count merge percentile
    HistogramMetric: kind taken update
    IterableSpout: ack ack_batch activate close deactivate fail fail_batch keep_alive keep_alive_secs
            lag next_tuple open outputs own_dead_letters redelivers remembers
    OtlpMetricsConsumer: cleanup handle_data_points prepare
    JsonLinesMetricsConsumer: cleanup handle_data_points prepare
    KeyNumbers: kept oldest_secs open waiting
    KeyValueState: bind clear emptied get get_many go_on is_bound may_stay save take_times update_many
    LetterGroup: cause component count exception_type filters first_id reason
    Level: bolts index stateful
    LogFormatter: format
    LoggingMetricsConsumer: cleanup handle_data_points prepare
    LocalCluster: advance close run submit tuples
    LocalTopology: activate await_idle await_termination beat close deactivate dead_letters debug describe
            due_ms emitted_count errors events has_ended is_running kill name now_ms rebalance round stats
            traces tuples
    MeterMetric: kind mark taken
    MetricsConsumer: cleanup handle_data_points prepare
    Numbers: acked complete_ms dead_lettered emitted errors execute_ms executed failed process_ms retried
            superseded timed_out transferred
    OpenMessages: count older_than oldest_secs
    Origin: label message_id_repr spout
    Outage: dependency fix reason since_ms tries
    OutputCollector: ack emit emit_direct fail report_error reset_timeout
    Page: address close
    Receiver: call clear close get waiting
    ReportedError: at_ms component reason task_id traceback
    Retry: backoff_secs decide final jitter max_age_secs max_attempts pause_ms
    RunningTopology: activate await_idle await_termination deactivate dead_letters debug describe errors
            events is_running kill name rebalance stats traces
    Sink: close last_mark latest_by open write
    Spout: ack ack_batch activate close deactivate fail fail_batch keep_alive keep_alive_secs lag
            next_tuple open outputs own_dead_letters redelivers remembers
    SpoutAckInfo: complete_latency_ms message_id spout_task_id
    SpoutDeclarer:
    SpoutFailInfo: fail_latency_ms failure message_id spout_task_id
    SpoutHarness: ack append chunk_rows close fail read release rest room spout step until
    SpoutNumbers: awaiting_retry complete_ms count lag lag_by_partition oldest_secs outages
    SpoutOutputCollector: emit emit_batch emit_direct lost pending_count report_error wake
    Stats: acker components errors keys of open_at_start table traces warming_up_secs workers_lost
    StoppedByCtrlC:
    StoppedBySignal:
    StreamDeclaration: fields name schema
    SubmittedTopology: activate await_idle await_termination checkpoint deactivate dead_letters describe
            debug errors events has_ended is_running is_warm kill message_timeout_secs name rebalance stats
            traces
    Subscription: answers_only gate grouping source stream subscriber
    TaskContext: add_task_hook cached checkpoint_id component_id input_fields is_sink max_spout_pending now_ms
            open_message_ids register_counter register_gauge register_histogram register_meter
            register_timer resource run_id task_id task_ids task_index tasks topology_name txid
    TaskHook: bolt_ack bolt_execute bolt_fail cleanup emit prepare spout_ack spout_fail
    TaskInfo: component_id host interval_secs port task_id timestamp
    TaskStats: held metrics not_asked_secs oldest_held_secs streams total
    TimerMetric: kind taken time update
    Topology: bolts component_of components describe gates gates_of_answers levels name spouts subscribers
              subscriptions tasks
    TopologyBuilder: create_topology set_bolt set_sink set_spout
    Trace: children failed message more tuples unacked
    TracedMessage: attempt component emitted_ms label message_id reason retry_of root spout stream task_id
            traceback traceparent tuples values verdict verdict_ms
    TracedTuple: batch_id began_ms component edge fate fate_batch_id parents reason source source_task_id
            stream task_id together took_ms values
    TraceNumbers: dropped events_dropped exported messages
    Traces: attempts close find get of_checkpoint rate watch watched
    Tuple: anchors as_dict attempt component fields is_tick stream task_id values
    UserMetric: count kind mean percentile rates spread sum value
    Verdict: ACKED FAILED TIMED_OUT
    VerdictTable: count of
    WorkerContext: set_resource
    WorkerHook: shutdown start
"""
"""Every class of the public surface with its public members, errors aside. To change this list is a decision:
the changelog and the docs change with it."""


def listed() -> dict[str, set[str]]:
    """The table above."""
    entries = re.split(r"^    (?=\w)", MEMBERS, flags=re.MULTILINE)[1:]
    parted = [entry.partition(":") for entry in entries]
    return {name: set(members.split()) for name, _, members in parted}


def shown_by(public: type) -> set[str]:
    """The public members of a class that acktree defines."""
    ours = [kind for kind in public.__mro__ if kind.__module__.startswith("acktree")]
    names = {name for kind in ours for name in (*vars(kind), *vars(kind).get("__annotations__", {}))}
    return {name for name in names if not name.startswith("_")}


def test_nothing_is_public_by_accident():
    shown = {
        name: shown_by(public)
        for name, public in PUBLIC.items()
        if inspect.isclass(public)
        and public.__module__.startswith("acktree")
        and (public is acktree.AcktreeError or not issubclass(public, acktree.AcktreeError))
    }
    assert shown == listed()
