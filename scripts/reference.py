"""Writes the reference of the public surface, from docstrings, as web pages. Strict: a warning is an error.

Usage: python scripts/reference.py FOLDER

Source: pdoc, which shows what ``__all__`` names and reads Google's style of docstrings.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from html import unescape
from importlib import import_module
from pathlib import Path

import pdoc
import pyarrow as pa

PAGES = (
    "acktree",
    "acktree.testing",
    "acktree.multilang",
    "acktree.pystorm",
    "acktree.streamparse",
    "acktree.streamparse.testing",
    "acktree.states",
    "acktree.flux",
    "acktree.connectors.files",
    "acktree.connectors.log_files",
    "acktree.connectors.parquet_files",
    "acktree.connectors.rabbitmq",
    "acktree.connectors.redis",
    "acktree.connectors.sql",
)
"""The public modules."""


def write(folder: Path) -> list[str]:
    """Write the pages; returns the public names that are in none of them."""
    warnings.simplefilter("error")
    modules = [import_module(name) for name in PAGES]
    for module in modules:
        for name in module.__all__:  # pdoc does not ask for names that are imported when they are asked for
            setattr(module, name, getattr(module, name))
    fields = Sequence[str] | pa.Schema
    loaded = [each for name, each in sys.modules.items() if name.startswith("acktree")]
    for module in filter(lambda each: hasattr(each, "Outputs"), loaded):
        module.Outputs = fields | Mapping[str, fields]  # a text in the source, since it names PyArrow
    pdoc.render.configure(docformat="google", search=False)
    pdoc.pdoc(*PAGES, output_directory=folder)
    missing = []
    for module in modules:
        page = unescape((folder / (module.__name__.replace(".", "/") + ".html")).read_text(encoding="utf-8"))
        missing += [f"{module.__name__}.{name}" for name in module.__all__ if f'id="{name}"' not in page]
    return missing


if __name__ == "__main__":
    missing = write(Path(sys.argv[1]))
    print(f"{len(PAGES)} modules are in {sys.argv[1]}/index.html")
    sys.exit(f"not in the reference: {', '.join(missing)}" if missing else 0)
