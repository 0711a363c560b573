"""A misspelt argument of a connector is answered with the nearest one."""

from __future__ import annotations

import inspect
import pkgutil

import pytest

import acktree.connectors
from acktree import ConfigError, Spout
from acktree.bolt import AnyBolt
from acktree.connectors.files import FolderSpout

MODULES = [
    module.name for module in pkgutil.walk_packages(acktree.connectors.__path__, "acktree.connectors.")
]


@pytest.mark.parametrize("module", MODULES)
def test_every_connector_names_an_argument_that_it_does_not_have(module: str) -> None:
    found = pytest.importorskip(module, exc_type=ModuleNotFoundError)  # its client may be missing
    for made in vars(found).values():
        if not (isinstance(made, type) and issubclass(made, (Spout, AnyBolt)) and made.__module__ == module):
            continue
        if made.__init__ is AnyBolt.__init__:  # a base class without arguments
            continue
        first = next(iter(inspect.signature(made).parameters))
        with pytest.raises(ConfigError, match=f"{made.__name__} has no argument") as caught:
            made(**{f"{first}z": 1})
        assert caught.value.fix == f"did you mean {first!r}?"


def test_an_argument_by_keyword_alone_is_named_too() -> None:
    redis = pytest.importorskip("acktree.connectors.redis", exc_type=ModuleNotFoundError)
    with pytest.raises(ConfigError, match="RedisStreamSink has no argument 'maxlength'") as caught:
        redis.RedisStreamSink("redis://localhost", "s", maxlength=5)
    assert "maxlen" in caught.value.fix


def test_a_class_of_the_users_raises_what_python_raises() -> None:
    class Mine(FolderSpout):
        def __init__(self, path):
            super().__init__(path)

    with pytest.raises(TypeError, match="unexpected keyword"):
        Mine(pth="/")
