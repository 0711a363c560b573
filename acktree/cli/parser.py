"""The parser of the command line: it names the nearest command or option, and the usage of the command."""

from __future__ import annotations

import re
import sys
from argparse import PARSER, Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from acktree.errors import closest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["NamingParser"]

_SIMILAR: Final = 0.7
"""How similar a word must be to what was probably meant: of short options many are half alike."""
_INVALID_CHOICE: Final = re.compile(r"invalid choice: '(?P<given>.*?)' \(choose from (?P<known>.*)\)$")


class NamingParser(ArgumentParser):
    """An ``ArgumentParser`` whose errors name what was probably meant. Its commands have parsers like it."""

    def parse_known_args(  # type: ignore[override]  # two overloads there
        self,
        args: Sequence[str] | None = None,
        namespace: Any = None,  # noqa: ANN401  # as argparse has it
    ) -> tuple[Namespace, list[str]]:
        """Refuse what is left over here, and not in the parser above, whose usage has no options.

        Raises:
            SystemExit: Something is left over.
        """
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            known = re.findall(r"(?<![\w-])--?[\w-]+", self.format_usage())
            near = [_meant(each.partition("=")[0], known) for each in rest if each.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(rest)}{''.join(near[:1])}")
        return parsed, rest

    def _get_value(self, action: Action, arg_string: str) -> Any:  # noqa: ANN401  # as argparse has it
        """Refuse an empty value: a script whose variable is unset would name the folder that it is in."""
        if not arg_string and action.nargs != PARSER:
            raise ArgumentError(action, "it has no value: is a variable of your script unset?")
        return super()._get_value(action, arg_string)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print a help text or a usage. OSError where stdout has no room; argparse says nothing then."""
        with nullcontext() if file is sys.stdout else suppress(OSError):
            print(message, end="", file=file or sys.stderr, flush=True)  # type: ignore[arg-type]  # either stream

    def error(self, message: str) -> NoReturn:
        """Exit with the usage; an invalid choice is answered with the nearest one."""
        if found := _INVALID_CHOICE.search(message):
            message += _meant(found["given"], re.findall(r"[\w-]+", found["known"]))
        super().error(message)


def _meant(given: str, known: Sequence[str]) -> str:
    close = closest(given, known, _SIMILAR)
    return "" if close is None else f"; did you mean {close!r}?"
