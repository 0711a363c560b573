"""Reads of a project, under the names that programs import."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from acktree.streamparse import project
from acktree.streamparse.dsl import Topology

__all__ = ["get_config", "get_env_config", "get_topology_definition", "get_topology_from_file"]


def get_config(config_file: TextIO | None = None) -> dict[str, Any]:
    """The project's ``config.json``."""
    return project.read_config(config_file)


def get_env_config(
    env_name: str | None = None, config_file: TextIO | None = None
) -> tuple[str, dict[str, Any]]:
    """The name and the settings of an environment."""
    return project.environment_of(project.read_config(config_file), env_name)


def get_topology_definition(
    topology_name: str | None = None, config_file: TextIO | None = None
) -> tuple[str, str]:
    """The name and the file of a topology."""
    name, file = project.topology_file(project.read_config(config_file), topology_name)
    return name, str(file)


def get_topology_from_file(topology_file: str) -> type[Topology]:
    """The topology class of a file."""
    return project.topology_in(Path(topology_file))
