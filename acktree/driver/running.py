"""What every running topology can do, on Spark and in ``LocalCluster``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol, Self, runtime_checkable

from acktree.core.stats.numbers import ReportedError
from acktree.core.stats.statistics import Stats
from acktree.dead_letters.store import DeadLetters
from acktree.errors import MisuseError, naming_keywords
from acktree.topology.describe import Description
from acktree.traces.events import Event
from acktree.traces.traces import Traces


@runtime_checkable
class RunningTopology(Protocol):
    """A topology that was submitted: watch it, pause it, stop it.

    ``submit`` and ``LocalCluster.submit`` return one. What only a topology on Spark has is in
    :class:`SubmittedTopology`: ``checkpoint``; a ``LocalCluster`` has none. It is a context manager, which
    kills the topology without waiting for open messages. Times are the machine's on Spark, and the cluster's
    clock in a ``LocalCluster``.
    """

    @property
    def name(self) -> str:
        """The topology's name."""

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""

    @property
    def errors(self) -> Sequence[ReportedError]:
        """What components raised or reported, throttled as ``Config`` says; ``stats()`` counts all."""

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages given up."""

    @property
    def traces(self) -> Traces:
        """The paths of some messages through the topology: ``Config(trace_sample_rate=...)``."""

    def debug(self, *, on: bool = True, component: str | None = None, percent: float = 100) -> None:
        """Log the tuples that components emit, from the next micro-batches on, until the run ends.

        Whole trees are sampled. As Storm's Debug: the tuples go to the ``EventLogger``.

        Args:
            on: Whether to log them.
            component: Which; None for all that are not named. To switch those off switches all off.
            percent: The share of messages, above 0 and up to 100.

        Raises:
            MisuseError: There is no such component or share, or ``Config(eventlogger_executors=0)``.
        """

    def events(self, limit: int = 100, component: str | None = None) -> list[Event]:
        """The last tuples that were logged, 1,000 at most, the newest last."""

    def describe(self) -> Description:
        """What runs where."""

    def stats(self) -> Stats:
        """The numbers of this run so far: Storm UI's, per component, stream and task."""

    def activate(self) -> None:
        """Let the spouts emit again."""

    def deactivate(self) -> None:
        """Stop asking the spouts for messages; what is open goes on, and verdicts arrive."""

    @naming_keywords
    def rebalance(
        self, component: str | None = None, parallelism: int | None = None, partitions: int | None = None
    ) -> NoReturn:
        """Refused while running: what bolts remember is moved on a checkpoint that is not running.

        Args:
            component: A stateful bolt that shall have another parallelism.
            parallelism: Its number of tasks from then on.
            partitions: Partitions of every level from then on.

        Raises:
            MisuseError: Always, with the command that does it.
            ConfigError: An argument has an unknown name.
        """
        checkpoint = getattr(self, "checkpoint", None)  # a LocalCluster has none
        raise _rebalance_refusal(self.name, checkpoint, component, parallelism, partitions)

    def await_idle(self, timeout_secs: float) -> bool:
        """Wait until no message is open, and all that spouts had to emit has run through a micro-batch.

        Returns:
            True when idle, False when the time passed first. Raises what stopped it, if that happens.
        """

    def await_termination(self, timeout_secs: float | None = None, *, progress: bool = False) -> bool:
        """Wait until the topology has ended or was stopped.

        Args:
            timeout_secs: The longest wait; None for no limit.
            progress: Show the numbers meanwhile: one line on a terminal if rich is installed, otherwise one
                line a second, to stderr.

        Returns:
            True when it ended, False when ``timeout_secs`` passed first. Raises what stopped it.
        """

    def kill(self, wait_secs: float | None = None) -> None:
        """Deactivate, wait for open messages, stop between two micro-batches, close the spouts.

        A micro-batch that takes more than 60 s is interrupted; it runs again at the next submit.

        Args:
            wait_secs: How long to wait for open messages; None: the longest message timeout of any spout.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _rebalance_refusal(
    name: str, checkpoint: Path | str | None, component: object, parallelism: object, partitions: object
) -> MisuseError:
    """What ``rebalance`` of a running topology raises.

    Args:
        name: The topology's name.
        checkpoint: None in a ``LocalCluster``.
        component: As a caller without a type checker may give it, as the other two: the command has
            placeholders for what it does not take.
        parallelism: See ``rebalance``.
        partitions: See ``rebalance``.
    """
    options = ""
    if component is not None or parallelism is not None:  # the command takes both or neither
        bolt = shlex.quote(component) if component and isinstance(component, str) else "COMPONENT"
        options = f" --component {bolt} --parallelism {_count(parallelism)}"
    if partitions is not None:
        options += f" --partitions {_count(partitions)}"
    place = "CHECKPOINT" if checkpoint is None else shlex.quote(str(checkpoint))
    fix = f"kill it, run `python -m acktree rebalance {place}{options}`, then submit it again"
    if checkpoint is None:
        fix = f"submit one with the other parallelism to a LocalCluster of its own; on Spark {fix}"
    return MisuseError(
        "a running topology cannot be rebalanced: what its tasks remember would have to move under them",
        f"topology {name!r}",
        fix,
    )


def _count(number: object) -> str:
    is_count = isinstance(number, int) and not isinstance(number, bool) and number > 0
    return str(number) if is_count else "N"
