"""Specs of bolts."""

from __future__ import annotations

from acktree.streamparse.dsl.component import JavaComponentSpec, ShellComponentSpec

__all__ = ["JavaBoltSpec", "ShellBoltSpec"]


class ShellBoltSpec(ShellComponentSpec):
    """A bolt that is a child process, or a Python class."""


class JavaBoltSpec(JavaComponentSpec):
    """A bolt written in Java."""
