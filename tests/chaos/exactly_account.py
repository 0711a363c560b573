"""What became of each message, where each effect must happen once.

Rules of this file
------------------
1. No clock and no I/O: rows, memory and kills arrive as arguments.
2. An effect of a message that was given up, or of a part that was given up behind its gate, never happens.
3. Any other happens once. Only a message of a queue without keys may have more: each further one is of
   another run of the driver than those before it, so there was a kill between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.exactly_topology import PARTS, is_given_up, is_given_up_behind

Row = tuple[str, int, int, int]
"""Source, number, part, and the run of the driver that has emitted it."""


@dataclass
class Account:
    """What was found; clean if there are no findings.

    Attributes:
        effects: Rows in tables, and parts in memory.
        doubles: Further effects of messages of a queue without keys.
        findings: What is wrong, in words, by where it was found.
    """

    effects: int = 0
    doubles: int = 0
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def account_of(
    put: int, sources: Sequence[str], tables: Mapping[str, Iterable[Row]], memory: Mapping[str, int]
) -> Account:
    """Make the account.

    Args:
        put: How many messages each source was given.
        tables: ``direct``, whose rows come from ``split``, and ``totals``, whose rows come from ``count``.
        memory: How often each part was counted.
    """
    account = Account()
    for table, rows in tables.items():
        runs: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for source, number, part, run in rows:
            runs[source, number, part].append(run)
        for which, found in runs.items():
            if len(set(found)) < len(found):
                account.findings[table].append(f"{which} was written twice by one run: {found}")
        counts = Counter({which: len(found) for which, found in runs.items()})
        _check(account, table, put, sources, counts, has_lost=table == "totals")
    parts: Counter[tuple[str, int, int]] = Counter()
    for name, count in memory.items():
        source, number, part_of = name.split()
        parts[source, int(number), int(part_of)] = count
    _check(account, "memory", put, sources, parts, has_lost=True)
    return account


def _check(
    account: Account,
    where: str,
    put: int,
    sources: Sequence[str],
    counts: Counter[tuple[str, int, int]],
    *,
    has_lost: bool,
) -> None:
    """``has_lost``: whether what is given up behind the gate of ``count`` is not there."""
    account.effects += counts.total()
    right = {
        (source, number, part)
        for source in sources
        for number in range(put)
        for part in range(PARTS)
        if not is_given_up(number) and not (has_lost and is_given_up_behind(number, part))
    }
    findings = account.findings
    for which in sorted(right - counts.keys()):
        findings[where].append(f"{which} is not there")
    for which in sorted(counts.keys() - right):
        findings[where].append(f"{which} was given up, and is there")
    for which in sorted(right & counts.keys()):
        if counts[which] > 1 and which[0] == "plain":
            account.doubles += counts[which] - 1
        elif counts[which] > 1:
            findings[where].append(f"{which} is there {counts[which]} times")
