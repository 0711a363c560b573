"""What questions and orders take: their names, the types of their values, and how much one answer lists.

Rules of this file
------------------
1. An unknown name is refused: an answer that ignores a filter is about too much.
2. So is a filter without a value: a script whose variable is unset would order too much.
3. No value is converted by a guess: 1.9, "7" and true are not the number of a letter. A query has only texts;
   there a number is its digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from acktree.errors import ConfigError, nearest
from acktree.texts import is_number

MOST_OPEN: Final = 1000
"""The most open messages in an answer."""
MOST_PAGE: Final = 500
"""The most dead letters or traces in an answer."""

MOST_ORDERS: Final = 500
"""How many orders of a run are kept."""

MOST_NUMBER: Final = (1 << 63) - 1
"""The largest number that a database takes."""
_MOST_SECS: Final = 1e9
_WORDS: Final = {"true": True, "false": False}
_DIGITS: Final = re.compile(r"-?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")


class Kind(NamedTuple):
    """What a value must be.

    Attributes:
        noun: What an error says that a wrong value is not.
        fix: What to give.
        of_json: Reads a value of JSON. Raises TypeError or ValueError for a wrong one.
        of_text: Reads the text of a query, likewise.
    """

    noun: str
    fix: str
    of_json: Callable[[Any], Any]
    of_text: Callable[[str], Any]

    def read(self, value: object, where: str, *, is_text: bool = False) -> Any:  # noqa: ANN401  # of JSON
        """The value. ConfigError for a wrong one."""
        try:
            return self.of_text(value) if is_text and isinstance(value, str) else self.of_json(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{value!r:.60} is no {self.noun}", where, self.fix) from error


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    value.encode()  # a lone surrogate is no text
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _word(value: object) -> bool:
    return _WORDS[value] if isinstance(value, str) and value in _WORDS else _truth(value)


def _whole(value: object) -> int:
    if type(value) is not int or abs(value) > MOST_NUMBER:
        raise ValueError
    return value


def _count(value: object) -> int:
    if (number := _whole(value)) < 0:
        raise ValueError
    return number


def _time(value: object) -> int:
    if type(value) is not int:
        raise ValueError
    return max(-MOST_NUMBER, min(MOST_NUMBER, value))


def _number(value: object) -> float:
    if type(value) not in (int, float) or not -MOST_NUMBER < value < MOST_NUMBER:  # type: ignore[operator]
        raise ValueError  # infinity and what is no number too
    return float(value)  # type: ignore[arg-type]


def _secs(value: object) -> float:
    if not 0 <= (secs := _number(value)) < _MOST_SECS:
        raise ValueError
    return secs


def _each(of_json: Callable[[Any], Any], kind: type[Any]) -> Callable[[Any], Any]:
    """Reads a list, or the values of an object."""

    def read(value: Any) -> Any:  # noqa: ANN401  # of JSON
        if not isinstance(value, kind):
            raise TypeError
        if kind is dict:
            return {_text(name): of_json(each) for name, each in value.items()}
        return [of_json(each) for each in value]

    return read


def _message_id(value: object) -> str | int:
    if type(value) not in (str, int):
        raise ValueError
    str(value).encode()  # a lone surrogate is no text
    return value  # type: ignore[return-value]


def _level(value: Any) -> dict[str, Any]:  # noqa: ANN401  # of JSON
    if not isinstance(value, dict):
        raise TypeError
    refuse_unknown(value, ("level", "secs"), "the level of a logger")
    secs = value.get("secs")
    return {"level": _text(value.get("level")), "secs": None if secs is None else _number(secs)}


def _as_text(of_json: Callable[[Any], Any], form: re.Pattern[str], made: Callable[[str], Any]) -> Any:  # noqa: ANN401
    """Reads a text of one form as the value that it is of."""

    def read(text: str) -> Any:  # noqa: ANN401  # of JSON
        if not form.fullmatch(text):
            raise ValueError
        return of_json(made(text))

    return read


TEXT: Final = Kind("text in UTF-8", "give a text", _text, _text)
TRUTH: Final = Kind("truth value", "true or false", _truth, _word)
_WORD: Final = TRUTH._replace(of_json=_word)
"""Also as a word: commands of earlier releases send it so."""
WHOLE: Final = Kind(
    "number of 64 bits, without a fraction", "give a whole number", _whole, _as_text(_whole, _DIGITS, int)
)
_COUNT: Final = WHOLE._replace(noun="count", of_json=_count)
_TIME: Final = Kind(
    "number of milliseconds",
    "give whole numbers: times in ms since 1970",
    _time,
    _as_text(_time, _DIGITS, int),
)
NUMBER: Final = Kind("number", "give a number", _number, _as_text(_number, _DECIMAL, float))
SECS: Final = Kind("number of seconds", "give 0 or more", _secs, _as_text(_secs, _DECIMAL, float))
_IDS: Final = Kind(
    "list of numbers of letters", "give whole numbers, as `acktree dead-letters list` shows the ids",
    _each(_whole, list), lambda text: [_as_text(_whole, _DIGITS, int)(each) for each in text.split(",")],
)  # fmt: skip
_MESSAGE_IDS: Final = Kind(
    "list of message ids", "give texts in UTF-8, as `acktree open` shows the ids, or whole numbers",
    _each(_message_id, list), _text,
)  # fmt: skip
_LEVELS: Final = Kind(
    "object of levels by logger", 'give {"NAME": {"level": "DEBUG", "secs": 60}}', _each(_level, dict), _text
)
_LOGGERS: Final = Kind("list of loggers", "give their names", _each(_text, list), _text)
_FREE: Final = Kind("", "", lambda value: value, lambda text: text)
"""It may be empty, and who is asked reads it: a limit, the place of a page."""

FILTERS: Final[Mapping[str, Kind]] = {
    "ids": _IDS, "topology": TEXT, "spout": TEXT, "component": TEXT, "kind": TEXT, "cause": TEXT,
    "label": TEXT,
    "reason": TEXT, "exception": TEXT, "redriven": _WORD, "settled": _WORD, "before": _TIME, "since": _TIME,
}  # fmt: skip
"""What chooses dead letters."""
_LETTER_ORDER: Final = {**FILTERS, "expected_count": _COUNT, "all": TRUTH}

QUESTIONS: Final[Mapping[str, Mapping[str, Kind]]] = {
    "snapshot": {"most_age_secs": SECS},
    "open": {"limit": _FREE},
    "audit": {"limit": _FREE},
    "log-levels": {},
    "history": {"since": _TIME, "before": _TIME, "limit": _FREE},
    "events": {"limit": _FREE, "component": TEXT},
    "traces": {
        "message_id": TEXT, "label": TEXT, "root": WHOLE, "verdict": TEXT, "component": TEXT, "reason": TEXT,
        "since": WHOLE, "before": WHOLE, "limit": _FREE, "after": _FREE,
    },
    "trace-of": {"edge": WHOLE, "first": WHOLE, "all": TRUTH},
    "dead-letters": {**FILTERS, "limit": _FREE, "after": _TIME},
    "dead-letter": {},
}  # fmt: skip
"""By question: the names of its query, and what each must be."""

ORDERS: Final[Mapping[str, Mapping[str, Kind]]] = {
    "activate": {},
    "deactivate": {},
    "kill": {"wait_secs": SECS},
    "log-levels": {"set": _LEVELS, "reset": _LOGGERS},
    "debug": {"on": TRUTH, "component": TEXT, "percent": NUMBER},
    "trace": {"rate": NUMBER, "message_ids": _MESSAGE_IDS, "secs": NUMBER._replace(noun="time to watch")},
    "dead-letters/redrive": _LETTER_ORDER,
    "dead-letters/purge": _LETTER_ORDER,
}
"""By order: the names in its body, and what each must be. Null is as good as absent, except for a filter."""

COMMANDS: Final = {
    "rebalance": ("component", "parallelism", "partitions", "by_key", "forget"),
    "reset-state": ("component",),
}
"""By command that changes a stopped checkpoint: its options that are logged."""


def order_of(body: bytes) -> dict[str, Any]:
    """The JSON object of an order; empty for no body.

    Raises:
        ValueError: It is none, gives a name twice, or has a lone surrogate, which could be neither stored nor
            shown.
    """
    try:
        given = json.loads(body or b"{}", object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deep") from error
    if not isinstance(given, dict):
        raise ValueError("an order is a JSON object")  # noqa: TRY004  # as for what is no JSON
    json.dumps(given, ensure_ascii=False).encode()  # raises for a lone surrogate
    return given


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a name that it gives twice, JSON would ignore the first value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r:.60} is given twice")
    return found


def read_order(order: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What came with an order, read; without what is null.

    Raises:
        ConfigError: A name is unknown, or a value is of another type than the order takes.
    """
    return _read(ORDERS[order], given, order, is_text=False)


def read_question(question: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a question. Its values are the texts of a query, or as of JSON."""
    return _read(QUESTIONS[question], query, question, is_text=True)


def _read(
    kinds: Mapping[str, Kind], given: Mapping[str, Any], where: str, *, is_text: bool
) -> dict[str, Any]:
    refuse_unknown(given, kinds, where)
    found = {}
    for name, value in given.items():
        kind, here = kinds[name], f"{where}, {name}="
        is_filter = "ids" in kinds and name in FILTERS
        if (value == "" and kind is not _FREE) or (value is None and is_filter):
            every = '; an order about every letter has "all": true' if "expected_count" in kinds else ""
            raise ConfigError(f"{name} has no value", here, f"give one, or leave {name} out{every}")
        if value is not None:
            found[name] = kind.read(value, here, is_text=is_text)
    return found


def refuse_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuse names that nothing here takes.

    Raises:
        ConfigError: A name is unknown; the fix has the nearest known one.
    """
    for name in given:
        if name not in known:
            fix = nearest(name, known) if known else "leave it out: nothing can be given here"
            raise ConfigError(f"there is no {name!r:.60}", where, fix)


def limit_of(given: Mapping[str, Any], usual: int, most: int) -> int:
    """How much the answer to a question lists.

    Args:
        given: The question's query; ``limit`` in it, or its absence.
        usual: The number without a limit.
        most: The largest number. A larger limit counts as this one.

    Raises:
        ConfigError: The limit is no whole number above 0.
    """
    limit = given.get("limit")
    if limit is None or limit == "":
        return usual
    digits = str(limit).lstrip("0")
    if not is_number(digits):
        raise ConfigError(
            f"{limit!r:.40} is no limit",
            "limit=",
            f"give a whole number above 0; {most:,} are listed at most",
        )
    return int(digits) if len(digits) <= len(str(most)) and int(digits) < most else most
