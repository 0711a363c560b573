"""A topology that was read from a program of Storm's, and its settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from acktree import Config, ConfigError, Description, Topology
from acktree.logs.loggers import logger

__all__ = ["LoadedTopology", "config_of"]

log = logger("acktree")

_OF_STORM: Final = frozenset(
    {
        "drpc", "executor", "logviewer", "nimbus", "pacemaker", "storm", "supervisor", "task", "topology",
        "ui", "worker",
    }
)  # fmt: skip
"""What the keys of Storm's own settings begin with."""
_SILENT: Final = frozenset(
    {
        "install_virtualenv", "storm.workers.list", "sudo_user", "topology.name", "topology.original_name",
        "topology.python.path", "use_virtualenv", "virtualenv_flags", "virtualenv_name", "virtualenv_root",
    }
)  # fmt: skip
"""Settings that tools add to every topology, and that say nothing of it."""


@dataclass(frozen=True)
class LoadedTopology:
    """A topology, as ``submit`` and ``LocalCluster`` take it.

    Attributes:
        name: Its name.
        topology: The topology.
        config: Its settings.
        ignored: Settings that have no effect, with the reason.
        unset: Placeholders of a Flux file that have no value and are a whole text, each with its line.
    """

    name: str
    topology: Topology
    config: Config
    ignored: Mapping[str, str]
    unset: tuple[str, ...] = ()

    def describe(self) -> Description:
        """Its components, streams and levels."""
        return self.topology.describe(self.config.partitions or 2)


def config_of(settings: Mapping[str, Any], *, used: Collection[str] = ()) -> tuple[Config, dict[str, str]]:
    """The settings that acktree has, and the reason for each of Storm's that it does not have.

    Settings that are not Storm's are the user's: streamparse gives them to its components, Flux does not.

    Args:
        settings: All settings.
        used: Those that have an effect on components, though acktree's ``Config`` does not have them.

    Raises:
        ConfigError: A setting has a value that it cannot have.
    """
    known = Config().to_mapping().keys()
    ignored: dict[str, str] = {}
    for key in settings:
        if key not in {*known, *used, *_SILENT} and key.partition(".")[0] in _OF_STORM:
            try:
                Config.from_mapping({key: settings[key]})
            except ConfigError as error:  # "acktree has no setting topology.workers: Spark decides ..."
                _, _, reason = error.what.partition(": ")
                if reason:
                    ignored[key] = f"{reason}; {error.fix}"
                    log.info("setting %s has no effect: %s", key, ignored[key])
    return Config.from_mapping({key: value for key, value in settings.items() if key in known}), ignored
