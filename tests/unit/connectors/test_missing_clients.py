"""A connector without its client says which extra brings it."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("extra", "client"), [("rabbitmq", "pika"), ("redis", "redis"), ("nats", "nats"), ("sqs", "boto3")]
)
def test_a_connector_without_its_client_names_its_extra(extra: str, client: str, monkeypatch) -> None:
    for name in [*sys.modules]:
        if name == client or name.startswith((f"{client}.", f"acktree.connectors.{extra}")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install '\.\[{extra}\]' in a clone") as missing:
        importlib.import_module(f"acktree.connectors.{extra}")
    assert (missing.value.name or "").partition(".")[0] == client


def test_kestrel_needs_none() -> None:
    importlib.import_module("acktree.connectors.kestrel")
