"""One module's own ``os``, ``time`` or ``shutil``, of which a test replaces functions."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def replace(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, library: str, **functions: Callable[..., Any]
) -> None:
    """Let ``module`` see other ``functions`` in the library that it imports by the name ``library``.

    A patch of the library itself would reach every thread of the test process, also threads of other tests.
    """
    own = SimpleNamespace(**vars(getattr(module, library)) | functions)
    monkeypatch.setattr(module, library, own)
