"""Asks components, before anything runs, whether what they need is there: their ``check(config, context)``.

A spout or bolt may have this method: ``submit``, ``--dry-run`` and ``acktree doctor MODULE:NAME`` call it in
their own process, once for each component. It connects, looks, and raises a ``ConfigError`` or a
``ConnectorError`` with the fix. ``context.input_fields`` says which fields will arrive.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence

from acktree.config import Config
from acktree.core.data.context import Clock, TaskContext
from acktree.errors import AcktreeError, ConfigError, ConnectorError
from acktree.iterable_spout import IterableSpout
from acktree.logs.loggers import logger
from acktree.tasks.plan import Plan
from acktree.texts import error_text
from acktree.topology.model import Component, Topology

log = logger("acktree")


def checks_of(topology: Topology, config: Config) -> Iterator[tuple[str, AcktreeError | None]]:
    """Each component that has a ``check``, with what it raised; None where all is there."""
    plan: Plan | None = None
    for component in topology.components.values():
        if _has_check(component):
            plan = plan or Plan.of(topology, config.without_secrets(), config.partitions or 1, 0)
            context = plan.context(component, component.task_ids[0], Clock())
            yield component.id, _raised(component, config, context)


def unchecked(topology: Topology) -> list[str]:
    """The spouts, sinks and connectors without a ``check``: nobody knows whether what they need is there."""
    return [
        component.id
        for component in topology.components.values()
        if _reaches_out(component) and not _has_check(component)
    ]


def _reaches_out(component: Component) -> bool:
    if (
        component.gated is not None
        or component.is_dataframe
        or isinstance(component.user_object, IterableSpout)
    ):
        return False
    is_connector = type(component.user_object).__module__.startswith("acktree.connectors.")
    return component.kind == "spout" or component.is_sink or is_connector


def refuse_unusable(topology: Topology, config: Config) -> None:
    """Refuse a topology of which some component cannot work.

    What is away for now is logged, and refuses nothing: messages wait for it.

    Raises:
        ConfigError, ConnectorError: What the first such component raised; the others are among its notes.
    """
    raised = [(name, error) for name, error in checks_of(topology, config) if error is not None]
    for name, error in raised:
        if _may_pass(error):
            log.warning("topology=%s component=%s %s (%s)", topology.name, name, error.what, error.where)
    refused = [error for _, error in raised if not _may_pass(error)]
    if refused:
        for other in refused[1:]:
            refused[0].add_note(str(other))
        raise refused[0]


def _may_pass(error: AcktreeError) -> bool:
    return isinstance(error, ConnectorError) and error.can_retry


def _has_check(component: Component) -> bool:
    forms = ["config", "context"], ["conf", "context"]
    return optional_hook(component.user_object, "check", *forms) is not None


def optional_hook(user_object: object, name: str, *arguments: Sequence[str]) -> Callable[..., object] | None:
    """A method that a component may have; None if it has none.

    Args:
        user_object: The spout, bolt or sink.
        name: Of the method.
        arguments: The names of its arguments, in one or more forms. A method of this name with other
            arguments is the user's own.
    """
    try:
        method = getattr(user_object, name, None)
        parameters = [*inspect.signature(method).parameters]  # type: ignore[arg-type]  # None is no callable
    except Exception:  # noqa: BLE001  # also what an attribute of the user raises
        return None
    return method if parameters in map(list, arguments) else None


def _raised(component: Component, config: Config, context: TaskContext) -> AcktreeError | None:
    """What the check of a component raises. It is made on a copy: the topology stays as it is."""
    where = f"{component.kind} {component.id!r}"
    try:
        copy.deepcopy(component.user_object).check(config, context)
    except (ConfigError, ConnectorError) as error:
        where = f"{where}: {error.where}" if error.where else where
        if isinstance(error, ConfigError):
            return ConfigError(error.what, where, error.fix)
        return ConnectorError(error.what, where, error.fix, can_retry=error.can_retry)
    except Exception as error:  # noqa: BLE001  # user code
        fix = "correct what the exception says, or raise a ConfigError with the fix"
        return ConfigError(f"check() raised {error_text(error)}", where, fix)
    return None
