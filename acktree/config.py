"""The settings of a run: frozen, typed, by Storm's names.

Rules of this file
------------------
1. A setting exists only if it has an effect; its docstring describes it.
2. Settings have Storm's name in snake_case without ``topology.``, and Storm's default. In a mapping, settings
   that Storm does not have begin with ``acktree.``.
3. No setting is ignored silently. An unknown setting is refused with the nearest known one; a setting of
   Storm that has no meaning here is refused with the reason and an alternative.
4. No error and no ``repr`` shows a password. Bolts and spouts receive a copy without passwords.

Source: Storm's ``Config`` and ``conf/defaults.yaml``.
"""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final, Literal, NoReturn, TypeVar

from acktree.core.data.context import TaskHook
from acktree.core.data.hooks import WorkerHook
from acktree.errors import ConfigError, ending_at_caller
from acktree.logs.log_lines import LogFormat
from acktree.logs.private_urls import is_url, masked_url
from acktree.metrics_consumer import MetricsConsumer
from acktree.named_objects import named_objects, names_of_classes
from acktree.storm_settings import refuse_unknown

__all__ = ["MOST_PARTITIONS", "Config", "dotted_key", "given_config"]

MOST_PARTITIONS: Final = 1 << 16
"""The most partitions of a topology: the plan and each micro-batch have a part for each."""
_OURS: Final = frozenset(
    {
        "batch_interval_secs",
        "control",
        "dead_letter_limit_count",
        "dead_letter_limit_ratio",
        "dead_letter_limit_window_secs",
        "dead_letters_url",
        "execute_timeout_secs",
        "fail_forgotten",
        "inbox_max_bytes",
        "inbox_max_messages",
        "key_retention_secs",
        "log_format",
        "max_traces_per_sec",
        "otlp_endpoint",
        "partitions",
        "real_time",
        "run_salt",
        "survive_power_cut",
        "trace_sample_rate",
        "worker_hooks",
        "worker_max_bytes",
    }
)
"""Settings that Storm does not have."""

_STORMS_NAMES: Final = {
    "metrics_consumers": "topology.metrics.consumer.register",
    "metrics_interval_secs": "topology.builtin.metrics.bucket.size.secs",
    "task_hooks": "topology.auto.task.hooks",
}
"""Dotted keys of Storm for settings that have a clearer name here."""
_USER_CODE: Final[Mapping[str, type]] = {
    "metrics_consumers": MetricsConsumer,
    "task_hooks": TaskHook,
    "worker_hooks": WorkerHook,
}
"""Settings that hold objects of the user, and what each must be."""

_URLS: Final = ("dead_letters_url", "otlp_endpoint")
"""Settings that may hold a password."""
_COLLECTOR: Final = re.compile(r"https?://(?!.*/v1/(?:traces|metrics)/*$)[^/?#\s][^?#\s]*")

_WAIT_STRATEGIES: Final = {
    "org.apache.storm.policy.WaitStrategyProgressive": "progressive",
    "org.apache.storm.policy.WaitStrategyPark": "park",
}
"""Wait strategies by the Java class that Storm uses as their name."""

_Class = TypeVar("_Class", bound=type[Any])


def _refusing_unknown(config: _Class) -> _Class:
    """Raise ConfigError for an unknown keyword; type checkers still see the dataclass constructor."""
    construct = config.__init__

    @ending_at_caller
    @functools.wraps(construct)
    def checked(self: object, **settings: Any) -> None:  # noqa: ANN401  # checked by what it wraps
        known = {setting.name for setting in fields(config)}
        for name in settings:
            if name not in known:
                refuse_unknown(name, "topology." + name.replace("_", "."), f"Config({name}=...)", known)
        construct(self, **settings)

    config.__init__ = checked
    return config


class _WithMeanings:
    """The docstring of a class with the meaning of each attribute, for ``help()``. Made when it is asked for.

    Python keeps no docstrings of attributes, so the source is read.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        import ast  # noqa: PLC0415  # only help() needs them
        import inspect  # noqa: PLC0415

        try:
            (tree,) = ast.parse(inspect.getsource(owner)).body
        except (OSError, TypeError, SyntaxError):
            return self._text
        lines = [inspect.cleandoc(self._text), "", "Attributes:"]
        for field, below in pairwise(getattr(tree, "body", ())):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                meaning = " ".join(ast.literal_eval(below.value).split())
                first = f"{ast.unparse(field.target)}: {meaning}"
                lines += textwrap.wrap(first, 96, initial_indent="    ", subsequent_indent="        ")
        return "\n".join(lines)


@_refusing_unknown
@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run, for ``submit`` and ``LocalCluster``.

    >>> Config(max_spout_pending=1000).message_timeout_secs
    30
    >>> Config(max_spuot_pending=1000)
    Traceback (most recent call last):
    acktree.errors.ConfigError: acktree has no setting max_spuot_pending
      where: Config(max_spuot_pending=...)
      fix:   did you mean 'max_spout_pending'?

    Raises:
        ConfigError: An unknown setting, or a value of the wrong type or out of range.
    """

    message_timeout_secs: float = 30
    """The message timeout: the time until an open message is TIMED_OUT, measured by the clocks of the
    micro-batches from the end of the one that admitted it. A timeout is never early, and late by at most an
    eighth of this time and one micro-batch. ``kill`` waits this long for open messages, or longer if a spout
    has a longer timeout of its own."""
    enable_message_timeouts: bool = True
    """False: no message is ever TIMED_OUT; a message that a bolt never acks stays open."""
    acker_executors: int | None = None
    """0: best effort: no message is tracked, and ``ack`` is called after the ``next_tuple`` that emitted the
    message. Any other number, and None: messages are tracked, by one acker, which needs no tasks."""
    max_spout_pending: int | None = None
    """The most open messages of a spout task: ``next_tuple`` is not called while it has this many. Untracked
    messages do not count. None or 0: no limit. One ``next_tuple`` may exceed it by the messages it emits."""
    tick_tuple_freq_secs: float | None = None
    """The interval of ``tick`` in bolts that have that method and no ``tick_secs`` of their own. None:
    never."""
    debug: bool = False
    """Log every emitted tuple. For debugging with few tuples."""
    stats_sample_rate: float = 0.05
    """The share of each task's micro-batches in which a ``Bolt`` measures ``process_ms``, the time until the
    ack. Other latencies are measured always, at no cost per tuple; counts are exact."""
    max_error_report_per_interval: int = 5
    """The most errors of one component kept per ``error_throttle_interval_secs``; all are counted."""
    error_throttle_interval_secs: float = 10
    """See ``max_error_report_per_interval``."""
    spout_wait_strategy: Literal["progressive", "park"] = "progressive"
    """How a spout task waits when ``next_tuple`` emitted nothing."""
    spout_wait_progressive_level1_count: int = 0
    """progressive: the number of consecutive idle calls without a wait."""
    spout_wait_progressive_level2_count: int = 0
    """progressive: the number of further idle calls with the shortest wait of the machine."""
    spout_wait_progressive_level3_sleep_millis: float = 1
    """progressive: the wait after each further idle call; it is doubled after each 100 consecutive idle
    calls, up to half a second."""
    spout_wait_park_microsec: float = 100
    """park: the wait after each idle call. 0: none."""
    execute_timeout_secs: float | None = 300
    """The execute timeout: a call of ``execute`` that takes longer is interrupted and its tuple fails. A
    process whose code cannot be interrupted is killed; a tuple for which two processes were killed is left
    out. Hooks, as ``prepare`` and ``flush``, have no timeout: the log says which one has not returned for so
    long. None: no timeout. In a LocalCluster it holds for bolts with ``async def`` or ``threads`` alone."""
    fail_forgotten: bool = False
    """Fail a tuple that a ``Bolt`` has neither acked, failed nor kept in what it remembers, at the end of its
    micro-batch. False: it is reported with the bolt at once, and its message times out, as in Storm."""
    batch_interval_secs: float = 2
    """The target duration of a micro-batch under load: it admits as many messages as the last ones processed
    in that time. Without load a micro-batch is as short as Spark allows. In real time the most that an epoch
    grows to, where its fixed cost is large."""
    inbox_max_messages: int = 4_000_000
    """The most messages in the inbox, emitted by spouts and not yet read by Spark; ``next_tuple`` is not
    called while it is full. The inbox is also full with twice the messages that a micro-batch admits."""
    inbox_max_bytes: int = 256 * 2**20
    """The same limit in bytes on disk; messages kept for a retry count."""
    key_retention_secs: float = 86_400
    """How long the key of an ACKED message is kept, while the topology runs: a message that comes again with
    it is acked at once. Longer than a queue may take to deliver a message again. A key takes 16 bytes in the
    driver's memory, and as much in the checkpoint."""
    worker_max_bytes: int | None = None
    """The most memory that a Python worker process may allocate. Beyond it, an allocation raises MemoryError,
    and a bolt's tuple fails with it. None: three quarters of the memory of the machine or container."""
    partitions: int | None = None
    """The number of partitions of each level: as many bolt tasks run in parallel. None: the largest
    parallelism of a bolt, but at most the number of Spark's cores; in a LocalCluster 1. A checkpoint keeps
    its first value."""
    run_salt: int | None = None
    """The number from which all root ids are derived, 0 to 2**64 - 1. None: made once for a checkpoint, and
    stored in it."""
    eventlogger_executors: int | None = None
    """0: ``running.debug`` is refused, and no tuple is ever logged. Any other number, and None: it may be
    switched on; events are written by one thread, which needs no tasks."""
    trace_sample_rate: float = 0.001
    """The share of messages whose path through the topology is recorded, 0 to 1: see ``running.traces``.
    Above 0 all attempts after the first are, within ``max_traces_per_sec``. 0: only messages that an operator
    watches are. It can be changed while the topology runs."""
    max_traces_per_sec: float | None = 100
    """How many messages of all spout tasks together are traced in a second, on average: this many first
    attempts, and this many later ones. Each spout task has an equal part of both. A task that has used its
    part of the first attempts traces none for about a second. There is no limit at a rate of 1, for first
    attempts of rows of a DataFrame, and for messages that a spout names or an operator watches. None: no
    limit, as in a LocalCluster."""
    otlp_endpoint: str | None = None
    """The URL of an OpenTelemetry collector, ``http://localhost:4318``: a traced message goes to its
    ``/v1/traces`` once it has its verdict. It needs ``acktree[otel]``. A LocalCluster sends none."""
    control: bool = True
    """Open a Unix socket of this user's alone, through which ``acktree`` on the command line and the web page
    watch the topology and give it orders. False: neither can."""
    log_format: LogFormat = "text"
    """How lines of the log are written: "text", or "json" for one object a line. It holds where the program
    has set up no logging; a handler of its own takes ``acktree.LogFormatter``."""
    survive_power_cut: bool = False
    """Deliver no verdict before all that it depends on is synced to the disk, Spark's part of the checkpoint
    too, so that a power cut takes back no delivered verdict. It costs some syncs a micro-batch. False: a
    verdict outlives the death of any process, and a power cut may take back the last seconds."""
    real_time: bool = False
    """Experimental: run in Spark's real-time mode, for verdicts in milliseconds. There are levels x
    partitions Spark tasks, which stay. It needs PySpark 4.3, Linux, a checkpoint in a folder, and a session
    that ``submit`` makes; it takes no ``DataFrameSpout``. Not used by a LocalCluster."""
    metrics_consumers: tuple[MetricsConsumer, ...] = ()
    """What all numbers are given to, once an interval; each on a thread of its own in the driver. In a
    mapping each may be the name of a class, ``package.module.Class``, which is made without arguments."""
    metrics_interval_secs: float = 60
    """How often metrics consumers are given the numbers."""
    task_hooks: tuple[TaskHook, ...] = ()
    """Hooks that watch every task; each task has copies of its own. In a mapping each may be the name of a
    class, ``package.module.Class``, which is made without arguments."""
    worker_hooks: tuple[WorkerHook, ...] = ()
    """Hooks that are started once in each Python worker process. In a mapping as ``task_hooks``."""
    dead_letters_url: str | None = None
    """The SQLAlchemy URL of the store of dead letters, such as ``postgresql+psycopg://me@host/letters``.
    None: an SQLite file in the checkpoint. Not used by a LocalCluster, which keeps them in memory."""
    dead_letter_limit_count: int | None = None
    """The limit of dead letters of one spout in a window. The topology stops instead of storing more, if
    ``dead_letter_limit_ratio`` is reached too. None: no limit."""
    dead_letter_limit_ratio: float = 0.5
    """The limit of the share of dead letters among all messages of that spout that were acked or given up in
    the window. 0: only the count decides; 1: reached only if no message was acked."""
    dead_letter_limit_window_secs: float = 60
    """The window of both limits. It should be longer than it takes to give a message up, pauses included."""

    def __post_init__(self) -> None:
        """Check types and ranges; ``max_spout_pending=0`` becomes None, no limit, as in Storm."""
        self._number("message_timeout_secs", above=0)
        self._number("execute_timeout_secs", above=0, or_none=True)
        self._number("batch_interval_secs", above=0)
        self._number("tick_tuple_freq_secs", above=0, or_none=True)
        self._number("stats_sample_rate", above=0, most=1)
        self._number("error_throttle_interval_secs", above=0)
        self._number("trace_sample_rate", least=0, most=1)
        self._number("max_traces_per_sec", above=0, or_none=True)
        self._number("spout_wait_progressive_level3_sleep_millis", least=0)
        self._number("spout_wait_park_microsec", least=0)
        self._number("acker_executors", whole=True, least=0, or_none=True)
        self._number("eventlogger_executors", whole=True, least=0, or_none=True)
        self._number("max_spout_pending", whole=True, least=0, or_none=True)
        self._number("max_error_report_per_interval", whole=True, least=0)
        self._number("spout_wait_progressive_level1_count", whole=True, least=0)
        self._number("spout_wait_progressive_level2_count", whole=True, least=0)
        self._number("inbox_max_messages", whole=True, least=1)
        self._number("inbox_max_bytes", whole=True, least=1)
        self._number("key_retention_secs", above=0)
        self._number("worker_max_bytes", whole=True, least=1, or_none=True)
        self._number("partitions", whole=True, least=1, most=MOST_PARTITIONS, or_none=True)
        self._number("run_salt", whole=True, least=0, most=2**64 - 1, or_none=True)
        self._number("dead_letter_limit_count", whole=True, least=0, or_none=True)
        self._number("dead_letter_limit_ratio", least=0, most=1)
        self._number("dead_letter_limit_window_secs", least=1)
        self._number("metrics_interval_secs", above=0)
        self._store_url()
        if self.otlp_endpoint is not None and not _COLLECTOR.fullmatch(str(self.otlp_endpoint)):
            self._refuse("otlp_endpoint", "the URL of a collector, http://host:4318, without /v1/traces")
        for name in _USER_CODE:
            self._objects(name)
        for name in (
            "control",
            "debug",
            "enable_message_timeouts",
            "fail_forgotten",
            "real_time",
            "survive_power_cut",
        ):
            if not isinstance(getattr(self, name), bool):
                self._refuse(name, "True or False")
        if self.log_format not in ("text", "json"):
            self._refuse("log_format", "'text' or 'json'")
        if self.spout_wait_strategy not in _WAIT_STRATEGIES.values():
            self._refuse("spout_wait_strategy", "'progressive' or 'park'")
        if self.max_spout_pending == 0:
            object.__setattr__(self, "max_spout_pending", None)  # how a frozen dataclass sets an attribute

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> Config:
        """Read settings by Storm's dotted keys, as in a ``storm.yaml``.

        A wait strategy may be given as Storm's Java class. ``None`` is Storm's ``null``.

        >>> Config.from_mapping({"topology.message.timeout.secs": 60}).message_timeout_secs
        60

        Raises:
            ConfigError: As ``Config(...)``; also for a setting of Storm that acktree does not have, with the
                reason, and for what is no mapping.
        """
        whole: object = settings
        if not isinstance(whole, Mapping):
            raise ConfigError(
                f"Config.from_mapping() needs a dict of settings, and is given a {type(whole).__name__}",
                "Config.from_mapping(...)",
                'give one with Storm\'s keys: {"topology.message.timeout.secs": 30}',
            )
        known = {dotted_key(setting.name): setting.name for setting in fields(cls)}
        given: dict[str, Any] = {}
        for key, value in settings.items():
            if key not in known:
                refuse_unknown(key, str(key), f"Config.from_mapping({{{key!r}: ...}})", known)
            name = known[key]
            if name in _USER_CODE:
                given[name] = named_objects(value, str(key))
            else:
                given[name] = _WAIT_STRATEGIES.get(value, value) if isinstance(value, str) else value
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """Every setting by its dotted key: numbers, strings, booleans and None, for ``from_mapping``.

        Objects of the user are named by their class, so what they were made with is lost.
        It contains the URL of the dead letters with its password: call ``without_secrets()`` to show it.
        """
        return {
            dotted_key(setting.name): names_of_classes(value) if setting.name in _USER_CODE else value
            for setting in fields(self)
            for value in [getattr(self, setting.name)]
        }

    def without_secrets(self) -> Config:
        """The same settings for display or for user code: ``***`` replaces all possible secrets.

        >>> Config(dead_letters_url="postgresql://me:secret@host/db").without_secrets().dead_letters_url
        'postgresql://***@host/db'
        """
        return replace(self, **{name: self._shown(name) for name in _URLS})

    def __repr__(self) -> str:
        """The settings that are not at their defaults."""
        changed = (each.name for each in fields(self) if getattr(self, each.name) != each.default)
        return f"{type(self).__name__}({', '.join(f'{name}={self._shown(name)!r}' for name in changed)})"

    def _shown(self, name: str) -> Any:  # noqa: ANN401  # any setting's value
        value = getattr(self, name)
        if name not in _URLS or value is None:
            return value
        return masked_url(value) if isinstance(value, str) else f"<{type(value).__name__}>"

    def _store_url(self) -> None:
        url = self.dead_letters_url
        if url is None:
            return
        if type(url) is not str or not is_url(url):
            self._refuse("dead_letters_url", "an SQLAlchemy URL, dialect://user@host/database")
        if url.startswith("sqlite") and (url.endswith("://") or ":memory:" in url):
            self._refuse("dead_letters_url", "the URL of a durable database: this one would be in memory")

    def _objects(self, name: str) -> None:
        """A tuple of the user's objects, whatever sequence was given."""
        value, kind = getattr(self, name), _USER_CODE[name]
        wanted = f"a list of objects of classes that extend acktree.{kind.__name__}"
        if not isinstance(value, list | tuple) or not all(isinstance(each, kind) for each in value):
            self._refuse(name, wanted)
        object.__setattr__(self, name, tuple(value))

    def _number(
        self,
        name: str,
        *,
        whole: bool = False,
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
        or_none: bool = False,
    ) -> None:
        value = getattr(self, name)
        if value is None and or_none:
            return
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        fits = (
            number
            and (isinstance(value, int) or math.isfinite(value))
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
        )
        if fits:
            return
        bounds = [
            f"{word} {bound}"
            for word, bound in (("of at least", least), ("above", above), ("up to", most))
            if bound is not None
        ]
        wanted = f"a {'whole ' if whole else ''}number {' and '.join(bounds)}"
        self._refuse(name, wanted + (", or None" if or_none else ""))

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        default = next(setting.default for setting in fields(self) if setting.name == name)
        raise ConfigError(
            f"{name} is {self._shown(name)!r:.60}, and must be {wanted}",
            f"Config({name}=...), also written {dotted_key(name)}",
            f"give it {wanted}; leave it out for the default, {default!r}",
        )


def dotted_key(name: str) -> str:
    """The dotted key of a setting."""
    plain = ("acktree." if name in _OURS else "topology.") + name.replace("_", ".")
    return _STORMS_NAMES.get(name, plain)


Config.__doc__ = _WithMeanings(Config.__doc__ or "")  # type: ignore[assignment]  # read as a text


def given_config(config: object, call: str) -> Config:
    """The settings that a call is given; the defaults for None.

    Args:
        config: What a caller without a type checker may have passed.
        call: The name of the call.

    Raises:
        ConfigError: It is no Config.
    """
    if config is None:
        return Config()
    if not isinstance(config, Config):
        raise ConfigError(
            # Its values are not shown: rule 4.
            f"{call}() needs a Config as config, and is given a {type(config).__name__}",
            f"{call}(config=...)",
            "give Config(...), or Config.from_mapping({...}) for settings by Storm's keys",
        )
    return config
