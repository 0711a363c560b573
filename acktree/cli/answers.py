"""What commands share: their arguments, and their answer (a value, the same as text, an exit code)."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

from acktree.errors import AcktreeError, ConfigError
from acktree.logs.loggers import print_by_default
from acktree.texts import is_number, printable, printable_lines
from acktree.ui.client import DoorClient, Found
from acktree.ui.known_names import SECS
from acktree.ui.order_log import CLI, Order
from acktree.ui.web.storm_rows import duration

__all__ = [
    "DONE",
    "FAILED",
    "NEW_LETTERS",
    "NOBODY_RUNS",
    "TIME_OVER",
    "USAGE",
    "Answer",
    "Answers",
    "Commands",
    "NewLettersError",
    "UsageError",
    "above_zero",
    "as_json",
    "as_text",
    "door_of",
    "duration",
    "letter_id",
    "limit",
    "log_order",
    "named",
    "new_command",
    "seconds",
    "secs_up_to",
    "table",
    "whole_number",
]

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOBODY_RUNS: Final = 3
TIME_OVER: Final = 4
NEW_LETTERS: Final = 5
_GROUPED: Final = re.compile(r"\d{1,3}(,\d{3})+", re.ASCII)
_LEAST_WAIT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a command.

    Attributes:
        data: What ``--json`` prints; None for nothing.
        text: What is printed without it.
        code: The exit code, if this is the last answer.
        error: Raised when this was printed; None for none.
    """

    data: Any
    text: str
    code: int = DONE
    error: BaseException | None = None


Answers: TypeAlias = Answer | Iterable[Answer]
Command: TypeAlias = Callable[[Namespace], Answers]


class UsageError(AcktreeError):
    """The arguments of a command are wrong, whatever the topology is."""


class NewLettersError(AcktreeError):
    """Messages of a run became dead letters, and the command was to fail then."""


class Commands(Protocol):
    """What ``ArgumentParser.add_subparsers`` returns."""

    def add_parser(self, name: str, *, help: str, description: str = "") -> ArgumentParser:  # noqa: A002
        """Add a command."""


def new_command(
    commands: Commands, name: str, about: str, run: Command, *, names: bool = True, waits: bool = True
) -> ArgumentParser:
    """Add a command with what all have in common.

    Args:
        commands: Where to.
        name: Its name.
        about: One line for the help.
        run: What it does.
        names: Whether its first argument names a topology.
        waits: Whether it waits for something, and may be told for how long.
    """
    parser = commands.add_parser(name, help=about, description=f"{about[:1].upper()}{about[1:]}.")
    if names:
        parser.add_argument("topology", help="its name, its id, or its checkpoint")
    parser.add_argument("--json", action="store_true", help="print JSON, one value a line")
    if waits:
        parser.add_argument(
            "--timeout",
            type=seconds,
            metavar="SECS",
            help="wait at most SECS seconds; the exit code is 4 when they are over",
        )
    parser.set_defaults(run=run)
    return parser


def seconds(text: str) -> float:
    """A time of the command line. ArgumentTypeError, which argparse reports, for what is none."""
    with suppress(ConfigError):
        return float(SECS.read(text, "", is_text=True))
    raise ArgumentTypeError(f"{text!r:.60} is no time: give seconds, 0 or more")


def above_zero(text: str) -> float:
    """A time of the command line that is longer than 0. ArgumentTypeError for what is none."""
    if secs := seconds(text):
        return secs
    raise ArgumentTypeError("a time here is longer than 0 seconds")


def secs_up_to(most: float) -> Callable[[str], float]:
    """Reads a time that is longer than 0. ArgumentTypeError for what is none, and for more than ``most``."""

    def read(text: str) -> float:
        secs = above_zero(text)
        if secs <= most:
            return secs
        raise ArgumentTypeError(f"{text!r:.60} is too long: give {most:,.0f} seconds at most")

    return read


def letter_id(text: str) -> int:
    """The number of a dead letter, also as the page shows it: 2,183. ArgumentTypeError for what is none."""
    digits = text.replace(",", "") if _GROUPED.fullmatch(text) else text
    if not is_number(digits) or not 0 < int(digits) < 1 << 63:
        raise ArgumentTypeError(f"{text!r:.60} is no number of a dead letter: see acktree dead-letters list")
    return int(digits)


def whole_number(text: str) -> int:
    """A whole number, 0 or more. ArgumentTypeError for what is none."""
    if not is_number(text) or int(text) >= 1 << 63:
        raise ArgumentTypeError(f"{text!r:.60} is no whole number")
    return int(text)


def limit(most: int) -> Callable[[str], int]:
    """Reads how many things a command shows. ArgumentTypeError for less than 1 and more than ``most``."""

    def read(text: str) -> int:
        if is_number(text) and 1 <= int(text) <= most:
            return int(text)
        raise ArgumentTypeError(f"{text!r:.60} is no number from 1 to {most:,}")

    return read


def door_of(target: Found, options: Namespace) -> DoorClient:
    """A driver's socket, with the wait that ``--timeout`` gives. NobodyRunsError where there is none."""
    door = replace(target.door, by=CLI)
    return door if options.timeout is None else replace(door, timeout_secs=max(_LEAST_WAIT, options.timeout))


def log_order(
    name: str, topology: str | None, place: str, given: Mapping[str, Any], done: Mapping[str, Any]
) -> None:
    """Log an order that this command has carried out by itself, to stderr: no driver logs it.

    One that is refused has its error there.

    Args:
        name: What was ordered.
        topology: The topology's name; None where it is not known.
        place: Its checkpoint, or the URL of its dead letters.
        given: What came with the order.
        done: What came of it.
    """
    print_by_default()
    Order(name, CLI, topology, place, given).is_done(done)


def as_text(answer: Answer) -> str:
    """An answer for a terminal: whatever its values are, no control character reaches it."""
    return printable_lines(answer.text)


def as_json(value: object) -> str:
    """A value as one line of JSON, in ASCII: no control character is in it."""
    return json.dumps(value)


def error_json(error: AcktreeError) -> str:
    """An error as one line of JSON."""
    return as_json({"error": error.what, "where": error.where, "fix": error.fix})


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows with aligned columns: numbers to the right, all else to the left.

    A number gets commas. An id is given as a text: what one command prints the next one takes.
    """
    raw = [[*row] for row in rows]
    shown = [[*head], *([_cell(value) for value in row] for row in raw)]
    widths = [max(len(line[at]) for line in shown) for at in range(len(head))]
    right = [
        bool(raw) and all(isinstance(row[at], int | float | None) for row in raw) for at in range(len(head))
    ]
    lines = (
        "  ".join(cell.rjust(width) if is_right else cell.ljust(width)
                  for cell, width, is_right in zip(line, widths, right, strict=True)).rstrip()
        for line in shown
    )  # fmt: skip
    return "\n".join(lines)


def named(message_id: str | None, message: Mapping[str, Any]) -> str:
    """A message in a table: what people call it, if it has a label, and its id.

    An older driver gives no labels.
    """
    return " ".join(filter(None, (message.get("label"), message_id)))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return printable(str(value))
