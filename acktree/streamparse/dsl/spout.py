"""Specs of spouts."""

from __future__ import annotations

from acktree.streamparse.dsl.component import JavaComponentSpec, ShellComponentSpec

__all__ = ["JavaSpoutSpec", "ShellSpoutSpec"]


class ShellSpoutSpec(ShellComponentSpec):
    """A spout that is a child process, or a Python class."""


class JavaSpoutSpec(JavaComponentSpec):
    """A spout written in Java."""
