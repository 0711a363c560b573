"""Static HTML for notebooks: tables and texts, all of it escaped, without scripts and without links.

Values, ids and reasons may be untrusted text: a tag in one is shown as text.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from acktree.texts import bounded, printable

__all__ = ["block", "note", "table", "text"]

_MOST_CELL = 200
_CELL = "padding:2px 8px;text-align:{align};border-bottom:1px solid #8884"


def text(value: object) -> str:
    """A value as escaped text on one line, shortened.

    >>> text("<b>1</b>")
    '&lt;b&gt;1&lt;/b&gt;'
    """
    return html.escape(printable(bounded(str(value), _MOST_CELL)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right_from: int = 1) -> str:
    """A table of texts.

    Args:
        head: The titles of its columns.
        rows: Its cells; None is an empty one.
        right_from: From this column on, cells are aligned to the right.
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        shown = (
            f'<{tag} style="{_CELL.format(align="right" if at >= right_from else "left")}">'
            f"{'' if cell is None else text(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<table style="border-collapse:collapse">{line("th", head)}{body}</table>'


def note(said: object) -> str:
    """A line below a table."""
    return f'<div style="opacity:0.7">{text(said)}</div>'


def block(title: object, *parts: str) -> str:
    """Parts of HTML below a title."""
    return f"<div><b>{text(title)}</b>{''.join(parts)}</div>"
