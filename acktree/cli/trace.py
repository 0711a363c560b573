"""``acktree trace``: finds traced messages and draws their trees."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

from acktree.cli.answers import (
    Answer,
    Commands,
    UsageError,
    door_of,
    limit,
    named,
    new_command,
    secs_up_to,
    table,
)
from acktree.errors import ConfigError
from acktree.tasks.spouts.watched_ids import MOST_WATCH_SECS, MOST_WATCHED, WATCH_SECS
from acktree.ui import tracing
from acktree.ui.client import DoorError, Found, find
from acktree.ui.known_names import MOST_PAGE, NUMBER, WHOLE
from acktree.ui.stopped import traces_of


def add_to(commands: Commands) -> None:
    """Add the commands of this family."""
    about = "find traced messages, draw the tree of one, or change which are traced"
    parser = new_command(commands, "trace", about, _trace)
    parser.add_argument("root", nargs="?", type=_root, metavar="ROOT", help="the root id of a message")
    parser.add_argument("--message-id", metavar="ID", help="as the spout emitted it, or as `open` shows it")
    parser.add_argument("--label", metavar="TEXT", help="what people call it: the label that its spout gave")
    parser.add_argument("--verdict", choices=["ACKED", "FAILED", "TIMED_OUT", "OPEN"], help="how it ended")
    parser.add_argument("--component", metavar="C", help="this bolt received a tuple of it")
    parser.add_argument("--reason", metavar="TEXT", help="part of the reason of its failure")
    parser.add_argument(
        "--rate", type=_rate, metavar="SHARE", help="trace this share of the messages from now on, 0 to 1"
    )
    parser.add_argument(
        "--watch", action="append", metavar="ID",
        help="trace the next attempts of this message at any rate: its id as the spout emits it, or as `open`"
        f" shows it; may be given several times, for {MOST_WATCHED} messages at most",
    )  # fmt: skip
    parser.add_argument(
        "--secs", type=secs_up_to(MOST_WATCH_SECS), metavar="N",
        help=f"watch for N seconds (default: {WATCH_SECS:.0f}, at most {MOST_WATCH_SECS:,.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=limit(MOST_PAGE), default=20, metavar="N",
        help=f"show at most N messages (default: 20, at most {MOST_PAGE})",
    )  # fmt: skip


def _root(text: str) -> str:
    with suppress(ConfigError):
        return str(WHOLE.read(text, "", is_text=True))
    raise ArgumentTypeError("a root is a whole number of 64 bits; search a message id by --message-id")


def _rate(text: str) -> float:
    with suppress(ConfigError):
        rate = float(NUMBER.read(text, "", is_text=True))
        if 0 <= rate <= 1:
            return rate
    raise ArgumentTypeError(f"{text!r:.60} is no share from 0 to 1")


def _refuse_wrong(options: Namespace) -> None:
    """UsageError for options that do not fit each other, and for too many messages."""
    if options.secs is not None and options.watch is None:
        raise UsageError("no message is watched", "trace --secs", "name messages: --watch ID --secs N")
    if options.rate is not None and options.watch is not None:
        raise UsageError("these are two orders", "trace --rate --watch", "give one after the other")
    if options.root is not None and (options.rate is not None or options.watch is not None):
        raise UsageError(
            "a root is shown, and an order is about other messages", "trace ROOT", "leave one out"
        )
    count = len(set(options.watch or ()))
    if count > MOST_WATCHED:
        raise UsageError(
            f"{count:,} messages would be watched, and {MOST_WATCHED} can be at a time", "trace --watch",
            "name fewer",
        )  # fmt: skip


def _trace(options: Namespace) -> Answer:
    _refuse_wrong(options)
    target = find(options.topology)
    if options.rate is not None:
        done = door_of(target, options).order("trace", {"rate": options.rate})
        most = done.get("most_per_sec")  # an older driver gives none
        bound = "" if most is None else f", at most about {most:g} a second (max_traces_per_sec)"
        return Answer(
            done, f"{target.checkpoint}: {options.rate:g} of the messages are traced from now on{bound}"
        )
    if options.watch is not None:
        return _watched(target, options)
    if options.root is not None:
        return _drawn(target, options, options.root)
    query = {
        name: value
        for name in ("message_id", "label", "verdict", "component", "reason", "limit")
        if (value := getattr(options, name)) is not None
    }
    page = _ask(target, options, "traces", {name: str(value) for name, value in query.items()})
    if (options.message_id is not None or options.label is not None) and page["messages"]:
        return _drawn(target, options, page["messages"][0]["root"])
    if options.message_id is not None:
        raise ConfigError(
            f"no trace of message {options.message_id!r:.60}",
            target.checkpoint,
            _why_not_traced(target, options, page),
        )
    return Answer(page, _listed(page) if page["messages"] else _none_listed(target, options, page))


def _watched(target: Found, options: Namespace) -> Answer:
    """Give the order to watch messages."""
    order = {"message_ids": options.watch} | ({} if options.secs is None else {"secs": options.secs})
    door = door_of(target, options)
    done = door.order("trace", order)
    secs = WATCH_SECS if options.secs is None else options.secs
    named = "the message" if len(options.watch) == 1 else f"the {len(options.watch):,} messages"
    watched = ", ".join(f"{each} for {left:,.0f} s" for each, left in done["watched"].items())
    lines = (
        f"{door.entry.id}: the next attempts of {named} are traced, for {secs:g} s",
        f"watched now: {watched}",
        f"`acktree trace {options.topology} --message-id ID` finds what is traced of them",
    )
    return Answer(done, "\n".join(lines))


def _why_not_traced(target: Found, options: Namespace, page: Mapping[str, Any]) -> str:
    """What to do about a message that is not among those that are traced."""
    if not target.is_running:
        return "it was not traced, or its trace was deleted for newer ones"
    watch = f"trace its next attempts: acktree trace {options.topology} --watch ID"
    return f"one message in {1 / page['rate']:,.0f} is traced; {watch}" if page["rate"] else watch


def _none_listed(target: Found, options: Namespace, page: Mapping[str, Any]) -> str:
    """The line for no matching traced message, with the reason where nothing is traced."""
    none = f"no traced message matches; {page['count']:,} are stored"
    if not target.is_running or page["rate"]:
        return none
    return f"{none}. No share of the messages is traced: acktree trace {options.topology} --rate 0.01"


def _drawn(target: Found, options: Namespace, root: str) -> Answer:
    whole = _ask(target, options, f"traces/{root}", {})
    text = str(whole["text"])
    others = [each for each in whole["attempts"] if each["root"] != root]
    if others:
        text += "\nother attempts: " + ", ".join(
            f"{each['root']} (attempt {each['attempt']}, {each['verdict'] or 'open'})" for each in others
        )
    return Answer(whole, text)


def _ask(target: Found, options: Namespace, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Ask the driver; where nobody runs, read the checkpoint."""
    if target.is_running:
        return door_of(target, options).get(path, query)
    with closing(traces_of(target)) as traces:
        _, _, root = path.partition("/")
        whole = tracing.whole(traces, int(root)) if root else tracing.page(traces, query)
    if whole is None:
        raise DoorError(
            f"there is no trace of root {root}", target.checkpoint, "acktree trace without a root lists them",
            status=404,
        )  # fmt: skip
    return whole


def _listed(page: Mapping[str, Any]) -> str:
    head = ("emitted", "message id", "root", "attempt", "verdict", "took s", "tuples", "where", "reason")
    rows = [
        (
            f"{datetime.fromtimestamp(each['emitted_ms'] / 1000, UTC):%Y-%m-%d %H:%M:%S}",
            named(each["message_id"], each), each["root"], each["attempt"], each["verdict"] or "open",
            None if each["verdict_ms"] is None else (each["verdict_ms"] - each["emitted_ms"]) / 1000,
            each["tuples"], each["component"], (each["reason"] or "")[:80],
        )
        for each in page["messages"]
    ]  # fmt: skip
    further = "a larger --limit" if len(rows) < MOST_PAGE else "narrow the search"
    more = "" if page["after"] is None else f"\nthe newest {len(rows):,}; further ones: {further}"
    return table(head, rows) + more
