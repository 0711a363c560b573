"""Spouts of a topology."""

from __future__ import annotations

from typing import Any

from acktree import pystorm
from acktree.streamparse.dsl.spout import JavaSpoutSpec, ShellSpoutSpec
from acktree.streamparse.storm.component import Component

__all__ = ["JavaSpout", "ReliableSpout", "ShellSpout", "Spout"]


class JavaSpout(Component):
    """A spout written in Java. It can be described, and not run."""

    @classmethod
    def spec(cls, name: str | None = None, serialized_java: Any = None, full_class_name: Any = None,
             args_list: Any = None, par: Any = 1, config: Any = None,
             outputs: Any = None) -> JavaSpoutSpec:  # fmt: skip
        """The spec; see ``JavaComponentSpec`` and ``ComponentSpec``."""
        return JavaSpoutSpec(
            cls, name, serialized_java, full_class_name, args_list, par=par, config=config, outputs=outputs
        )


class ShellSpout(Component):
    """A spout in another language, which is a child process."""

    @classmethod
    def spec(cls, name: str | None = None, command: Any = None, script: Any = None, par: Any = None,
             config: Any = None, outputs: Any = None) -> ShellSpoutSpec:  # fmt: skip
        """The spec; see ``ShellComponentSpec`` and ``ComponentSpec``."""
        return ShellSpoutSpec(cls, name, command, script, par=par, config=config, outputs=outputs)


class Spout(pystorm.Spout, ShellSpout):
    """A spout written in Python."""

    @classmethod
    def spec(cls, name: str | None = None, par: Any = None, config: Any = None,  # type: ignore[override]  # streamparse's
             outputs: Any = None) -> ShellSpoutSpec:  # fmt: skip
        """The spec; see ``ComponentSpec``. ``outputs`` is not in streamparse."""
        script = f"{cls.__module__}.{cls.__name__}"
        return ShellSpoutSpec(cls, name, "streamparse_run", script, par=par, config=config, outputs=outputs)


class ReliableSpout(pystorm.ReliableSpout, Spout):
    """A spout that emits a failed message again, up to ``max_fails`` times."""
