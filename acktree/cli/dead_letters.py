"""``acktree dead-letters list|show|redrive|purge|export``.

A running topology is asked through its driver. Of a stopped one the file in its checkpoint is read, and what
is to be sent again is noted there for the next run. Orders by filter name the count that was shown, and are
refused where it has changed.
"""

from __future__ import annotations

import base64
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from acktree.cli.answers import (
    Answer,
    Commands,
    UsageError,
    door_of,
    letter_id,
    limit,
    log_order,
    named,
    new_command,
    table,
    whole_number,
)
from acktree.core.tracking.verdicts import FailureCause, FailureKind
from acktree.dead_letters.store import DeadLetters
from acktree.dead_letters.summary import LetterGroup
from acktree.errors import AcktreeError, ConfigError, MisuseError, nearest
from acktree.texts import bounded, is_number, printable
from acktree.ui import letters
from acktree.ui.client import Found, find
from acktree.ui.known_names import MOST_PAGE, TRUTH
from acktree.ui.stopped import letters_of, order_redrive, redrives_ordered

_FILTERS: Final = (
    "spout", "component", "label", "kind", "cause", "reason", "exception", "redriven", "settled", "before",
    "since",
)  # fmt: skip
_CHOOSING: Final = {
    "spout": "the spout of the message",
    "component": "the bolt that failed it",
    "label": "what people call the message: the label that its spout gave",
    "reason": "a text that the reason contains",
    "exception": "the type of the exception, such as ValueError",
}
_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "kind": [str(each) for each in FailureKind],
    "cause": [str(each) for each in FailureCause],
}
_STATES: Final = {
    "redriven": "whether it was sent again",
    "settled": "whether the message that was sent again has its verdict",
}
_MOST_SHOWN: Final = 60
_MOST_VALUE: Final = 2_000


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    parent = commands.add_parser("dead-letters", help="messages that were given up")
    family = parent.add_subparsers(required=True, metavar="COMMAND", dest="command")
    to_list = _filtered(new_command(family, "list", "list them, lowest id first", _list))
    to_list.add_argument(
        "--limit", type=limit(MOST_PAGE), default=50, metavar="N",
        help=f"show at most N letters (default: 50, at most {MOST_PAGE})",
    )  # fmt: skip
    to_list.add_argument(
        "--after", type=whole_number, default=0, metavar="ID", help="only ids above this one"
    )
    _filtered(new_command(family, "summary", "how many failed of which cause, the most first", _summary))
    to_show = _with_store(new_command(family, "show", "all of one, with its traceback", _show))
    to_show.add_argument("id", type=letter_id, metavar="ID", help="the letter, as `list` shows it")
    to_export = _filtered(new_command(family, "export", "write them to a .parquet or .jsonl file", _export))
    to_export.add_argument("file", help="a new file")
    to_redrive = new_command(family, "redrive", "send them again, as new messages", _redrive)
    to_purge = new_command(family, "purge", "delete them", _purge)
    for parser in (to_redrive, to_purge):
        parser.add_argument(
            "ids", nargs="*", type=letter_id, metavar="ID", help="letters, as `list` shows them"
        )
        parser.add_argument("--all", action="store_true", help="all of them, if no filter is given")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        _filtered(parser)


def _filtered(parser: ArgumentParser) -> ArgumentParser:
    """Add the options that choose letters."""
    for name, text in _CHOOSING.items():
        parser.add_argument(f"--{name}", help=text)
    for name, words in _WORDS.items():
        metavar, text = name.upper(), ", ".join(words)
        parser.add_argument(f"--{name}", type=str.upper, choices=words, metavar=metavar, help=text)
    for name, text in _STATES.items():
        parser.add_argument(f"--{name}", type=_word, metavar="true|false", help=text)
    for name in ("before", "since"):
        text = f"given up {name} this time: ISO 8601 with a zone, or ms since 1970"
        parser.add_argument(f"--{name}", type=_time, metavar="TIME", help=text)
    return _with_store(parser)


def _with_store(parser: ArgumentParser) -> ArgumentParser:
    """Add the option that names the store."""
    parser.add_argument("--store", metavar="URL", help="the store, where it is not in the checkpoint")
    return parser


def _time(text: str) -> int:
    """Milliseconds since 1970. ArgumentTypeError, which argparse reports, where the text is no time."""
    if is_number(text):
        return int(text)
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return int(at.timestamp() * 1000)
        raise ArgumentTypeError(f"{text!r:.60} has no zone: end it with Z or +00:00")
    raise ArgumentTypeError(f"{text!r:.60} is no time: write 2026-11-25T08:30:00Z, or ms since 1970")


def _word(text: str) -> bool:
    """A truth value. ArgumentTypeError for what is none."""
    with suppress(ConfigError):
        return bool(TRUTH.read(text, "", is_text=True))
    raise ArgumentTypeError(f"{text!r:.60} is no truth value: give true or false")


def _filters(options: Namespace) -> dict[str, Any]:
    return {name: value for name in _FILTERS if (value := getattr(options, name)) is not None}


def _asked(
    options: Namespace, path: str, query: Mapping[str, Any], look: Callable[[DeadLetters], dict[str, Any]]
) -> dict[str, Any]:
    """Ask the driver, or where nobody runs the topology look into the store."""
    target = find(options.topology)
    if target.is_running and options.store is None:
        return door_of(target, options).get(path, query)
    with letters_of(target, options.store) as store:
        return look(store)


def _list(options: Namespace) -> Answer:
    query = _filters(options) | {"limit": options.limit, "after": options.after}
    page = _asked(options, "dead-letters", query, lambda store: letters.page(store, query))
    head = ("id", "given up", "spout", "message", "tries", "cause", "component", "reason", "redriven")
    rows = [
        (
            str(letter["id"]), _utc(letter["dead_ms"]), letter["spout"],
            _short(_message(letter)), letter["attempts"], letter["cause"],
            letter["component"], _short(letter["reason"]), _outcome(letter),
        )
        for letter in page["letters"]
    ]  # fmt: skip
    shown = f"{table(head, rows)}\n" if rows else ""
    more = f"; further ones: --after {page['after']}" if page["after"] is not None else ""
    _hint(options, page)
    return Answer(page, f"{shown}{page['count']:,} match{more}{_ordered_line(options)}")


def _message(letter: Mapping[str, Any]) -> str:
    """The message of a letter; of a gate's the messages that it hung on."""
    origins = letter.get("origins")  # an older driver does not say
    return ", ".join(map(_origin, origins)) if origins else named(letter["message_id_repr"], letter)


def _origin(origin: Mapping[str, Any]) -> str:
    return f"{named(origin['message_id_repr'], origin)} of {origin['spout']}"


def _outcome(letter: Mapping[str, Any]) -> str:
    """What became of a letter that was sent again; empty for one that was not."""
    if not letter["redriven_ms"]:
        return ""
    if not letter["settled_ms"]:
        return "no verdict yet"
    again = letter.get("dead_again_id")  # an older driver does not say
    return "acked" if again is None else f"dead again: {again}"


def _summary(options: Namespace) -> Answer:
    with letters_of(find(options.topology), options.store) as store:
        groups = store.summary(**letters.filters_of(_filters(options)))
    head = ("letters", "cause", "component", "exception", "reason", "choose them with")
    rows = [
        (
            f"{group.count:,}", group.cause, group.component or "",
            (group.exception_type or "").rpartition(".")[2], _short(group.reason), _options(group),
        )
        for group in groups
    ]  # fmt: skip
    total = sum(group.count for group in groups)
    data = {"count": total, "groups": [asdict(group) | {"filters": dict(group.filters)} for group in groups]}
    shown = f"{table(head, rows)}\n" if rows else ""
    return Answer(data, f"{shown}{total:,} match")


def _options(group: LetterGroup) -> str:
    """The options of a command that choose the letters of a group."""
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in group.filters.items())


def _ordered_line(options: Namespace) -> str:
    """How many letters are ordered for the next run of a topology that nobody runs; empty for none."""
    count = redrives_ordered(find(options.topology))
    return f"\n{count:,} redrive{'s wait' if count != 1 else ' waits'} for the next run" if count else ""


def _hint(options: Namespace, page: Mapping[str, Any]) -> None:
    """Say on stderr that the topology has no such component, where no letter matches.

    It is no error: letters of earlier versions may name other components.
    """
    if page["count"]:
        return
    with suppress(AcktreeError, TimeoutError):
        snapshot = find(options.topology).snapshot()
        known = {} if snapshot is None else snapshot.graph["components"]
        for name in (options.component, options.spout):
            if name is not None and known and name not in known:
                hint = f"the topology has no component {name!r:.60}: {nearest(name, known)}"
                sys.stderr.write(f"{printable(hint)}\n")


def _show(options: Namespace) -> Answer:
    letter = _asked(options, f"dead-letters/{options.id}", {}, lambda store: letters.whole(store, options.id))
    lines = [
        f"{name:<16} {_moment(value) if name.endswith('_ms') and value is not None else value}"
        for name, value in letter.items()
        if name not in ("values", "texts", "traceback", "origins")
    ]
    lines += [f"{'origin':<16} {_origin(each)}" for each in letter.get("origins", ())]
    texts = letter.get("texts", {})
    for name, value in letter["values"].items():
        lines += f"{'value':<16} {name} = {texts.get(name) or _value(value)}".splitlines()
    lines += (letter["traceback"] or "").splitlines()
    return Answer(letter, "\n".join(lines))


def _moment(at_ms: int) -> str:
    """A moment as it is stored, and as people read it."""
    return f"{at_ms} ({_utc(at_ms)} UTC)"


def _value(value: object) -> str:
    """A value of a letter as Python shows it; bytes travel as base64."""
    match value:
        case {"base64": str(text), **others} if not others:
            with suppress(ValueError):
                value = base64.b64decode(text, validate=True)
    return bounded(repr(value), _MOST_VALUE)


def _redrive(options: Namespace) -> Answer:
    target = find(options.topology)
    if not target.is_running and target.folder is not None:
        return _redrive_by_next_run(options, target)
    door = door_of(target, options)
    # One that was sent before was acked, or is another letter, which matches too: both would run again.
    order = _order(
        options, lambda query: int(door.get("dead-letters", query)["count"]), "send {} again", redriven=False
    )
    done = door.order("dead-letters/redrive", order)
    return Answer(done, f"{done['redriven']:,} sent again")


def _redrive_by_next_run(options: Namespace, target: Found) -> Answer:
    with letters_of(target, options.store) as store:
        question = "let the next run send {} again"
        order = _order(options, partial(letters.count, store), question, redriven=False)
        ids = letters.ordered(store, order)
    done = order_redrive(target, ids)
    log_order("dead-letters/redrive", target.topology, target.checkpoint, order, done)
    return Answer(done, f"{done['ordered']:,} are sent again when the topology runs next on {target.folder}")


def _purge(options: Namespace) -> Answer:
    target = find(options.topology)
    question = "delete {} for ever"
    if target.is_running and options.store is None:
        door = door_of(target, options)
        order = _order(options, lambda query: int(door.get("dead-letters", query)["count"]), question)
        done = door.order("dead-letters/purge", order)
    else:
        with letters_of(target, options.store) as store:
            order = _order(options, partial(letters.count, store), question)
            done = letters.purge(store, order)
        log_order("dead-letters/purge", target.topology, options.store or target.checkpoint, order, done)
    return Answer(done, f"{done['purged']:,} deleted")


def _order(
    options: Namespace, count: Callable[[dict[str, Any]], int], question: str, **unless_asked: object
) -> dict[str, Any]:
    """An order by ids, or by filters with the count that the operator agrees to.

    Args:
        count: How many letters match filters.
        question: What is done to ``{}``.
        unless_asked: Further filters, where the operator asks neither for letters that were sent again nor
            for others. How many they leave out is said.

    Raises:
        UsageError: Neither ids nor filters nor ``--all``, or both.
        MisuseError: The operator does not agree.
    """
    filters, left_out = _filters(options), ""
    if options.ids and filters:
        raise UsageError("ids and filters together are ambiguous", "dead-letters", "give one of them")
    if options.ids:
        query: dict[str, Any] = {"ids": options.ids}
        number = len(set(options.ids))
    elif filters or options.all:
        if unless_asked and not _STATES.keys() & filters.keys():
            matching, filters = count(filters), filters | unless_asked
            if more := matching - count(filters):
                left_out = f"left out, as sent before: {more:,}"
        number = count(filters)
        query = filters | ({} if filters else {"all": True}) | {"expected_count": number}
    else:
        raise UsageError(
            "no letters are named", "dead-letters", "give ids, a filter such as --spout, or --all"
        )
    if left_out:
        sys.stderr.write(f"{left_out}; --redriven true chooses those\n")
    if not options.yes:
        _agree(question.format(f"{number:,} dead letter{'s' * (number != 1)}"), options)
    return query


def _agree(question: str, options: Namespace) -> None:
    if options.json or sys.stdin is None or not sys.stdin.isatty():
        raise MisuseError(f"this would {question}", "dead-letters", "give --yes, where nobody can be asked")
    sys.stderr.write(f"{question}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise MisuseError("nothing was done", "dead-letters", "answer y to go on")


def _export(options: Namespace) -> Answer:
    with letters_of(find(options.topology), options.store) as store:
        count = store.export(options.file, **letters.filters_of(_filters(options)))
    return Answer({"exported": count, "file": options.file}, f"{count:,} written to {options.file}")


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
