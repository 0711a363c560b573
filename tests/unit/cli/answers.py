"""What a command printed as JSON."""

from __future__ import annotations

import json
from typing import Any

from acktree.cli.main import main

__all__ = ["said"]


def said(capsys: Any, *command: str) -> Any:
    """The last answer of a command, which was done."""
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])
