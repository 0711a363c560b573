"""For testing bolts and topologies of streamparse, without Spark and without Storm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from acktree import Config, ConfigError, OutputCollector, TaskContext
from acktree.pystorm import Bolt
from acktree.pystorm.bodies import most_at_once
from acktree.pystorm.hosted import Program
from acktree.pystorm.hosted_async import AsyncHostedBolt, hosted_bolt
from acktree.streamparse.build import load
from acktree.streamparse.dsl import Topology
from acktree.testing import CompletedTopology, Fixed, complete_topology

__all__ = ["RanBolt", "run_bolt", "run_topology"]


@dataclass
class RanBolt:
    """What a bolt did with its tuples.

    Attributes:
        acked: The values of each tuple that it acked.
        failed: The values of each tuple that it failed, or for which it raised.
        errors: What it raised or reported.
        logged: The texts that it logged.
        streams: What it emitted, by stream.
    """

    acked: list[list[Any]] = field(default_factory=list)
    failed: list[list[Any]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    streams: dict[str, list[list[Any]]] = field(default_factory=dict)

    @property
    def emitted(self) -> list[list[Any]]:
        """The values of each tuple that it emitted on its default stream."""
        return self.streams.get("default", [])


_CONTEXT: Final = TaskContext("test", "bolt", 1, 0, {"bolt": (1,), "source": (2,)})


class _Given(NamedTuple):
    """What a test gives in place of an ``acktree.Tuple``."""

    component: str
    stream: str
    task_id: int
    values: tuple[Any, ...]
    is_tick: bool


_of_call: Final[ContextVar[RanBolt]] = ContextVar("acktree_ran")
"""What one of several calls at once did. Tasks and threads that it starts inherit it."""


class _Recorder(OutputCollector):
    """Notes what a bolt says."""

    def __init__(self) -> None:
        self.whole = RanBolt()

    @property
    def ran(self) -> RanBolt:
        """Where it is noted."""
        return _of_call.get(self.whole)

    def add(self, part: RanBolt) -> None:
        """Add what one of several calls did."""
        for name in ("acked", "failed", "errors"):
            getattr(self.whole, name).extend(getattr(part, name))
        for stream, emitted in part.streams.items():
            self.whole.streams.setdefault(stream, []).extend(emitted)

    def emit(self, values: Sequence[object], *, anchors: object = None, stream: str = "default") -> None:  # noqa: ARG002  # of the contract
        self.ran.streams.setdefault(stream, []).append(list(values))

    def emit_direct(
        self,
        task_id: int,  # noqa: ARG002  # of the contract
        values: Sequence[object],
        *,
        anchors: object = None,
        stream: str = "default",
    ) -> None:
        self.emit(values, anchors=anchors, stream=stream)

    def ack(self, tup: Any) -> None:
        if not tup.is_tick:
            self.ran.acked.append(list(tup.values))

    def fail(self, tup: Any, reason: str = "", *, exception: BaseException | None = None) -> None:  # noqa: ARG002  # of the contract
        if not tup.is_tick:
            self.ran.failed.append(list(tup.values))

    def reset_timeout(self, tup: object) -> None:
        """No timeout."""

    def report_error(self, exception: BaseException) -> None:
        self.ran.errors.append(exception)


class _Records(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


def run_bolt(
    bolt: type[Bolt],
    tuples: Iterable[Sequence[Any] | Mapping[str, Any]],
    *,
    config: Mapping[str, Any] | None = None,
    ticks: int = 0,
) -> RanBolt:
    """Run a bolt class over tuples of one stream, in this process.

    Tuples of a bolt with ``async def process`` are processed at once, as in a topology. What each of them did
    is noted in the order in which they were given.

    Args:
        bolt: The class; its object is made and initialized as in a topology.
        tuples: The values of each, as a list; or a dict from field to value, for ``tup.values.word``.
        config: Settings that ``initialize`` gets.
        ticks: How many ticks come after the tuples.

    Raises:
        ConfigError: A tuple is a text.
    """
    given = list(tuples)
    for each in given:
        if isinstance(each, (str, bytes)):
            raise ConfigError(
                f"a tuple is {type(each).__name__} {each!r:.40}, and would have a value for each character",
                f"run_bolt({bolt.__name__}, [...])", f"give a list of its values, [{each!r:.40}], or a dict",
            )  # fmt: skip
    fields = next((list(each) for each in given if isinstance(each, Mapping)), None)
    declared = getattr(bolt, "outputs", None) or ()
    streams = {getattr(output, "name", "default") for output in declared} | {"default"}
    setting = {
        "streams": sorted(streams),
        "stream->target->grouping": {},
        "source->stream->fields": {} if fields is None else {"source": {"default": fields}},
    }
    hosted = hosted_bolt(Program(bolt, dict(config or {}), setting), ())
    recorder = _Recorder()
    records = _Records(recorder.whole.logged)
    logger = logging.getLogger("pystorm.component.bolt")
    logger.addHandler(records)
    tups = [_Given("source", "default", 2, _values_of(each), is_tick=False) for each in given]
    tups += [_Given("__system", "__tick", -1, (1,), is_tick=True)] * ticks
    try:
        if isinstance(hosted, AsyncHostedBolt):
            _on_a_loop(lambda: _run_at_once(hosted, recorder, tups, most_at_once(bolt)))
        else:
            hosted.prepare(Config(), _CONTEXT, recorder)
            for tup in tups:
                hosted.execute(tup)  # type: ignore[arg-type]  # as a Tuple
            hosted.flush(recorder)
        if hosted.unsaved is not None:  # as a topology does: what is not saved does not count
            recorder.ran.failed += recorder.ran.acked
            recorder.ran.acked = []
            recorder.report_error(hosted.unsaved)
    finally:
        logger.removeHandler(records)
    return recorder.ran


def _values_of(given: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(given.values() if isinstance(given, Mapping) else given)


async def _run_at_once(
    hosted: AsyncHostedBolt, recorder: _Recorder, tups: Sequence[_Given], most: int
) -> None:
    """Process tuples at once, then ticks."""
    hosted.prepare(Config(), _CONTEXT, recorder)
    limit = asyncio.Semaphore(most)

    async def process(tup: _Given, part: RanBolt) -> None:
        _of_call.set(part)
        async with limit:
            await hosted.execute(tup)  # type: ignore[arg-type]  # as a Tuple

    parts = [(tup, RanBolt()) for tup in tups if not tup.is_tick]
    ended = await asyncio.gather(*(process(*part) for part in parts), return_exceptions=True)
    for _, part in parts:
        recorder.add(part)
    for raised in ended:
        if raised is not None:
            raise raised
    for tup in tups[len(parts) :]:
        await hosted.tick(tup)  # type: ignore[arg-type]  # as a Tuple
    hosted.flush(recorder)


def _on_a_loop(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a loop of its own; on another thread where this one runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(run())
        return
    with ThreadPoolExecutor(1) as threads:
        threads.submit(copy_context().run, lambda: asyncio.run(run())).result()


def run_topology(
    topology: type[Topology] | str,
    spouts: Mapping[str, Fixed],
    *,
    environment: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompletedTopology:
    """Replace the spouts of a topology by fixed tuples, and run it until each has its verdict.

    Args:
        topology: The class, or its file; see ``load``.
        spouts: The tuples of each spout, as lists of values.
        environment: An environment of the project.
        options: Settings by Storm's dotted keys.
    """
    loaded = load(topology, environment=environment, options=options)
    return complete_topology(loaded.topology, spouts, loaded.config)
