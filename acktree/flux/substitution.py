"""Placeholders in a file, ``${key}``, ``${list[0]}`` and ``${ENV-NAME}``, and the properties for them.

Rules of this file
------------------
1. Every placeholder of a line is replaced, left to right; none in a text that replaced another.
2. A placeholder without a value stays as it is, and is returned with its line.
3. The line numbers of the result lead back to those of the file: a value may have several lines.

Source: Storm's ``FluxParser.loadYaml`` and ``java.util.Properties``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Substituted", "properties_in", "substitute"]

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]+)\}")
_BREAK: Final = re.compile("(\r\n|[\r\n\x85\u2028\u2029])")
"""What YAML takes for the end of a line."""
_ELEMENT: Final = re.compile(r"(.+)\[(\d{1,6})\]")
_ENVIRONMENT: Final = "ENV-"
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PAIR: Final = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Substituted:
    """A text whose placeholders are replaced.

    Attributes:
        text: The text.
        lines: The line of the file, from 1, of each line of the text.
        missing: The placeholders that stay, each with its line of the file.
    """

    text: str
    lines: tuple[int, ...]
    missing: tuple[tuple[str, int], ...]


def substitute(
    text: str, properties: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Substituted:
    """Replace the placeholders of a text; those of a line that is a comment stay.

    Args:
        text: The text of a file.
        properties: The values of ``${key}``.
        environment: The values of ``${ENV-NAME}``. None: they are not replaced.

    >>> substitute("a: ${x} and ${ENV-HOME}, ${y}", {"x": "${y}"}, {"HOME": "/root"}).text
    'a: ${y} and /root, ${y}'
    """
    parts: list[str] = []
    lines: list[int] = []
    missing: list[tuple[str, int]] = []
    pieces = _BREAK.split(text)
    for number, line in enumerate(pieces[::2], 1):

        def value(found: re.Match[str], number: int = number) -> str:
            replaced = _value(found[1], properties, environment)
            if replaced is None:
                missing.append((found[0], number))
                return found[0]
            return replaced

        new = line if line.lstrip().startswith("#") else _PLACEHOLDER.sub(value, line)
        lines += [number] * (1 + len(_BREAK.findall(new)))
        parts += [new, *pieces[2 * number - 1 : 2 * number]]
    return Substituted("".join(parts), tuple(lines), tuple(missing))


def _value(key: str, properties: Mapping[str, str], environment: Mapping[str, str] | None) -> str | None:
    if key.startswith(_ENVIRONMENT):
        return None if environment is None else environment.get(key.removeprefix(_ENVIRONMENT))
    if key in properties:
        return properties[key]
    element = _ELEMENT.fullmatch(key)
    if element is None or element[1] not in properties:
        return None
    elements = [each.strip()[1:-1] for each in properties[element[1]].strip()[1:-1].split(",")]
    return elements[int(element[2])] if int(element[2]) < len(elements) else None


def properties_in(text: str) -> dict[str, str]:
    r"""The pairs of a properties file; of two with the same key the last counts, as in Java.

    >>> properties_in("# a comment\na.b = 1\nc: x \\\n   y\n\u00e9 \\u00e9")
    {'a.b': '1', 'c': 'x y', 'é': 'é'}
    """
    pairs = (_PAIR.fullmatch(line) for line in _logical_lines(text))
    return {_unescaped(pair[1]): _unescaped(pair[2]) for pair in pairs if pair is not None}


def _logical_lines(text: str) -> Iterator[str]:
    """The lines without comments; one that ends with an odd number of backslashes goes on in the next."""
    begun = ""
    for line in re.split("\r\n|[\r\n]", text):
        part = line.lstrip(" \t\f")
        if not begun and (not part or part[0] in "#!"):
            continue
        begun += part
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _CONTROLS.get(escape, escape)

    return _ESCAPED.sub(character, text)
