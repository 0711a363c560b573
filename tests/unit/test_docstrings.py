"""Every public name has a docstring, its own or the one of the base whose contract it fulfils."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import acktree

MODULES = sorted(module.name for module in pkgutil.walk_packages(acktree.__path__, "acktree."))


def public_names(module):
    """Each class and function that this module defines, and what its classes define in public."""
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(member) or inspect.isfunction(member):
            yield name, member
        if inspect.isclass(member):
            for inner in vars(member):
                found = getattr(member, inner)
                if not inner.startswith("_") and (inspect.isroutine(found) or isinstance(found, property)):
                    yield f"{name}.{inner}", found


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "acktree":
            raise
        pytest.skip(f"needs the extra that brings {missing.name}")
    silent = [public for public, member in public_names(module) if not inspect.getdoc(member)]
    assert module.__doc__
    assert not silent
