"""``acktree``: parses the arguments, runs one command, prints its answers, and returns the exit code.

Exit codes: 0 done, 1 refused or failed, 2 usage, 3 nobody runs the topology, 4 the time is over, 130 and 143
when Ctrl-C or SIGTERM ended it. An error is printed to stderr: what happened, where, and what to do.

Source: the names of the commands are Storm's.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import PARSER, Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from acktree.cli import (
    answers,
    control,
    dead_letters,
    doctor,
    events,
    flux,
    health,
    live,
    offline,
    run,
    sparse,
    trace,
    watch,
    web,
)
from acktree.cli.answers import Answer, Answers
from acktree.driver.signals import signals_raise
from acktree.errors import AcktreeError, closest
from acktree.system.stopped_by import StoppedBySignal
from acktree.texts import printable_lines
from acktree.ui.client import NobodyRunsError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_SIMILAR: Final = 0.7
"""How similar a word must be to what was probably meant: of short options many are half alike."""
_INVALID_CHOICE: Final = re.compile(r"invalid choice: '(?P<given>.*?)' \(choose from (?P<known>.*)\)$")


class _NamingParser(ArgumentParser):
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


_FAMILIES = (
    run, watch, live, control, trace, events, dead_letters, web, health, doctor, offline, sparse, flux,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    Args:
        arguments: The command-line arguments. None: those of this process.
    """
    _open_what_is_closed()
    try:
        given = _parser().parse_args(arguments)
    except OSError as error:
        return _no_help(error)
    if str(Path.cwd()) not in sys.path:  # topologies, and classes of remembered values, are the user's
        sys.path.insert(0, str(Path.cwd()))
    try:
        with signals_raise():
            return _print(given.run(given), is_json=given.json)
    except StoppedBySignal as stopped:
        return int(str(stopped.code))
    except AcktreeError as error:
        return _refuse(error, _code_of(error), is_json=given.json)
    except TimeoutError as error:
        over = AcktreeError(str(error), f"acktree {given.command}", "ask again, or give a longer --timeout")
        return _refuse(over, answers.TIME_OVER, is_json=given.json)
    except BrokenPipeError:  # as below
        _drop_output()
        return answers.DONE


def _print(said: Answers, *, is_json: bool) -> int:
    code = answers.DONE
    for answer in _each(said):
        shown = answers.as_json(answer.data) if is_json else answers.as_text(answer)
        code = answer.code
        try:
            if (answer.data is not None) if is_json else answer.text:
                print(shown, flush=True)
        except BrokenPipeError:  # the reader of a pipe has enough; what was done stays done, or failed
            _drop_output()
            if answer.error is None:
                return code
        except OSError as error:
            _drop_output()
            raise answer.error or _not_written(error) from error
        if answer.error is not None:
            raise answer.error
    return code


def _no_help(error: OSError) -> int:
    """The exit code where a help text cannot be written."""
    _drop_output()
    if isinstance(error, BrokenPipeError):  # as below
        return answers.DONE
    return _refuse(_not_written(error), answers.FAILED, is_json=False)


def _not_written(error: OSError) -> AcktreeError:
    return AcktreeError(
        f"the answer cannot be written: {error.strerror or error}", "stdout",
        "give the output a place with room, such as /dev/null; an order was carried out all the same",
    )  # fmt: skip


def _open_what_is_closed() -> None:
    """Open the standard streams that the caller has closed: the next file would get their numbers.

    stdin is empty then, stderr goes nowhere, and what is written to stdout fails.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, os.fdopen(opened, mode))


def _drop_output() -> None:
    """What is still printed goes nowhere: Python would raise again when it flushes stdout at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _each(said: Answers) -> Iterable[Answer]:
    return [said] if isinstance(said, Answer) else said


def _code_of(error: AcktreeError) -> int:
    if isinstance(error, NobodyRunsError):
        return answers.NOBODY_RUNS
    if isinstance(error, answers.NewLettersError):
        return answers.NEW_LETTERS
    return answers.USAGE if isinstance(error, answers.UsageError) else answers.FAILED


def _refuse(error: AcktreeError, code: int, *, is_json: bool) -> int:
    said = answers.error_json(error) if is_json else printable_lines(f"acktree: {error}")
    with suppress(OSError):
        print(said, file=sys.stderr)
    return code


@cache  # a program that runs many commands, a test for example, would make 120 parsers for each
def _parser() -> _NamingParser:
    parser = _NamingParser("acktree", description="Storm topologies on Spark: run, watch, repair.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for family in _FAMILIES:
        family.add_to(commands)
    return parser
