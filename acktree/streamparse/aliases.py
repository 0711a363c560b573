"""``install()``: ``import streamparse`` and ``import pystorm`` give acktree's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from acktree import ConfigError

__all__ = ["install", "is_installed"]


class _Aliases(MetaPathFinder, Loader):
    """Finds each module of both packages as the module of acktree with the same name."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # of the contract
        target: ModuleType | None = None,  # noqa: ARG002  # of the contract
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in {"pystorm", "streamparse"}:
            return None
        found = importlib.util.find_spec(f"acktree.{fullname}")
        return found and ModuleSpec(fullname, self, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make one, which is replaced."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(f"acktree.{module.__name__}")


def install() -> None:
    """From now on ``import streamparse`` and ``import pystorm`` give acktree's, here and in Spark's workers.

    Call it before the first import of a program's modules. A second call does nothing.

    Raises:
        ConfigError: The packages themselves are imported already.
    """
    for name in ("pystorm", "streamparse"):
        found = sys.modules.get(name)
        if found is not None and found.__name__ != f"acktree.{name}":
            raise ConfigError(
                f"the package {name} itself is imported already", "acktree.streamparse.install()",
                "call install() before the first import of the program's modules",
            )  # fmt: skip
    if not is_installed():
        sys.meta_path.insert(0, _Aliases())


def is_installed() -> bool:
    """Whether :func:`install` was called in this process."""
    return any(isinstance(finder, _Aliases) for finder in sys.meta_path)
