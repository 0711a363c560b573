"""Bolts of a topology."""

from __future__ import annotations

from typing import Any

from acktree import pystorm
from acktree.streamparse.dsl.bolt import JavaBoltSpec, ShellBoltSpec
from acktree.streamparse.storm.component import Component

__all__ = ["BatchingBolt", "Bolt", "JavaBolt", "ShellBolt", "TicklessBatchingBolt"]


class JavaBolt(Component):
    """A bolt written in Java. It can be described, and not run."""

    @classmethod
    def spec(cls, name: str | None = None, serialized_java: Any = None, full_class_name: Any = None,
             args_list: Any = None, inputs: Any = None, par: Any = 1, config: Any = None, outputs: Any = None) -> JavaBoltSpec:  # noqa: E501  # checked there  # fmt: skip
        """The spec; see ``JavaComponentSpec`` and ``ComponentSpec``."""
        return JavaBoltSpec(
            cls, name, serialized_java, full_class_name, args_list,
            inputs=inputs, par=par, config=config, outputs=outputs,
        )  # fmt: skip


class ShellBolt(Component):
    """A bolt in another language, which is a child process."""

    @classmethod
    def spec(cls, name: str | None = None, command: Any = None, script: Any = None, inputs: Any = None,
             par: Any = None, config: Any = None, outputs: Any = None) -> ShellBoltSpec:  # fmt: skip
        """The spec; see ``ShellComponentSpec`` and ``ComponentSpec``."""
        more = {"inputs": inputs, "par": par, "config": config, "outputs": outputs}
        return ShellBoltSpec(cls, name, command, script, **more)


class Bolt(pystorm.Bolt, ShellBolt):
    """A bolt written in Python."""

    @classmethod
    def spec(cls, name: str | None = None, inputs: Any = None, par: Any = None, config: Any = None,  # type: ignore[override]  # streamparse's
             outputs: Any = None) -> ShellBoltSpec:  # fmt: skip
        """The spec; see ``ComponentSpec``. ``outputs`` is not in streamparse."""
        script = f"{cls.__module__}.{cls.__name__}"
        more = {"inputs": inputs, "par": par, "config": config, "outputs": outputs}
        return ShellBoltSpec(cls, name, "streamparse_run", script, **more)


class BatchingBolt(pystorm.BatchingBolt, Bolt):
    """A bolt that collects tuples, and processes them in batches when ticks come."""


class TicklessBatchingBolt(pystorm.TicklessBatchingBolt, BatchingBolt):
    """A bolt that collects tuples, and processes them in batches at an interval."""
