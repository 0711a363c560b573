"""How values are written where a later release reads them: pickle, with tags in the place of classes of ours.

A pickle names a class by its module. A checkpoint outlives a release, and a module may be renamed in the
next one. So a class of acktree in a pickle is written as a *tag*: a name with a version that is listed in
:data:`TAGS`, which says where the class is now. Users' classes are written by their names: by pickle where
they can be imported, and as a reference where not, such as those of the main program.

Layout of a value::

    80 ...           a pickle without a class of ours: nothing but pickle (protocol 5)
    AC 01 80 ...     a tagged pickle: a mark, the version of the layout, and a pickle (protocol 5) in which a
                     class of ours is a persistent id, such as "acktree:MisuseError/1", and a class that no
                     process can import is one too: a reference to it (see ``programs.py``)

Rules of this file
------------------
1. A tag is for ever. Where a class moves, its row in :data:`TAGS` says so; where the state that its instances
   are pickled with changes, it gets a new tag (``/2``), and the old one names what reads the old state.
2. Only a pickle that names acktree or the main program is written twice: all others cost a look for each.

Records of the engine itself need no pickle: see ``packing.py``, and ``checkpoint/layout.py`` for each file.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from types import FunctionType, MappingProxyType
from typing import Any, Final

import cloudpickle

from acktree.core import programs
from acktree.core.packing import Buffer
from acktree.core.programs import Reference
from acktree.errors import CheckpointError

_MARK: Final = 0xAC
"""No opcode of pickle, whose streams begin with 0x80."""
_VERSION: Final = 1
_OURS: Final = b"acktree"
"""Stands in every pickle that names a class of ours."""
_MAIN: Final = b"__main__"
"""Stands in every pickle that names a class of the main program, where it was run as one."""
_NAMED: Final = (type, FunctionType)

_PLACES: Final[Mapping[str, str]] = {
    "acktree.acknowledger": "Acknowledger",
    "acktree.bolt": (
        "AnyBolt ArrowBolt ArrowOutputCollector BasicBolt BasicOutputCollector Bolt OutputCollector"
    ),
    "acktree.config": "Config",
    "acktree.core.data.context": "TaskContext TaskHook",
    "acktree.core.data.fields": "StreamDeclaration",
    "acktree.core.data.groupings": "CustomGrouping Grouping",
    "acktree.core.data.hooks": (
        "BoltAckInfo BoltExecuteInfo BoltFailInfo EmitInfo SpoutAckInfo SpoutFailInfo "
        "WorkerContext WorkerHook"
    ),
    "acktree.core.data.instruments": "CounterMetric GaugeMetric HistogramMetric MeterMetric TimerMetric",
    "acktree.core.data.tuples": "Tuple",
    "acktree.core.spouts.open_messages": "OpenMessages",
    "acktree.core.spouts.retry": "Retry",
    "acktree.core.state.column_state": "ColumnState",
    "acktree.core.state.key_value_state": "KeyValueState",
    "acktree.core.stats.histograms": "Histogram",
    "acktree.core.stats.numbers": (
        "AckerNumbers ComponentStats KeyNumbers Numbers Outage ReportedError SpoutNumbers TaskStats "
        "TraceNumbers"
    ),
    "acktree.core.stats.statistics": "Stats",
    "acktree.core.stats.user_metrics": "UserMetric",
    "acktree.core.tracking.origins": "Origin",
    "acktree.core.tracking.verdicts": "Failure FailureCause FailureKind Verdict",
    "acktree.dataframe_spout": "DataFrameSpout",
    "acktree.dead_letters.letter": "DeadLetter Pickled",
    "acktree.dead_letters.store": "DeadLetters",
    "acktree.dead_letters.summary": "LetterGroup",
    "acktree.dead_letters.table": "Filters",
    "acktree.driver.handle": "SubmittedTopology",
    "acktree.driver.running": "RunningTopology",
    "acktree.system.stopped_by": "StoppedByCtrlC StoppedBySignal",
    "acktree.errors": (
        "AcktreeError BoltError CheckpointError ConfigError ConnectorError DeadLetterLimitError "
        "ExecuteTimeoutError HookError KilledWorkerError MisuseError ProtocolError SpoutError "
        "TopologyError Unavailable"
    ),
    "acktree.function_bolt": "FunctionBolt",
    "acktree.iterable_spout": "IterableSpout",
    "acktree.logs.log_lines": "LogFormatter",
    "acktree.metrics_consumer": (
        "DataPoint JsonLinesMetricsConsumer LoggingMetricsConsumer MetricsConsumer TaskInfo"
    ),
    "acktree.otlp_metrics": "OtlpMetricsConsumer",
    "acktree.receiver": "Receiver",
    "acktree.sink": "Sink",
    "acktree.spout": "EndOfStream Spout SpoutOutputCollector",
    "acktree.tasks.spouts.keys.labels": "Labelled",
    "acktree.tasks.spouts.retries": "Redriven",
    "acktree.topology.builder": "BoltDeclarer SpoutDeclarer TopologyBuilder",
    "acktree.topology.component": "Component Subscription",
    "acktree.topology.describe": "Description",
    "acktree.topology.levels": "Level",
    "acktree.topology.model": "Topology",
    "acktree.traces.events": "Event EventLogger",
    "acktree.traces.trace": "Trace TracedMessage TracedTuple",
    "acktree.traces.traces": "Traces",
    "acktree.ui.page": "Page",
}
"""Module -> the classes in it that may be in a user's value, as their first tags call them."""

TAGS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {f"acktree:{name}/1": (module, name) for module, names in _PLACES.items() for name in names.split()}
)
"""Tag -> the module that the class is in today, and its name there."""

_TAG_OF: Final = {place: tag for tag, place in TAGS.items()}


def tag_of(value: object) -> str | None:
    """The tag of a class of ours; None for anything else."""
    return _TAG_OF.get((value.__module__, value.__qualname__)) if isinstance(value, type) else None


@lru_cache(maxsize=256)
def class_of(tag: str) -> type:
    """The class that a tag names.

    Raises:
        CheckpointError: This release has no such tag.
    """
    if tag not in TAGS:
        raise CheckpointError(
            f"a stored value holds {tag!r}, which this acktree does not know",
            "a checkpoint or a dead letter",
            "read it with the acktree that wrote it, or with a newer one",
        )
    module, name = TAGS[tag]
    named_class: type = getattr(import_module(module), name)
    return named_class


def public_name(kind: type) -> str | None:
    """What a class of ours is called wherever its module is, as ``acktree.MisuseError``; None for others."""
    tag = tag_of(kind)
    return None if tag is None else tag.partition("/")[0].replace(":", ".")


def dumps(value: object) -> bytes:
    """A value as bytes, for this process and later runs: for :func:`loads`. Raises what pickle raises."""
    plain = pickle.dumps(value, protocol=5)
    return _tagged(_Pickler, value) if _OURS in plain or _MAIN in plain else plain


def dumps_by_value(value: object) -> bytes:
    """:func:`dumps`, but processes of this run that cannot import a class can read it, too."""
    with suppress(Exception):  # a user's __reduce__ raises what it likes: cloudpickle is tried
        plain = pickle.dumps(value, protocol=5)
        if not must_be_rewritten(plain):
            return plain
    return _tagged(ByValuePickler, value)


def must_be_rewritten(plain: bytes) -> bool:
    """Whether a pickle, or several in a row, may name a class of ours or one that others cannot import.

    Args:
        plain: Of protocol 4 or later.
    """
    if pickle.STACK_GLOBAL not in plain:  # it names no class
        return False
    if _OURS in plain or _MAIN in plain:
        return True
    by_value = cloudpickle.list_registry_pickle_by_value()
    return bool(by_value) and any(module.encode() in plain for module in by_value)


def loads(blob: Buffer) -> Any:  # noqa: ANN401  # what the user wrote
    """Read what :func:`dumps` or :func:`dumps_by_value` wrote. Raises what pickle raises.

    Raises:
        CheckpointError: A newer acktree wrote it, or the program lacks a class of it.
    """
    if blob[0] != _MARK:
        plain = bytes(blob)
        is_plain = _MAIN not in plain and not programs.may_be_named_in(plain)
        return pickle.loads(plain) if is_plain else Unpickler(BytesIO(plain)).load()
    if blob[1] != _VERSION:
        raise CheckpointError(
            f"a stored value has layout {blob[1]}, and this acktree reads layout {_VERSION}",
            "a checkpoint or a dead letter",
            "read it with the acktree that wrote it, or with a newer one",
        )
    return Unpickler(BytesIO(blob[2:])).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> str | Reference | None:
        return id_of(value, must_travel=False)


class ByValuePickler(programs.CodePickler):
    """Pickles for any process of this run and for later runs; lambdas and closures go with their code."""

    def persistent_id(self, value: object) -> str | int | Reference | None:
        """What stands for a class of ours, or one that no process can import."""
        return id_of(value)


class Unpickler(pickle.Unpickler):
    """Reads what either pickler wrote: each class is the one that this process has of its name."""

    def persistent_load(self, name: str | Reference) -> Any:  # noqa: ANN401  # a class or a function
        """The class that an id stands for."""
        return class_of(name) if isinstance(name, str) else programs.read(name)

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  # as above
        """What a pickle means by a name."""
        own_class = programs.main_named(module, name)
        return super().find_class(module, name) if own_class is None else own_class


def id_of(value: object, *, must_travel: bool = True) -> str | Reference | None:
    """What a pickle holds in the place of a class or function; None for what pickle writes itself.

    Args:
        must_travel: Whether other processes of this run read the pickle.
    """
    if not isinstance(value, _NAMED) or _is_importable(value):
        return None
    return tag_of(value) or programs.reference_to(value, must_travel=must_travel)


@lru_cache(maxsize=1024)
def _is_importable(value: object) -> bool:
    """Whether pickle itself writes a class by its name, or it has none. Asked for each value of a class."""
    return tag_of(value) is None and not (programs.by_value(value) and programs.is_named(value))


def _tagged(pickler: type[pickle.Pickler | cloudpickle.Pickler], value: object) -> bytes:
    file = BytesIO()
    file.write(bytes((_MARK, _VERSION)))
    pickler(file, protocol=5).dump(value)
    return file.getvalue()
